"""Figures, tables and pages from finished runs. Needs no JAX."""
