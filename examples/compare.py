"""Two algorithms over three seeds, and the report: curves, tables, intervals. Takes a few minutes."""

from pathlib import Path

import implicitq
from implicitq.commands.main import run

OUT = Path("runs/compare")

if __name__ == "__main__":
    for algorithm in ("miq", "dqn"):
        for seed in range(3):
            with implicitq.make(algorithm, "CartPole-v1", seed=seed, steps=6_000) as agent:
                agent.learn(out=OUT / f"{algorithm}-{seed}")
                print(f"{algorithm}, seed {seed}: {agent.evaluate(episodes=20).mean:.0f}")
    run(["report", str(OUT)])  # on the command line: implicitq report runs/compare
    run(["plot", str(OUT), "--out", str(OUT / "plot.png")])
