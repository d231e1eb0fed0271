"""implicitq bench: how fast training is on this machine, and why."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from rich.table import Table

from implicitq.bench import PARTS, USUAL
from implicitq.commands.display import console, error_console, table
from implicitq.commands.parsing import C, Cache, Hyperparameters, parse_with_config
from implicitq.compilation import use_cache
from implicitq.configs import Config
from implicitq.types import InputError
from implicitq.validation import nearest, require

_START = """
from implicitq.compilation import use_cache
use_cache()  # before JAX is imported, as the command would
from implicitq.bench.parts import watched
from implicitq.commands.train import run
watched(run, {!r})
"""


@dataclass(frozen=True)
class Options(Generic[C]):
    config: Hyperparameters[C]
    parts: tuple[str, ...] = USUAL
    """What to measure.
    updates: the compiled update of iq, miq, iq-auto and sac, for tasks of five sizes, beside a large matrix product;
    loop: whole training steps, and where their time goes; predict: acting; replay: adding and sampling transitions;
    checkpoint: saving; start: from the command to the first update;
    policies: an update and an action with each class of policies, side by side (only if named)."""
    growth: bool = False  # Measure instead how cost grows with width, batch, bins, environments, seeds, replay, steps.
    quick: bool = False  # Fewer tasks and repeats: about a minute.
    repeats: int = 5  # Measurements of each part; the median counts.
    steps_per_repeat: int = 500  # Environment steps, and bare updates, of each repeat of the loop.
    cache: Cache = True
    json: bool = False  # Print JSON instead of tables.


def run(arguments: list[str]) -> int:
    options = parse_with_config(Options, "bench", "Measure the speed of", "HalfCheetah-v5", arguments)
    for part in options.parts:
        if part not in PARTS:
            raise InputError(f"unknown part {part!r}{nearest(part, PARTS)}")
    for name in ("repeats", "steps_per_repeat"):
        require(options, name, getattr(options, name) >= 1, "a whole number of at least 1")
    if options.quick:
        options = dataclasses.replace(options, repeats=min(options.repeats, 3), steps_per_repeat=100)
    use_cache(options.cache)
    with error_console.status("starting") as status:
        found = _measure(options, lambda text: status.update(f"measuring {text}"))
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for each in _tables(found):
        console.print(each)
    threads, processor = found["versions"]["threads"], found["versions"]["processor"]
    console.print(f"medians of {options.repeats} repeats, {threads} thread(s) of {processor}")
    return 0


def _measure(options: Options[Config], tell: Callable[[str], None]) -> dict[str, Any]:
    from implicitq.bench import everything

    config, effort = options.config, {"repeats": options.repeats, "quick": options.quick, "tell": tell}
    if options.growth:
        return everything.measure_all_growth(config, **effort)
    command = [config.algorithm, "--env", config.env, "--hidden", *map(str, config.hidden)]
    return everything.measure_parts(
        config, options.parts, _START.format(command), steps=options.steps_per_repeat, **effort
    )


def _tables(found: dict[str, Any]) -> list[Table]:
    made = [_updates_table(found["updates"])] if "updates" in found else []
    if "loop" in found:
        made.append(_loop_table(found["loop"]))
    made += [_others_table(found)] if {"predict", "replay", "checkpoint", "start"} & found.keys() else []
    made += [_policies_table(found["policies"])] if "policies" in found else []
    return [*made, _growth_table(found["growth"])] if "growth" in found else made


def _updates_table(rows: list[dict[str, Any]]) -> Table:
    columns = ("task", "algo", "sizes", "batch", "updates/s", "GFLOP", "of sgemm")  # in 80 columns
    shown = table("compiled updates", *columns, left=columns[:3])
    for row in rows:
        shown.add_row(
            row["env"],
            row["algorithm"],
            "-".join(map(str, row["hidden"])),
            str(row["batch_size"]),
            f"{row['updates_per_second']:,.0f}",
            f"{row['gflop']:.3f}",
            f"{row['fraction_of_sgemm']:.0%}",
        )
    rates = [row["sgemm_gflop_per_second"] for row in rows]
    shown.caption = f"sgemm, a product of large matrices: {min(rates):.0f} to {max(rates):.0f} GFLOP/s meanwhile"
    return shown


def _loop_table(found: dict[str, Any]) -> Table:
    sizes = "-".join(map(str, found["hidden"]))
    title = f"training loop: {found['algorithm']} on {found['env']}, {sizes}, batch {found['batch_size']}"
    shown = Table(title=title, show_header=False)
    step = found["step_ms"]
    shown.add_row("training steps per second", f"{found['steps_per_second']:,.0f}")
    shown.add_row("one step", f"{step['median']:.2f} ms ({step['fastest']:.2f} to {step['slowest']:.2f})")
    shown.add_row("compiled update alone", f"{found['update_ms']['median']:.2f} ms")
    shown.add_row("time outside the update", f"{found['outside_update']:.1%}")
    for name, share in found["shares"].items():
        shown.add_row(f"  {name}, if parts run one by one", f"{share:.1%}")
    return shown


def _others_table(found: dict[str, Any]) -> Table:
    shown = Table(title="around the loop", show_header=False)
    if "predict" in found:
        for count, timing in found["predict"]["observations"].items():
            shown.add_row(f"predict, {count} observation(s)", f"{timing['median']:,.0f} us")
    if "replay" in found:
        replay = found["replay"]
        shown.add_row("replay, bytes per transition", f"{replay['bytes_per_transition']:,.0f}")
        shown.add_row("replay, transitions in per second", f"{replay['inserts_per_second']:,.0f}")
        shown.add_row(f"replay, batches of {replay['batch_size']} per second", f"{replay['batches_per_second']:,.0f}")
    if "checkpoint" in found:
        saved = found["checkpoint"]
        told = f"{saved['seconds']['median']:.3f} s, {saved['share']:.2%} of the time"
        shown.add_row(f"checkpoint every {saved['every']:,} steps", told)
    for name, words in (("fresh", "nothing compiled yet"), ("cached", "with the cache")):
        if "start" in found:
            start = found["start"][name]
            told = f"{start['first_step']:.1f} s, {start['first_update']:.1f} s"
            shown.add_row(f"command to first step, first update, {words}", told)
            shown.add_row("  of which compiling or loading what is compiled", f"{start['compiling']:.1f} s")
    return shown


def _policies_table(rows: list[dict[str, Any]]) -> Table:
    columns = ("policy", "update, ms", "GFLOP", "sample, us", "deterministic, us")
    shown = table("classes of policies", *columns, left=columns[:1])
    for row in rows:
        acting = [f"{row[name]['median']:,.0f}" for name in ("sample_us", "deterministic_us")]
        shown.add_row(row["policy"], f"{row['update_ms']['median']:.2f}", f"{row['gflop']:.3f}", *acting)
    shown.caption = "sample, deterministic: an action for one state"
    return shown


def _growth_table(rows: list[dict[str, Any]]) -> Table:
    shown = table("how cost grows", "what", "value", "measured", "cost", "GFLOP", left=("what", "measured"))
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before["what"] != row["what"]:
            shown.add_section()
        flops = "" if row["gflop"] is None else f"{row['gflop']:.3f}"
        shown.add_row(row["what"], f"{row['value']:,}", row["measure"], f"{row['cost']:,.2f}", flops)
    return shown
