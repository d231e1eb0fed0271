"""implicitq bench: how fast training is on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Generic

from rich.table import Table

from implicitq.commands.display import console
from implicitq.commands.parsing import C, Hyperparameters, parse_with_config


@dataclass(frozen=True)
class Options(Generic[C]):
    config: Hyperparameters[C]
    repeats: int = 5  # How often to measure; the fastest counts.
    steps_per_repeat: int = 1_000  # Environment steps, and bare updates, of each repeat.
    json: bool = False  # Print JSON instead of a table.


def run(arguments: list[str]) -> int:
    options = parse_with_config(Options, "bench", "Measure the speed of", "HalfCheetah-v5", arguments)

    from implicitq.bench import measure

    found = measure(options.config, steps=options.steps_per_repeat, repeats=options.repeats)
    if options.json:
        print(json.dumps(found))
        return 0
    console.print(_speed_table(found))
    console.print(f"best of {found['repeats']} repeats of {found['steps_per_repeat']:,} steps, without evaluations")
    return 0


def _speed_table(found: dict[str, Any]) -> Table:
    sizes = "-".join(map(str, found["hidden"]))
    threads = found["versions"]["threads"]
    shown = Table(title=f"{found['algorithm']} on {found['env']}, {sizes}, {threads} thread(s)", show_header=False)
    shown.add_row("training steps per second", f"{found['steps_per_second']:,.0f}")
    shown.add_row("one training step", f"{found['step_ms']:.2f} ms")
    shown.add_row("compiled update alone", f"{found['update_ms']:.2f} ms")
    shown.add_row("time outside the update", f"{found['outside_update']:.1%}")
    return shown
