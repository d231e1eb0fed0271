"""A search over hyperparameters: trials, each a run or several, chosen by Optuna and stopped early where hopeless.

Everything is in one folder: `study.json` (what is searched), `journal.log` (Optuna's journal), the run folders of the
trials, and `best.json`, the preset of the best trial so far. The trial of a process that died is taken up again where
it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from implicitq import configs
from implicitq.configs import Config
from implicitq.events import Evaluated, Event
from implicitq.runs import layout
from implicitq.runs.files import read_json, refuse_links, write_json
from implicitq.runs.settings import differences
from implicitq.tuning import space as spaces
from implicitq.tuning import storage
from implicitq.tuning.space import Choice, Space
from implicitq.types import Evaluation, InputError, OtherConditions

if TYPE_CHECKING:
    import optuna

PLAN, TRIALS, BEST = "study.json", "trials", "best.json"
_LAST = 3  # evaluations that a score is the mean of
_FAILURES = 3  # in a row, after which it is not worth going on

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is searched, and how."""

    config: Config  # of every trial, but for what is searched
    space: Space
    seeds: int = 1  # runs of each trial
    prune: bool = True  # stop trials early that are worse than the median

    @property
    def first_prune(self) -> int | None:
        """The step before which no trial is stopped early; None for never."""
        return self.config.min_replay + self.config.steps // 10 if self.prune else None

    def to_json(self) -> dict[str, Any]:
        config = configs.to_json(self.config)
        return {"config": config, "space": spaces.to_json(self.space), "seeds": self.seeds, "prune": self.prune}


class Found(NamedTuple):
    """Where a search is."""

    finished: int
    pruned: int
    failed: int
    best: float | None
    settings: dict[str, Any]  # of the best trial


class _Pruned(Exception):
    """The trial is not worth going on with."""


def search(out: Path, plan: Plan, trials: int, tell: Tell, progress: bool = True) -> Found:
    """Go on until the study has that many trials, with those that others in the same folder make."""
    module = storage.client()
    (out / TRIALS).mkdir(parents=True, exist_ok=True)
    refuse_links(out, out / TRIALS)
    with storage.turn(out):
        _keep_plan(out, plan)
        study = storage.open_study(module, out, plan.first_prune)
    failures = 0
    while (claimed := _claim(module, out, plan, study, trials)) is not None:
        number, lock = claimed
        try:
            failure = _work(module, out, plan, study, number, tell, progress)
        finally:
            lock.close()
        failures = 0 if failure is None else failures + 1
        if failure is not None and failures >= _FAILURES:
            raise InputError(f"{failures} trials in a row have failed, the last one because {failure}")
    return _found(module, study, plan)


def _work(
    module: Any, out: Path, plan: Plan, study: optuna.Study, number: int, tell: Tell, progress: bool
) -> str | None:
    """Bring a trial to its end; gives why it failed, if it did."""
    state = module.trial.TrialState
    trial = module.trial.Trial(study, study.trials[number]._trial_id)
    score = failure = None
    try:
        settings = _settings(plan.space, trial.params)
        tell(f"trial {number}: {', '.join(f'{name} {_shown(value)}' for name, value in settings.items())}")
        score = _score_of(out, plan, trial, settings, progress)
        study.tell(number, score)
    except _Pruned:
        study.tell(number, state=state.PRUNED)
        tell(f"trial {number}: stopped early, worse than the median")
    except OtherConditions:  # its runs are well: it waits for a search under those that it began with
        raise
    except InputError as error:
        study.tell(number, state=state.FAIL)
        failure = str(error)
        tell(f"trial {number} failed: {failure}")
    if score is not None:
        with storage.turn(out):
            found = _found(module, study, plan)
            _write_best(out, plan, found)
        tell(f"trial {number}: mean return {score:,.1f}; best so far {found.best:,.1f}")
    _clear(_folder(out, number))
    return failure


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _score_of(out: Path, plan: Plan, trial: optuna.Trial, settings: dict[str, Any], progress: bool) -> float:
    """The mean over the runs of a trial, each made or gone on with."""
    scores: list[float] = []
    for number in range(plan.seeds):
        config = configs.changed(plan.config, **settings, seed=(plan.config.seed + number) % 2**32)
        folder = refuse_links(out, _folder(out, trial.number) / layout.seed_name(number))
        scores.append(_score(_train(folder, config, _Watch(trial, number * config.steps, scores), progress)))
    return float(np.mean(scores))


class _Watch:
    """Reports the evaluations of a run to Optuna, and stops the run if that finds it hopeless."""

    def __init__(self, trial: optuna.Trial, offset: int, before: list[float]) -> None:
        self._trial, self._offset, self._before = trial, offset, list(before)
        self._reported = set(trial.study.trials[trial.number].intermediate_values)
        self._seen: list[Evaluation] = []
        self.hopeless = False

    def recall(self, evaluations: list[Evaluation]) -> None:
        """Report evaluations from before a run was interrupted."""
        for evaluation in evaluations:
            self._note(evaluation)

    def __call__(self, event: Event) -> bool | None:
        if isinstance(event, Evaluated):
            self._note(event.evaluation)
        return not self.hopeless

    def _note(self, evaluation: Evaluation) -> None:
        self._seen.append(evaluation)
        step = self._offset + evaluation.step
        if step not in self._reported:
            self._trial.report(float(np.mean([*self._before, _score(self._seen)])), step)
        self.hopeless = self._trial.should_prune()


