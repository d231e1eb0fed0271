"""Training speed of implicitq beside SBX's SAC and Stable-Baselines3's, in one run.

Usage: python measure.py PYTHON_OF_PEERS [--hidden 512 512] [--rounds 3] [--out results.json]
Every round runs each of them once, one after the other, in a process of its own; the best round of each counts.
Run it alone on the machine, under taskset to choose the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peers")
    parser.add_argument("--hidden", nargs="+", default=["512", "512"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", default="1000")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    arguments = parser.parse_args()
    sizes = ["--hidden", *arguments.hidden]
    ours = [sys.executable, "-m", "implicitq.commands.main", "bench"]
    flags = ["--env", "HalfCheetah-v5", *sizes, "--repeats", "1", "--steps-per-repeat", arguments.steps, "--json"]
    theirs = [arguments.peers, str(HERE / "peer_speed.py")]
    commands = {f"implicitq {name}": [*ours, name, *flags] for name in ("iq", "miq", "sac")}
    for name in ("sbx", "stable-baselines3"):
        commands[f"{name} sac"] = [*theirs, name, *sizes, "--steps", arguments.steps]

    rounds: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        rounds.append({name: run(command) for name, command in commands.items()})
        rates = ", ".join(f"{name} {found['steps_per_second']:.0f}" for name, found in rounds[-1].items())
        print(f"round {number + 1}: {rates} steps/s", flush=True)

    best = {name: max((r[name] for r in rounds), key=lambda found: found["steps_per_second"]) for name in commands}
    reference = best["sbx sac"]["steps_per_second"]
    summary = {
        name: {
            "steps_per_second": round(found["steps_per_second"], 1),
            "times_sbx_sac": round(found["steps_per_second"] / reference, 2),
            **{k: round(found[k], 4) for k in ("update_ms", "outside_update") if k in found},
        }
        for name, found in best.items()
    }
    record = {
        "command": f"measure.py --hidden {' '.join(arguments.hidden)} --rounds {arguments.rounds}",
        "cores": sorted(os.sched_getaffinity(0)),
        "best_of": summary,
        "all_rounds": [{name: round(f["steps_per_second"], 1) for name, f in r.items()} for r in rounds],
        "versions": {"implicitq": best["implicitq iq"]["versions"], "peers": best["sbx sac"]["versions"]},
    }
    known = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    key = f"{'-'.join(arguments.hidden)} on {len(record['cores'])} core(s)"
    arguments.out.write_text(json.dumps({**known, key: record}, indent=2) + "\n")
    for name, row in summary.items():
        print(f"{name:<24}{row['steps_per_second']:>8} steps/s  {row['times_sbx_sac']:>5} x SBX")


if __name__ == "__main__":
    main()
