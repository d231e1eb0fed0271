"""implicitq sweep: all runs of a study, on this machine or a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from implicitq.commands.display import console, table
from implicitq.commands.parsing import Cache, SuiteName, TrustSuite, default, find_modules_here, parse
from implicitq.compilation import use_cache
from implicitq.sweeps import cluster, random_scores, sweep
from implicitq.sweeps.display import Live, duration
from implicitq.sweeps.pool import cores, run_pool
from implicitq.sweeps.studies import STUDIES, Plan, PlannedRun, expand, study_of
from implicitq.sweeps.suites import suite_of
from implicitq.sweeps.sweep import Outcome
from implicitq.validation import refuse_modules

_STUDIES = "; ".join(f"{study.name}: {study.summary}" for study in STUDIES.values())
StudyName = Annotated[str, tyro.conf.arg(help=f"{_STUDIES}.")]


@dataclass(frozen=True)
class Options:
    """Run a study of the paper, every run in a folder of its own below --out.

    Ctrl-C stops with a checkpoint of every run; the same command goes on. Finished runs are never repeated, nor
    are those in a study table in --out.
    Afterwards: implicitq report OUT.
    """

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]  # Folder of the sweep; studies in one folder share equal runs.
    study: StudyName = "main"
    suite: SuiteName = "quick"
    tasks: Annotated[tuple[str, ...], default("all of them", "ID [ID ...]")] = ()  # Only these tasks of the suite.
    seeds: int = 5  # Runs of every algorithm and setting on every task, with seeds 0, 1, ...
    steps: Annotated[int | None, default("as the suite or task says", "INT")] = None  # Environment steps of every run.
    workers: Annotated[int | None, default("one per core", "INT")] = None  # Processes, each pinned to a core.
    dry_run: bool = False  # Print the runs, the number of steps and the expected time; run nothing.
    rate: Annotated[float | None, default("measured", "FLOAT")] = None  # For --dry-run: steps per second of one worker.
    on: Literal["local", "ray"] = "local"  # local: processes on this machine; ray: tasks on a Ray cluster.
    address: str = "auto"  # With --on ray: where the cluster is; auto, or HOST:PORT of its head.
    cpus_per_run: int = 1  # With --on ray: processors for each run.
    memory_per_run: Annotated[float | None, default("none", "GB")] = None  # With --on ray: memory for each run.
    trust_env: TrustSuite = False
    cache: Cache = True
    inexact: bool = False  # Go on with runs that began under other versions or on another processor.
    random_scores: bool = True  # First measure the random policy on every task: normalised scores need it.


def run(arguments: list[str]) -> int:
    """Gives 0 if every run is finished, 1 if some failed, 130 if stopped."""
    options = parse(Options, "sweep", arguments)
    find_modules_here(*options.tasks)
    suite = suite_of(options.suite, options.tasks)
    if not options.trust_env:
        remedy = "name the task yourself (--tasks), or trust the file (--trust-env)"
        refuse_modules(set(suite.tasks) - set(options.tasks), options.suite, remedy)
    plan = expand(study_of(options.study), suite, options.seeds, options.steps)
    for text in plan.left_out:
        console.print(f"left out: {text}")
    sweep.check_folders(options.out, plan.runs)
    kept = sweep.finished_in_table(options.out, plan.runs)
    todo = [each for each in plan.runs if each.folder not in kept and not sweep.is_finished(options.out, each)]
    if options.dry_run:
        _tell_plan(options, plan, todo)
        return 0
    done = len(plan.runs) - len(todo)
    console.print(f"{len(plan.runs)} {'run' if len(plan.runs) == 1 else 'runs'}, {done} of them finished already")
    on = cores(options.workers)
    use_cache(options.cache)  # of the processes that it starts
    if options.on == "ray":
        cluster.connect(options.address)
    with sweep.alone(options.out):
        sweep.save_plan(options.out, plan, arguments, kept)
        if options.random_scores:
            bounds = {task: plan.settings.get(task, {}).get("action_bound") for task in plan.tasks}
            random_scores.ensure(options.out, plan.tasks, bounds=bounds, tell=console.print)
        with Live(console, len(plan.runs), done) as live:
            if options.on == "ray":
                outcome = cluster.run_cluster(options.out, todo, live, options.cpus_per_run, options.memory_per_run)
            else:
                outcome = run_pool(options.out, todo, on, live, options.inexact)
    return _tell_outcome(options.out, outcome)


def _tell_plan(options: Options, plan: Plan, todo: list[PlannedRun]) -> None:
    console.print(_plan_table(plan, todo))
    steps = sum(planned.config().steps for planned in todo)
    shared = "; lines share runs" if sum(map(len, plan.lines.values())) > len(plan.runs) else ""
    console.print(f"{len(todo)} runs to do of {len(plan.runs)}, {steps:,} environment steps{shared}")
    if not todo:
        return
    known = sweep.rates(options.out, plan, options.rate, console.print)
    for algorithm, rate in known.items():
        console.print(f"{algorithm}: {rate.steps_per_second:,.0f} steps/s on one core ({rate.source})")
    workers = len(cores(options.workers))
    expected = sweep.expected_seconds(todo, known, workers)
    alone = sweep.expected_seconds(todo, known, 1)
    console.print(f"expected: {duration(expected)} with {workers} worker(s); {duration(alone)} of one core in all")


def _plan_table(plan: Plan, todo: list[PlannedRun]) -> Table:
    title = f"study {plan.study} on suite {plan.suite}"
    shown = table(title, "line", "tasks", "runs", "to do", "steps each", left=("line", "tasks"))
    left = {planned.folder for planned in todo}
    by_folder = {planned.folder: planned for planned in plan.runs}
    for label, folders in plan.lines.items():
        runs = [by_folder[folder] for folder in folders]
        steps = sorted({planned.config().steps for planned in runs})
        shown.add_row(
            label,
            ", ".join(dict.fromkeys(planned.env for planned in runs)),
            str(len(runs)),
            str(sum(folder in left for folder in folders)),
            " or ".join(f"{count:,}" for count in steps),
        )
    return shown


def _tell_outcome(out: Path, outcome: Outcome) -> int:
    for failure in outcome.failures:
        console.print(f"failed: {failure.run.folder}: {failure.reason}")
    if outcome.interrupted:
        console.print("stopped; nothing is lost. The same command goes on.")
        return 130
    if outcome.failures:
        console.print(
            f"{len(outcome.failures)} run(s) failed; logs are in {out / sweep.LOGS}. The same command tries again."
        )
        return 1
    console.print(f"all runs are finished. Next: implicitq report {out}")
    return 0