def _train(folder: Path, config: Config, watch: _Watch, progress: bool) -> list[Evaluation]:
    """All evaluations of a run to its end; it is made, gone on with, or only read."""
    from implicitq.agent import from_config, resume

    if not layout.has_run(folder):
        agent = from_config(config)
    elif _is_finished(folder, config):
        return layout.read_evaluations(folder)
    else:
        apart = differences(layout.read_config(folder), config)
        if apart:
            raise InputError(f"{folder} holds a run with other settings ({apart})")
        agent = resume(folder, config.env)
        watch.recall([each for each in layout.read_evaluations(folder) if each.step <= agent.step])
    with agent:
        if not watch.hopeless:
            agent.learn(progress=progress, out=folder if agent.directory is None else None, callback=watch)
        if watch.hopeless and agent.step < config.steps:
            raise _Pruned
    return layout.read_evaluations(folder)


def _is_finished(folder: Path, config: Config) -> bool:
    try:
        steps, _, _ = layout.read_curve(folder)
    except InputError:  # it may have been killed before it had any
        return False
    saved = layout.checkpoint_steps(folder)
    return len(steps) > 0 and int(steps[-1]) >= config.steps and (not saved or saved[-1] >= config.steps)


def _score(evaluations: list[Evaluation]) -> float:
    """The mean of the last evaluations, since a single one is noisy."""
    return float(np.mean([each.mean for each in evaluations[-_LAST:]]))


def _settings(space: Space, params: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters that Optuna has chosen."""
    found: dict[str, Any] = {}
    for name, dimension in space.items():
        value = params.get(name)
        if isinstance(dimension, Choice):
            known = {storage.category(each): each for each in dimension.values}
            value = known.get(value)
        if value is None and not (isinstance(dimension, Choice) and None in dimension.values):
            raise InputError(f"the journal of the search has no {name} for a trial")
        found[name] = value
    return found


def _claim(module: Any, out: Path, plan: Plan, study: optuna.Study, trials: int) -> tuple[int, Any] | None:
    """A trial that nobody works on: one that was left behind, or a new one; None if there are enough."""
    running = module.trial.TrialState.RUNNING
    with storage.turn(out):
        there = study.trials
        for trial in there:
            lock = storage.take(out / TRIALS, trial.number) if trial.state == running else None
            if lock is None:
                continue
            if study.trials[trial.number].state == running:
                return trial.number, lock
            lock.close()  # it has ended since the trials were read
        if len(there) >= trials:
            return None
        # A generator of its own for every trial: a search that was interrupted chooses what it would have chosen.
        seed = np.random.SeedSequence([plan.config.seed, len(there)]).generate_state(1)[0]
        draft = module.create_study(direction="maximize", sampler=module.samplers.TPESampler(seed=int(seed)))
        draft.add_trials(there)
        chosen = draft.ask(storage.distributions(module, plan.space))
        # All in one line of the journal: asked there, a trial would be written parameter by parameter.
        study.add_trial(
            module.trial.create_trial(state=running, params=chosen.params, distributions=chosen.distributions)
        )
        lock = storage.take(out / TRIALS, chosen.number)
        assert lock is not None
        return chosen.number, lock


def _keep_plan(out: Path, plan: Plan) -> None:
    """A folder holds one search: the same command goes on with it, another one is refused."""
    wanted = plan.to_json()
    if not (out / PLAN).exists():
        if any(path.name != TRIALS and not path.name.startswith(".") for path in out.iterdir()):
            raise InputError(f"{out} is not an empty folder; choose another --out")
        write_json(out / PLAN, wanted)
        return
    found = read_json(out / PLAN)
    if found == wanted:
        return
    parts = [name for name in wanted if not isinstance(found, dict) or found.get(name) != wanted[name]]
    details = ""
    if parts[0] == "config" and isinstance(found, dict) and isinstance(found.get("config"), dict):
        apart = [name for name in wanted["config"] if found["config"].get(name) != wanted["config"][name]]
        details = f" ({', '.join(apart)})"
    raise InputError(f"{out} holds a search with another {parts[0]}{details}; choose another --out")


def _found(module: Any, study: optuna.Study, plan: Plan) -> Found:
    state = module.trial.TrialState
    states = [trial.state for trial in study.trials]
    finished = [trial for trial in study.trials if trial.state == state.COMPLETE and trial.value is not None]
    best = max(finished, key=lambda trial: trial.value or 0.0, default=None)  # of equals the first
    counts = (len(finished), states.count(state.PRUNED), states.count(state.FAIL))
    return Found(*counts, None, {}) if best is None else Found(*counts, best.value, _settings(plan.space, best.params))


def _write_best(out: Path, plan: Plan, found: Found) -> None:
    about = {"env": plan.config.env, "mean_return": found.best, "trials": found.finished + found.pruned + found.failed}
    write_json(out / BEST, configs.to_preset(configs.changed(plan.config, **found.settings), about))


def _folder(out: Path, number: int) -> Path:
    return out / TRIALS / f"{number:04d}"


def _clear(folder: Path) -> None:
    """Remove what only resuming needs: checkpoints and replay, which take nearly all the room. Follows no link."""
    for seed in () if folder.is_symlink() else layout.seeds_in(folder):
        for name in (layout.REPLAY, layout.CHECKPOINTS):
            path = folder / layout.seed_name(seed) / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
