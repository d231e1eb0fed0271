"""What a training step costs beside one of `iq-auto`, from the rounds of run.py: 256-256, one core, HalfCheetah-v5.

Clocks of runs that were made on different machines, or beside other work, cannot be compared; these ratios can.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

_AGENTS = {"iq-auto": "implicitq iq-auto", "miq": "implicitq miq", "sac": "implicitq sac", "sbx-crossq": "sbx crossq"}


def costs() -> dict[str, float]:
    """Medians over rounds of the ratio within the round, by the names that study tables use."""
    results = json.loads((Path(__file__).parent / "results.json").read_text())
    agents = results["peers"]["settings"]["256-256, 1 core"]["agents"]
    rounds = {name: agents[agent]["seconds"]["step"] for name, agent in _AGENTS.items()}
    own = rounds["iq-auto"]
    return {name: statistics.median(t / o for t, o in zip(times, own, strict=True)) for name, times in rounds.items()}


if __name__ == "__main__":
    print(", ".join(f"{name} {ratio:.2f}" for name, ratio in costs().items()))
