"""Gymnasium: spaces, environments, many of them side by side, and tasks with corrections of ours."""
