"""Agents of several seeds that learn one task in lockstep, with their networks stacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from implicitq import agent as agents
from implicitq.agent import Agent, InStep
from implicitq.configs import Config
from implicitq.driver import Audience, drive_together
from implicitq.envs.making import EnvironmentSource
from implicitq.events import AnyListener, Event, as_listeners, with_agent
from implicitq.machine import TOGETHER
from implicitq.runs.layout import POLICY, checkpoint_steps, read_versions, seed_name, seeds_in
from implicitq.stacking import Together
from implicitq.types import Evaluation, InputError
from implicitq.validation import brief

AgentListener = Callable[[Agent, Event], bool | None]


class Seeds:
    """One agent for each seed, in `agents`; they are all at the same step.

    Every one acts, is evaluated and saved by itself, and has a run folder of its own. They learn together.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.agents = tuple(agents)
        seeds = self.seeds if len(agents) > 1 else ()
        for agent in agents:
            agent.together = seeds
        self._together = Together([agent.trainer for agent in agents])
        self.directory: Path | None = None

    @staticmethod
    def from_config(
        config: Config,
        seeds: Iterable[int],
        env: EnvironmentSource | None = None,
        *,
        eval_env: EnvironmentSource | None = None,
        device: str | None = None,
    ) -> Seeds:
        """Untrained agents for a config, one for each seed; the seed of the config is not used."""
        chosen = check_seeds(seeds)
        made: list[Agent] = []
        with _closing(made) as failed:
            for seed in chosen:
                alone = dataclasses.replace(config, seed=seed)
                made.append(agents.from_config(alone, env, eval_env=eval_env, device=device, copies=bool(made)))
            failed.pop_all()
        return Seeds(made)

    def __repr__(self) -> str:
        config = self.agents[0].config
        return f"<Seeds {brief(self.seeds)}: {config.algorithm} on {config.env}, step {self.step:,}>"

    def __enter__(self) -> Seeds:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(agent.config.seed for agent in self.agents)

    @property
    def step(self) -> int:
        """Environment steps that every seed was trained for so far."""
        return self.agents[0].step

    def learn(
        self,
        steps: float | None = None,
        *,
        progress: bool = False,
        out: str | Path | None = None,
        track: Iterable[str] | None = None,
        callback: AnyListener | AgentListener | Iterable[AnyListener | AgentListener] = (),
        listeners: AnyListener | Iterable[AnyListener] = (),
    ) -> Seeds:
        """Train all seeds for `steps` more environment steps each; by default, up to `config.steps`.

        With `out`, the first call makes a run folder for every seed below it: out/seed-0, out/seed-1, ... A `callback`
        or several, and `listeners`, are those of `Agent.learn`: each hears the events of all seeds, and `event.seed`
        says which seed it is; one that takes two arguments gets the agent of that seed first. What stops one seed,
        such as False from any of them, or an environment that fails, stops all; the others have a checkpoint at the end
        of that step.
        """
        until = self.agents[0].until(steps)
        called: list[Any] = as_listeners("callback", callback)
        shared = as_listeners("listeners", listeners)
        if out is not None:
            self._claim(Path(out))
        shown = agents.display(len(self.agents)) if progress and until > self.step else []
        with ExitStack() as failed:
            audiences = []
            for agent in self.agents:
                failed.enter_context(agent.closed_on_failure())
                ours = agent.begin(None if out is None else Path(out) / seed_name(agent.config.seed), track, until)
                audiences.append(Audience([*ours, *with_agent(called, agent), *shared, *shown], agent))
            drive_together(self._together, until, audiences)
        self.agents[0].warn_if_untrained()
        return self

    def _claim(self, out: Path) -> None:
        """Take the folder for all seeds; refused if it is in use, before a folder of any seed is made."""
        if self.directory is not None and self.directory.resolve() == out.resolve():
            return  # as in a loop around learn
        if self.directory is not None:
            raise InputError(f"these agents already write to {self.directory}")
        if seeds_in(out):
            raise InputError(f"{out} already holds runs; go on with: implicitq resume {out}, or choose another --out")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} is not an empty folder; choose another --out")
        self.directory = out

    def evaluate(self, episodes: int = 10, **options: Any) -> dict[int, Evaluation]:
        """`Agent.evaluate` of every seed."""
        return {agent.config.seed: agent.evaluate(episodes, **options) for agent in self.agents}

    def extend(self, steps: int) -> None:
        """Plan for `steps` environment steps in total; kept in the run folders."""
        for agent in self.agents:
            agent.extend(steps)

    def start_from(self, path: str | Path) -> Seeds:
        """Begin with the weights of one policy, the same for all; before `learn`."""
        for agent in self.agents:
            agent.start_from(path)
        return self

    def close(self) -> None:
        """Close environments and run folders."""
        for agent in self.agents:
            agent.close()


