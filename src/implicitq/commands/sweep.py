"""The commands sweep and random-scores: their options, and what they do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from implicitq.sweeps import cluster, estimate, random_scores, sweep
from implicitq.sweeps.display import Live, duration
from implicitq.sweeps.pool import cores, run_pool
from implicitq.sweeps.studies import STUDIES, Plan, PlannedRun, expand, study_of
from implicitq.sweeps.suites import DESCRIPTIONS, suite_of
from implicitq.sweeps.sweep import Outcome
from implicitq.types import InputError

_STUDY = "; ".join(f"{study.name}: {study.summary}" for study in STUDIES.values())
_SUITE = "; ".join(f"{name}: {text}" for name, text in DESCRIPTIONS.items())
StudyName = Annotated[str, tyro.conf.arg(help=f"{_STUDY}.")]
SuiteName = Annotated[str, tyro.conf.arg(help=f"{_SUITE}; or the path of a .toml file of your own.")]


@dataclass(frozen=True)
class SweepOptions:
    """Run a study of the paper, every run in a folder of its own below --out.

    Ctrl-C stops with a checkpoint of every run; the same command goes on. Finished runs are never repeated, also
    those that only a study table in --out holds.
    Afterwards: implicitq report OUT.
    """

    out: Path  # Folder of the sweep; studies in one folder share equal runs.
    study: StudyName = "main"
    suite: SuiteName = "quick"
    tasks: tuple[str, ...] = ()  # Only these of the suite's tasks; by default all of them.
    seeds: int = 5  # Runs of every line on every task, with seeds 0, 1, ...
    steps: int | None = None  # Environment steps of every run; by default those of the suite or the task.
    workers: int | None = None  # Processes, each pinned to a core; by default one per core of this machine.
    dry_run: bool = False  # Print the runs, the number of steps and the expected time; run nothing.
    rate: float | None = None  # Steps per second of one worker, for --dry-run; by default it is measured.
    on: Literal["local", "ray"] = "local"  # Processes of this machine, or tasks of a Ray cluster.
    address: str = "auto"  # Of the Ray cluster, with --on ray: auto, or HOST:PORT of its head.
    cpus_per_run: int = 1  # Processors that Ray sets aside for each run, with --on ray.
    memory_per_run: float | None = None  # GB that Ray sets aside for each run, with --on ray.
    inexact: bool = False  # Go on with runs that began under other versions or on another processor.
    random_scores: bool = True  # First measure the random policy on every task, which scores need.


@dataclass(frozen=True)
class RandomScoresOptions:
    """Measure the uniformly random policy on every task of a suite: the zero of normalised scores."""

    out: tyro.conf.Positional[Path]  # Folder of the sweep; the scores go to random-scores.json in it.
    suite: SuiteName = "quick"
    episodes: int = random_scores.EPISODES  # Whole episodes on every task.


@dataclass(frozen=True)
class ReportOptions:
    """Turn runs into figures, tables and one page: DIR/report/index.html.

    Takes the folder of one or several sweeps, or any folder with run folders or study tables below it. Needs finished
    SAC runs on a task for normalised scores there; returns are shown in any case.
    """

    directory: tyro.conf.Positional[Path]  # Folder with runs below it, or with a study table.
    steps: int | None = None  # Compare at this number of steps instead of the end.
    version_set: int | None = None  # Which of several versions to report; runs of different ones are never mixed.


def run_sweep(options: SweepOptions, arguments: list[str], console: Console) -> int:
    """Gives the exit code: 0 if every run is finished, 1 if some failed, 130 if stopped."""
    plan = expand(study_of(options.study), suite_of(options.suite, options.tasks), options.seeds, options.steps)
    for text in plan.left_out:
        console.print(f"left out: {text}", markup=False)
    sweep.check_folders(options.out, plan.runs)
    kept = sweep.finished_in_table(options.out, plan.runs)
    todo = [run for run in plan.runs if run.folder not in kept and not sweep.is_finished(options.out, run)]
    if options.dry_run:
        _tell_plan(options, plan, todo, console)
        return 0
    done = len(plan.runs) - len(todo)
    console.print(f"{len(plan.runs)} {'run' if len(plan.runs) == 1 else 'runs'}, {done} of them finished already")
    on = cores(options.workers)
    if options.on == "ray":
        cluster.connect(options.address)
    sweep.save_plan(options.out, plan, arguments, kept)
    if options.random_scores:
        random_scores.ensure(options.out, plan.tasks, tell=console.print)
    with Live(console, len(plan.runs), done) as live:
        if options.on == "ray":
            outcome = cluster.run_cluster(options.out, todo, live, options.cpus_per_run, options.memory_per_run)
        else:
            outcome = run_pool(options.out, todo, on, live, options.inexact)
    return _tell_outcome(options.out, outcome, console)


def run_random_scores(options: RandomScoresOptions, console: Console) -> int:
    tasks = suite_of(options.suite).tasks
    known = random_scores.ensure(options.out, tasks, episodes=options.episodes, again=True, tell=console.print)
    table = Table(title=f"random policy, {options.episodes} episodes")
    for column in ("task", "mean return", "std"):
        table.add_column(column, justify="left" if column == "task" else "right")
    for task in tasks:
        table.add_row(task, f"{known[task]['mean']:,.1f}", f"{known[task]['std']:,.1f}")
    console.print(table)
    console.print(f"stored in {options.out / random_scores.FILE}")
    return 0


def run_report(options: ReportOptions, console: Console) -> int:
    from implicitq.reports.report import write_report

    done = write_report(options.directory, options.version_set, options.steps)
    console.print(f"{done.page}: {done.runs} runs, {done.missing} missing or unfinished, {done.broken} broken")
    return 0


def _tell_plan(options: SweepOptions, plan: Plan, todo: list[PlannedRun], console: Console) -> None:
    if options.rate is not None and not options.rate > 0:
        raise InputError(f"rate must be a positive number, got {options.rate}")
    console.print(_plan_table(plan, todo))
    steps = sum(run.config().steps for run in todo)
    console.print(f"{len(todo)} runs to do of {len(plan.runs)}, {steps:,} environment steps")
    if not todo:
        return
    known = estimate.rates(options.out, plan, options.rate, console.print)
    for algorithm, rate in known.items():
        console.print(f"{algorithm}: {rate.steps_per_second:,.0f} steps/s on one core ({rate.source})")
    workers = len(cores(options.workers))
    expected = estimate.seconds(todo, known, workers)
    alone = estimate.seconds(todo, known, 1)
    console.print(f"expected: {duration(expected)} with {workers} worker(s); {duration(alone)} of one core in all")


def _plan_table(plan: Plan, todo: list[PlannedRun]) -> Table:
    table = Table(title=f"study {plan.study} on suite {plan.suite}")
    for column in ("line", "tasks", "runs", "to do", "steps each"):
        table.add_column(column, justify="left" if column in ("line", "tasks") else "right")
    left = {run.folder for run in todo}
    by_folder = {run.folder: run for run in plan.runs}
    for label, folders in plan.lines.items():
        runs = [by_folder[folder] for folder in folders]
        steps = sorted({run.config().steps for run in runs})
        table.add_row(
            label,
            ", ".join(dict.fromkeys(run.env for run in runs)),
            str(len(runs)),
            str(sum(folder in left for folder in folders)),
            " or ".join(f"{count:,}" for count in steps),
        )
    return table


def _tell_outcome(out: Path, outcome: Outcome, console: Console) -> int:
    for failure in outcome.failures:
        console.print(f"failed: {failure.run.folder}: {failure.reason}", markup=False)
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
