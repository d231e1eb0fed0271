"""How fast things are here: updates, the training loop, acting, the replay, checkpoints, the start, and how cost grows.

Machines are noisy: whatever is compared is measured in turn, several times, and the median counts.
"""

from implicitq.bench.loop import measure

__all__ = ["measure"]
