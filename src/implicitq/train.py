"""The one training loop: collect, store, sample, update, evaluate.

The loop knows no algorithm by name and writes no files: it yields events, and whoever drives it shows or stores
them. Between two events the trainer is at a step boundary, where it can be saved and brought back exactly.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from implicitq import algorithms, hindsight, machine
from implicitq.algorithms.base import Seen
from implicitq.configs import Config
from implicitq.envs import spaces, statistics
from implicitq.envs.making import EnvironmentFailed, EnvironmentMaker
from implicitq.envs.statistics import Shared
from implicitq.envs.vector import Step, TrainingEnvironments
from implicitq.evaluate import Evaluator
from implicitq.events import CheckpointDue, Evaluated, Event, Measured, Ticked
from implicitq.learner import Draw, Learner, Request
from implicitq.machine import find_device
from implicitq.replay import Episode, Replay
from implicitq.types import Array, Evaluation, InputError

_LARGEST = float(np.finfo(np.float32).max)  # that the replay can hold

_CALIBRATE_EVERY = 1_000  # steps; the unit of the rate in the config

EPISODE_METRICS = ("episodes", "updates", "episode_return", "episode_length")
RESTARTS = "env_restarts"


class Best(NamedTuple):
    """The policy with the highest mean return of all evaluations so far; of equals the first."""

    step: int
    mean: float
    arrays: dict[str, Array]  # of the shipped actor
    statistics: Shared  # of the wrappers of the training environments, which it was evaluated with


class Trainer:
    """A training run in memory."""

    def __init__(
        self,
        config: Config,
        maker: EnvironmentMaker,
        eval_maker: EnvironmentMaker | None = None,
        device: str | None = None,
    ) -> None:
        """`device`: where to learn, as in `find_device`; the replay and the environments are in main memory."""
        where = find_device(device)
        self.config = config
        self.envs = TrainingEnvironments(
            maker, config.num_envs, config.vectorization, config.seed, config.on_env_error, config.env_timeout
        )
        try:
            self.spec = spaces.for_torso(self.envs.spec, config.torso)
            algorithm = algorithms.build(config, self.spec)
            self.learner = Learner(algorithm, self.spec, config, where)
            self._refuse_replay_beyond_memory()
        except InputError:
            self.envs.close()
            raise
        self.replay = Replay(
            rows=config.replay_size,
            num_envs=config.num_envs,
            observation_size=self.spec.observation_size,
            action_dimensions=self.spec.action_dimensions,
            action_dtype=self.learner.action_dtype,
            generator=np.random.default_rng((config.seed, 1)),
            discount=config.discount,
            n_step=config.n_step,
            later_steps=algorithm.needs_later_steps,
            visited=algorithm.needs_visited,
            parts=algorithm.batch_parts,
            mask_shape=self.spec.mask_shape,
            observation_dtype=self.spec.observation_dtype,
        )
        self.step = 0
        self.episodes = 0
        self.best: Best | None = None  # None before the first evaluation
        restarts = (RESTARTS,) if config.on_env_error == "restart" else ()
        watched = (*hindsight.METRICS, hindsight.PLAUSIBLE)
        self.metric_names = (*EPISODE_METRICS, *restarts, *self.learner.metric_names, *watched)
        self._eval_maker = eval_maker or maker
        apart = self._eval_maker is not maker
        self.eval_env = self._eval_maker.name if apart else None  # where it is evaluated, if not where it is trained
        self._evaluator: Evaluator | None = None
        self._within_step = False
        self._closed = False
        self._observations: Array | None = None  # [E, O]; None before the first step
        self._returns = np.zeros(config.num_envs)  # of the current episodes
        self._lengths = np.zeros(config.num_envs, np.int64)
        self._compared = np.zeros(config.num_envs, np.int64)  # up to these rows of the replay, values met their returns
        self._calibrated = np.zeros(config.num_envs, np.int64)  # up to these rows, the algorithm has learnt from that
        self._finished: list[tuple[float, int]] = []  # episodes since the last row of metrics
        self._largest_reward = 0.0  # without its sign
        self._told_implausible = False
        if apart:  # what does not fit is told before any work is lost
            try:
                self._made_evaluator()
            except BaseException:
                self.close()
                raise

    def _refuse_replay_beyond_memory(self, masks: tuple[int, int] | None = None) -> None:
        rows, spec = self.config.replay_size, self.spec
        action_dtype = self.learner.action_dtype
        row = Replay.row_bytes(
            spec.observation_size, spec.action_dimensions, action_dtype, masks, spec.observation_dtype
        )
        machine.refuse_excess(f"replay_size {rows:,}", row * rows, row * min(rows, self.config.steps))

    def steps(self, until: int) -> Generator[Event | Request, tuple[Array, Array] | None, None]:
        """Train up to the environment step `until`, and evaluate at the end.

        It gives out events, and what it asks the learner for, to which it is to be sent the answers.
        """
        if self._closed:
            raise InputError(
                "the agent was closed, and its environments with it; make a new one, or go on from a run folder with "
                "implicitq.resume"
            )
        if self._within_step:
            raise InputError(
                "the training has failed within a step, so the episodes of its environments are torn; begin with a new "
                "agent, or go on from a run folder with implicitq.resume"
            )
        if self._observations is None:
            self._made_evaluator()  # what cannot be evaluated is told before any work is lost
            self._observations = self.envs.start()
            self._check_finite(self._observations, None)
            if self.envs.masks is not None:
                self._refuse_replay_beyond_memory(self.spec.mask_shape)
            self.replay.begin(np.ones(self.config.num_envs, bool), self._observations, self.envs.masks)
        seed = self.config.seed
        while self.step < until:
            actions = yield self._draw(self._observations)
            assert actions is not None
            self._within_step = True
            self._collect(*actions)
            self._within_step = False
            if self.step >= self.config.min_replay:
                if self._due(self.config.log_every) or self.step >= until:
                    self.learner.watch()
                for _ in range(self.config.num_envs * self.config.updates_per_step):
                    yield self.replay.sample(self.config.batch_size)
            if self.learner.calibrates and self._due(_CALIBRATE_EVERY):
                self._calibrate()
            if self._due(self.config.log_every) or self.step >= until:
                yield Measured(self.step, self._take_metrics(), seed=seed)
            if self._due(self.config.eval_every) or self.step >= until:
                evaluation = self.evaluate()
                if self.best is None or evaluation.mean > self.best.mean:
                    shipped = self.learner.shipped.arrays()
                    self.best = Best(self.step, evaluation.mean, shipped, self.envs.statistics)
                yield Evaluated(evaluation, seed=seed)
            if self._due(self.config.checkpoint_every) or self.step >= until:
                yield CheckpointDue(self.step, seed=seed)
            yield Ticked(self.step, seed=seed)

    def evaluate(self) -> Evaluation:
        """Deterministic episodes with the current policy; changes nothing of the training."""
        return self._made_evaluator().run(self.learner.shipped.deterministic, self.step, self.envs.statistics)

    def _made_evaluator(self) -> Evaluator:
        if self._evaluator is None:
            made = Evaluator(self._eval_maker, self.config.eval_episodes, self.config.seed)
            own = self.envs.observation_space, self.envs.action_space
            theirs = "the environment for evaluations" if self.eval_env is None else "eval_env"
            try:
                spaces.refuse_others("training has", own, (made.observation_space, made.action_space), theirs)
            except InputError:
                made.close()
                raise
            self._evaluator = made  # which is closed with everything else
        return self._evaluator

    def begin_with(self, arrays: dict[str, Array], shared: Shared) -> None:
        """Start from the networks of a policy file and the statistics in it; before the first step."""
        self.learner.begin_with(arrays)
        self.envs.begin_with(shared)

    def _collect(self, stored: Array, coordinates: Array) -> None:
        """One step of every environment, with these actions."""
        step = self.envs.step(coordinates)
        if step.failed.any():
            stored, step = self._step_anew(stored, step.failed)
        self._check_finite(step.observations, step.rewards)
        self._largest_reward = max(self._largest_reward, float(np.abs(step.rewards).max()))
        ends = step.terminated, step.truncated
        self.replay.add(stored, step.rewards, *ends, step.observations, self.envs.masks)
        self.step += self.config.num_envs
        self._observations = self._count_episodes(step)

    def _draw(self, observations: Array) -> Draw:
        """What to ask for: the actions of this step."""
        uniform = self.config.warmup == "uniform" and self.step < self.config.min_replay
        masks = self.envs.masks
        return Draw(observations, self.step, uniform, () if masks is None else (masks,))

    def _step_anew(self, stored: Array, failed: Array) -> tuple[Array, Step]:
        """Cut the episodes of environments that failed, as a time limit would, and take the step in new ones.

        The step that failed leaves no trace: the last observation before it becomes the last one of its episode.
        """
        self.replay.end_open_episodes(failed)
        self._returns[failed] = 0
        self._lengths[failed] = 0
        observations = self.envs.restart(failed)
        self._check_finite(observations, None)
        self.replay.begin(failed, observations, self.envs.masks)
        answer = self.learner.answer(self._draw(observations))
        assert answer is not None
        again, coordinates = answer
        return np.where(failed[:, None], again, stored), self.envs.step(coordinates, failed)

    def _count_episodes(self, step: Step) -> Array:
        """Book the rewards, begin new episodes where one has ended, and give the observations to act on."""
        self._returns += step.rewards
        self._lengths += 1
        ended = step.terminated | step.truncated
        if not ended.any():
            return step.observations
        self._finished += [(float(self._returns[i]), int(self._lengths[i])) for i in np.flatnonzero(ended)]
        self.episodes += int(ended.sum())
        self._returns[ended] = 0
        self._lengths[ended] = 0
        observations = self.envs.next_episodes(ended)
        self._check_finite(observations, None)
        self.replay.begin(ended, observations, self.envs.masks)
        return observations

    def _due(self, every: int) -> bool:
        """Whether this step reached or passed a multiple of `every`."""
        return self.step // every > (self.step - self.config.num_envs) // every

    def _take_metrics(self) -> dict[str, float]:
        learnt = self.learner.take_metrics()
        for name, value in learnt.items():
            if not np.isfinite(value):
                raise InputError(
                    f"{name} became {value} by step {self.step}: the training diverged; try a lower learning_rate "
                    "or temperature"
                )
        returns, lengths = zip(*self._finished, strict=True) if self._finished else ((), ())
        self._finished = []
        row = {
            "episodes": self.episodes,
            "updates": self.learner.updates,
            "episode_return": float(np.mean(returns)) if returns else np.nan,
            "episode_length": float(np.mean(lengths)) if lengths else np.nan,
        }
        if RESTARTS in self.metric_names:
            row[RESTARTS] = self.envs.restarts
        row |= {name: learnt.get(name, np.nan) for name in self.learner.metric_names}
        ended, self._compared = self._ended(self._compared)
        row |= self._compare_values(ended)
        return row | {hindsight.PLAUSIBLE: self._plausible_value(row)}

    def _plausible_value(self, row: dict[str, float]) -> float:
        """What rewards can explain; a warning, once, if the values of this row are far beyond it."""
        temperature = row.get("temperature", np.nan)  # of those that learn it
        if np.isnan(temperature):
            temperature = self.config.fixed_temperature
        dimensions, discount = self.spec.action_dimensions, self.config.discount
        plausible = hindsight.plausible_value(self._largest_reward, temperature, dimensions, discount)
        if hindsight.is_implausible(row.get("value", np.nan), plausible) and not self._told_implausible:
            self._told_implausible = True
            warnings.warn(
                f"the mean value is {row['value']:,.0f} at step {self.step:,}, where rewards so far explain at most "
                f"{plausible:,.0f}: the training has diverged, or is about to; try a lower learning_rate, a smaller "
                "target_update, or normalize_observations",
                stacklevel=2,
            )
        return plausible

    def _ended(self, since: Array) -> tuple[list[Episode], Array]:
        """Episodes that have ended since these rows, none before the first update; and the rows to go on from."""
        episodes, now = self.replay.episodes(since)
        return [] if self.step < self.config.min_replay else episodes, now

    def _compare_values(self, episodes: list[Episode]) -> dict[str, float]:
        """Compare values with the returns that followed."""
        actor, config = self.learner.newest, self.config
        return hindsight.compare(episodes, actor.value, actor.regularization, config.discount, config.n_step)

    def _calibrate(self) -> None:
        """Tell the learner how far its values were off. Apart from the metrics, so that logging changes nothing."""
        ended, self._calibrated = self._ended(self._calibrated)
        found = self._compare_values(ended)
        overestimation, spread = (found[name] for name in hindsight.METRICS)
        learnt = self.step > self.config.min_replay
        if learnt and spread > 0:  # not so for nan, where no episode has ended
            self.learner.calibrate(
                Seen(
                    overestimation / spread,
                    *hindsight.range_of_returns(ended, self.config.discount),
                    self.learner.updates,
                )
            )

    def _check_finite(self, observations: Array, rewards: Array | None) -> None:
        """Refuse what would poison the replay; `rewards` is None after a reset."""
        if rewards is not None and not (np.abs(rewards) <= _LARGEST).all():
            raise InputError(
                f"the environment gave a reward of {rewards[~(np.abs(rewards) <= _LARGEST)][0]} at step "
                f"{self.step + 1}; rewards must be finite numbers up to {_LARGEST:.1e}"
            )
        if not np.isfinite(observations).all():
            index = int(np.argwhere(~np.isfinite(observations))[0][1])
            raise InputError(
                f"the environment gave an observation with {observations[~np.isfinite(observations)][0]} in feature "
                f"{index} at step {self.step + (rewards is not None)}; observations must be finite"
            )

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """All that is needed to go on exactly, but for the rows of the replay: arrays and plain data."""
        if self._observations is None:
            raise InputError("nothing to save before the first step")
        arrays = {f"learner.{name}": array for name, array in self.learner.arrays().items()}
        arrays |= {f"envs.{name}": array for name, array in self.envs.arrays().items()}
        arrays |= {"observations": self._observations, "returns": self._returns, "lengths": self._lengths}
        if self.envs.masks is not None:
            arrays["masks"] = self.envs.masks.astype(np.uint8)
        data = {
            "step": self.step,
            "episodes": self.episodes,
            "finished": self._finished,
            "replay": self.replay.state(),
            "compared": self._compared.tolist(),
            "largest_reward": self._largest_reward,
        }
        if self.learner.calibrates:
            data["calibrated"] = self._calibrated.tolist()
        if RESTARTS in self.metric_names:
            data[RESTARTS] = self.envs.restarts
        if self.best is not None:
            arrays |= {f"best.{name}": array for name, array in self.best.arrays.items()}
            arrays |= {f"best_statistics.{name}": array for name, array in self.best.statistics.items()}
            data["best"] = {"step": self.best.step, "mean": self.best.mean}
        return arrays, data

    def restore(self, arrays: dict[str, Array], data: dict[str, Any]) -> None:
        """Inverse of `state`, once the rows of the replay are back."""
        self.learner.load_arrays(under("learner.", arrays))
        self.step, self.episodes = data["step"], data["episodes"]
        self._finished = [(float(total), int(length)) for total, length in data["finished"]]
        self._returns, self._lengths = np.array(arrays["returns"]), np.array(arrays["lengths"])
        saved = np.array(arrays["observations"])
        masks = arrays["masks"].astype(bool) if "masks" in arrays else None
        self.replay.restore_state(data["replay"], saved, masks)
        # Some files lack these; and a salvaged replay has fewer rows than they count.
        self._compared = np.minimum(data.get("compared", self.replay.written), self.replay.written)
        self._calibrated = np.minimum(data.get("calibrated", self.replay.written), self.replay.written)
        self._largest_reward = data.get("largest_reward", self.replay.largest_reward())  # some files lack it
        best = data.get("best")  # some files lack it, such as those before the first evaluation
        shared = statistics.checked(under("best_statistics.", arrays))
        self.best = None if best is None else Best(best["step"], best["mean"], under("best.", arrays), shared)
        self.envs.restarts = data.get(RESTARTS, 0)
        self._observations = self.envs.restore(under("envs.", arrays))
        now = self.envs.masks
        if (now is None) != (masks is None):
            had, has = ("without", "gives some") if masks is None else ("with", "gives none")
            raise EnvironmentFailed(f"the run was trained {had} action masks, but its environment {has}")
        alike = now is None or masks is None or np.array_equal(now, masks)
        if not (alike and np.array_equal(self._observations, saved)):
            self._start_over_episodes()

    def _start_over_episodes(self) -> None:
        warnings.warn(
            "the environment did not come back to where it was: its behaviour is not fixed by reset(seed). The run "
            "goes on with new episodes, so it will differ from one that was never interrupted.",
            stacklevel=2,
        )
        everywhere = np.ones(self.config.num_envs, bool)
        self.replay.end_open_episodes(everywhere)
        self._returns[:] = 0
        self._lengths[:] = 0
        self._observations = self.envs.next_episodes(everywhere)
        self.replay.begin(everywhere, self._observations, self.envs.masks)

    def close(self) -> None:
        self._closed = True
        self.envs.close()
        if self._evaluator is not None:
            self._evaluator.close()


def under(prefix: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """The entries whose names begin with the prefix, under names without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
