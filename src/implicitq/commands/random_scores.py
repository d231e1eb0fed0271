"""implicitq random-scores: the zero of normalised scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from implicitq.commands.display import console, table
from implicitq.commands.parsing import Folder, SuiteName, TrustSuite, default, find_modules_here, parse
from implicitq.sweeps import random_scores
from implicitq.sweeps.suites import suite_of
from implicitq.validation import refuse_modules


@dataclass(frozen=True)
class Options:
    """Measure uniformly random actions on tasks, or on every task of a suite: the zero of normalised scores.

    A sweep does this by itself; this command measures again, or for runs that no sweep made.
    """

    out: Folder  # Folder of the sweep; the scores go to random-scores.json in it.
    suite: SuiteName = "quick"
    tasks: Annotated[tuple[str, ...], default("those of the suite", "ID [ID ...]")] = ()  # These, instead of a suite's.
    trust_env: TrustSuite = False
    episodes: int = random_scores.EPISODES  # Whole episodes on every task.


def run(arguments: list[str]) -> int:
    options = parse(Options, "random-scores", arguments)
    find_modules_here(*options.tasks)
    suite = None if options.tasks else suite_of(options.suite)
    tasks = tuple(dict.fromkeys(options.tasks)) if suite is None else suite.tasks
    bounds = {} if suite is None else {task: suite.settings_on(task).get("action_bound") for task in tasks}
    if suite is not None and not options.trust_env:
        refuse_modules(tasks, options.suite, "if you trust the file, add --trust-env")
    known = random_scores.ensure(
        options.out, tasks, bounds=bounds, episodes=options.episodes, again=True, tell=console.print
    )
    shown = table(f"random policy, {options.episodes} episodes", "task", "mean return", "std", left=("task",))
    for task in tasks:
        shown.add_row(task, f"{known[task]['mean']:,.1f}", f"{known[task]['std']:,.1f}")
    console.print(shown)
    console.print(f"stored in {options.out / random_scores.FILE}")
    return 0
