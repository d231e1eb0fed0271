"""Implicit Q-values: Q = temperature * ln pi + V, learnt with one squared loss."""
