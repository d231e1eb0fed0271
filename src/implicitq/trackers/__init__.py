"""Trackers: the curves of a run in TensorBoard or Weights & Biases, one file each.

A tracker is a sink: a module with `class Sink` (see `tracking.Sink`) and a line in `TRACKERS`. Its files lie below the
run folder. What is tracked changes nothing of what is learnt, so it is no part of the config.
"""

from implicitq.trackers.tracking import NONE, TRACKERS, Tracking, build, check_names, chosen, require

__all__ = ["NONE", "TRACKERS", "Tracking", "build", "check_names", "chosen", "require"]
