"""Training speed of implicitq, Stable-Baselines3 and SBX, by turns in one run.

python run.py PYTHON_OF_PEERS [--repeats 5] [--steps 300] [--out results.json] [--quick]
PYTHON_OF_PEERS is bin/python of what make.sh makes; ours is the Python that runs this. Run it alone on the machine.

For each setting every agent gets a process of its own, on the same cores, which waits once everything is compiled and
warm. Then each trains for a few seconds while the others sleep, one after the other, and this several times: noise of
the machine meets all alike, and each ratio is one within a round. Prints the Markdown of docs/performance.md.
`--tables` prints it again from the results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENV = "HalfCheetah-v5"
PEERS = (("stable-baselines3", "sac"), ("sbx", "sac"), ("sbx", "crossq"))
OURS = ("iq", "miq", "iq-auto", "sac")
REFERENCE = "sbx sac"
SETTINGS = {"512-512, 2 cores": ([512, 512], 2), "256-256, 1 core": ([256, 256], 1)}
PAUSE = 0.3  # seconds before each turn, until the threads of the one before no longer spin
PREDICTIONS = 1_000
WARM_UP = [1_000, 200]  # steps before the first update, and until the first clock


class Contender:
    """A process that is warm and waits."""

    def __init__(self, python: str, name: str, hidden: list[int], cores: list[int], warm_up: list[int]) -> None:
        command = [python, str(HERE / "contender.py"), *name.split(), "--env", ENV]
        for flag, values in {"--hidden": hidden, "--cores": cores, "--warm-up": warm_up}.items():
            command += [flag, *map(str, values)]
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()

    def seconds(self, what: str, count: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {count}\n")
        self.process.stdin.flush()
        return self._answer()["seconds"] / count

    def close(self) -> None:
        self.process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} failed with code {self.process.wait()}")
        return json.loads(line)


def measure(chosen: argparse.Namespace, hidden: list[int], cores: list[int]) -> dict[str, Any]:
    names = {f"implicitq {name}": sys.executable for name in chosen.ours}
    names |= {" ".join(peer): chosen.peers for peer in PEERS}
    contenders = []
    for name, python in names.items():
        print(f"warming up {name}", file=sys.stderr, flush=True)
        contenders.append(Contender(python, name, hidden, cores, [100, 10] if chosen.quick else WARM_UP))
    found: dict[str, dict[str, list[float]]] = {each.name: {"step": [], "predict": []} for each in contenders}
    for number in range(chosen.repeats):
        for each in contenders:
            time.sleep(PAUSE)
            found[each.name]["step"].append(each.seconds("train", chosen.steps))
            found[each.name]["predict"].append(each.seconds("predict", PREDICTIONS))
        rates = ", ".join(f"{name} {1 / times['step'][-1]:.0f}" for name, times in found.items())
        print(f"round {number + 1}: {rates} steps/s", file=sys.stderr, flush=True)
    for each in contenders:
        each.close()
    return {
        "cores": cores,
        "hidden": hidden,
        "agents": {each.name: {**each.about, "seconds": found[each.name]} for each in contenders},
    }


def table(title: str, found: dict[str, Any]) -> str:
    """Markdown. Ratios are medians over rounds of the ratio within the round, with the least and the most."""
    agents = found["agents"]
    reference, other = agents[REFERENCE]["seconds"], agents["stable-baselines3 sac"]["seconds"]
    lines = [
        f"| {title} | batch | steps/s | x SBX SAC | x SB3 SAC | predict, us | x SB3 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, agent in sorted(agents.items(), key=lambda item: statistics.median(item[1]["seconds"]["step"])):
        own = agent["seconds"]
        cells = [
            name,
            str(agent["batch_size"]),
            f"{1 / statistics.median(own['step']):.0f}",
            ratio(reference["step"], own["step"]),
            ratio(other["step"], own["step"]),
            f"{1e6 * statistics.median(own['predict']):.0f}",
            ratio(other["predict"], own["predict"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ratio(reference: list[float], own: list[float]) -> str:
    values = [theirs / mine for theirs, mine in zip(reference, own, strict=True)]
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"processor": processor, "cores": os.cpu_count(), "system": platform.system(), "load": os.getloadavg()}


def keep(path: Path, part: str, found: Any) -> None:
    """Put what was measured in the place of what the file has of this part; the other parts stay."""
    results = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**results, part: found}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="?", help="Python of the peers")
    parser.add_argument("--ours", nargs="+", default=list(OURS), help="our algorithms")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="training steps of one turn")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    parser.add_argument("--quick", action="store_true", help="one setting, two short rounds: to try it out")
    parser.add_argument("--tables", action="store_true", help="measure nothing, print the tables of --out")
    chosen = parser.parse_args()
    if chosen.tables:
        results = json.loads(chosen.out.read_text())["peers"]
    elif chosen.peers is None:
        parser.error("the Python of the peers is missing; see make.sh")
    else:
        settings = dict(SETTINGS)
        if chosen.quick:
            chosen.repeats, chosen.steps = 2, 20
            settings = {"256-256, 1 core": SETTINGS["256-256, 1 core"]}
        free = sorted(os.sched_getaffinity(0))
        results: dict[str, Any] = {"machine": machine(), "repeats": chosen.repeats, "steps": chosen.steps}
        results["settings"] = {
            title: measure(chosen, hidden, free[-count:]) for title, (hidden, count) in settings.items()
        }
        keep(chosen.out, "peers", results)
    for title, found in results["settings"].items():
        print(f"\n{table(title, found)}")


if __name__ == "__main__":
    main()
