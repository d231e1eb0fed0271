"""How fast things are here: updates, the training loop, acting, the replay, checkpoints, the start, and how cost grows.

Machines are noisy: whatever is compared is measured in turn, several times, and the median counts.
"""

USUAL = ("updates", "loop", "predict", "replay", "checkpoint", "start")
"""What `implicitq bench` measures unless told otherwise."""
PARTS = (*USUAL, "policies")
"""What `everything.measure_parts` can measure; here, so that help needs no JAX."""