def resume(directory: str | Path, env: EnvironmentSource | None = None, **options: Any) -> Seeds:
    """The agents of a folder that `Seeds.learn` made, where all of them had their last checkpoint.

    `options` are those of `implicitq.resume`. Exact if the same seeds go on together that began together.
    """
    directory = Path(directory)
    seeds = _seeds_of(directory)
    folders = [directory / seed_name(seed) for seed in seeds]
    together, steps = seeds if len(seeds) > 1 else [], _common_steps(folders)
    while True:
        made: list[Agent] = []
        with _closing(made) as failed:
            for folder in folders:
                in_step = InStep(together, steps, not made)
                made.append(agents.resume(folder, env, in_step=in_step, **options))
            _refuse_different(made)
            least = min(agent.step for agent in made)
            if all(agent.step == least for agent in made):
                for agent in made:  # only now, when all can go on
                    agent.branch()
                failed.pop_all()
                group = Seeds(made)
                group.directory = directory
                group.extend(max(agent.config.steps for agent in made))  # one of them may have gone on alone
                return group
        steps = {step for step in steps if step <= least}  # one of them had a damaged checkpoint


def extend_or_close(agent: Agent | Seeds, steps: int) -> bool:
    """Plan for `steps` environment steps in total; if none of them are ahead, close it instead and give False."""
    if agent.step >= steps:
        agent.close()
        return False
    agent.extend(steps)
    return True


def check_seeds(seeds: Any) -> list[int]:
    """Refuse what is no list of different seeds; a config says which numbers can be seeds."""
    found = list(seeds) if isinstance(seeds, Iterable) else []
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) for seed in found)
    if not found or not whole or len(set(found)) < len(found):
        raise InputError(f"seeds must be different whole numbers, such as [0, 1, 2], got {brief(seeds)}")
    return found


def _closing(made: Sequence[Agent]) -> ExitStack:
    """Closes the agents made so far at the end of a `with` block, unless `pop_all` is called."""
    stack = ExitStack()
    stack.callback(lambda: [agent.close() for agent in made])
    return stack


def _seeds_of(directory: Path) -> list[int]:
    """The seeds of a folder, in the order in which they are stacked."""
    found = seeds_in(directory)
    if not found:
        raise InputError(f"{directory} holds no run folders of seeds, such as {seed_name(0)}")
    began = (read_versions(directory / seed_name(found[0])) or {}).get(TOGETHER)
    if not isinstance(began, list) or not all(isinstance(seed, int) for seed in began):
        return found
    missing = [seed for seed in began if seed not in found]
    if missing:
        raise InputError(
            f"{directory} has no {seed_name(missing[0])}, which was trained together with {brief(found)}; put it back, "
            f"or go on with each of the others alone, such as implicitq resume {directory / seed_name(found[0])} "
            "--inexact"
        )
    return [*began, *(seed for seed in found if seed not in began)]


def _common_steps(folders: Sequence[Path]) -> set[int]:
    """Steps at which all have a checkpoint; empty if one of them has none yet."""
    steps = {folder: set(checkpoint_steps(folder)) for folder in folders}
    common = set.intersection(*steps.values())
    begun = [folder for folder in folders if steps[folder]]
    died_early = len(begun) < len(folders) and all(len(steps[folder]) == 1 for folder in begun)
    gone = [folder for folder in folders if not steps[folder] and (folder / POLICY).exists()]
    if gone:
        raise InputError(f"the checkpoints of {gone[0]} are gone, so it cannot be trained on together with the others")
    if not common and begun and not died_early:
        raise InputError(
            f"the seeds of {folders[0].parent} have no checkpoint at the same step, so they cannot go on together; "
            f"go on with each alone, such as implicitq resume {folders[0]} --inexact"
        )
    return common


def _refuse_different(made: Sequence[Agent]) -> None:
    """Refuse agents whose configs differ in more than the seed and the plan."""
    first = made[0].config
    for agent in made[1:]:
        values = dataclasses.asdict(agent.config)
        apart = [name for name, value in dataclasses.asdict(first).items() if values.get(name) != value]
        different = [name for name in apart if name not in ("seed", "steps")]
        if type(agent.config) is not type(first) or different:
            raise InputError(
                f"seeds {first.seed} and {agent.config.seed} cannot be trained together: they differ in "
                f"{', '.join(different) or 'their algorithms'}"
            )
