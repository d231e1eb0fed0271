"""Tuning: a search over hyperparameters by Optuna, in a folder that can be left and come back to."""
