"""The Python face: make, learn, predict, evaluate, save, load, resume."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import gymnasium as gym
import numpy as np

from implicitq import configs, trackers
from implicitq.configs import MOST_STEPS, Config
from implicitq.driver import Interrupted, drive
from implicitq.envs import masks, spaces
from implicitq.envs.making import EnvironmentFailed, EnvironmentMaker, EnvironmentSource, is_object
from implicitq.envs.statistics import Shared, Statistics
from implicitq.envs.vector import EVALUATION, episode_seed
from implicitq.evaluate import Evaluator
from implicitq.events import AnyListener, as_listeners, with_agent
from implicitq.learner import Actor
from implicitq.machine import find_device
from implicitq.runs import hub, policy_file
from implicitq.runs.branches import check_changes, other_meaning
from implicitq.runs.files import refuse_links
from implicitq.runs.folder import RunFolder, Start
from implicitq.runs.layout import BEST, POLICY, has_run, seeds_in
from implicitq.train import Trainer
from implicitq.types import Array, Evaluation, InputError
from implicitq.validation import refuse_modules, whole_number

if TYPE_CHECKING:
    from implicitq.seeds import Seeds

_PREDICTIONS = 2**31  # sampled predictions draw from numbers that training does not reach


class InStep(NamedTuple):
    """How a run is resumed together with those of other seeds."""

    seeds: Sequence[int]  # all seeds; empty if there is only one
    steps: Collection[int]  # steps at which all of them have a checkpoint
    first: bool  # it is the first seed, which uses environment objects themselves; the others use copies


class Agent:
    """A policy with its value, ready to act, and to learn if it came from `make` or `resume`.

    `config` has all settings, `observation_space` and `action_space` are those of the environment. It can be used in a
    `with` statement, which closes the environments and the run folder at its end.
    """

    def __init__(
        self,
        config: Config,
        observation_space: gym.Space,
        action_space: gym.Space,
        actor: Actor,
        eval_maker: EnvironmentMaker | None,
        step: int = 0,
        trainer: Trainer | None = None,
        run: RunFolder | None = None,
        trust_env: bool = False,
        statistics: Shared | None = None,
    ) -> None:
        """Without `eval_maker`, the environment that the config names is made when needed; see `load`."""
        self.config = config
        self.observation_space = observation_space
        self.action_space = action_space
        self._to_environment = spaces.to_environment(action_space)
        self._actor = actor
        self._eval_maker = eval_maker
        self._loaded_step = step
        self._trainer = trainer
        self._run = run
        self._trust_env = trust_env
        self._loaded_statistics = statistics or {}
        self._predictions = 0
        self._start: Start | None = None
        self.planned = True  # whether somebody chose config.steps, which else is the default
        self.together: Sequence[int] = ()  # the seeds that it learns together with, including its own

    def __repr__(self) -> str:
        config, folder = self.config, "" if self.directory is None else f", run folder {str(self.directory)!r}"
        ability = "acts and learns" if self._trainer is not None else "acts"
        return f"<Agent {config.algorithm} on {config.env}, seed {config.seed}, step {self.step:,}, {ability}{folder}>"

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    @property
    def step(self) -> int:
        """Environment steps trained so far."""
        return self._trainer.step if self._trainer is not None else self._loaded_step

    @property
    def statistics(self) -> dict[str, Array]:
        """Mean, variance and count of what wrappers of the training environments have seen, such as
        `NormalizeObservation.obs_rms.mean`; of several environments together. Empty without such wrappers."""
        return self._trainer.envs.statistics if self._trainer is not None else dict(self._loaded_statistics)

    @property
    def temperature(self) -> float:
        """T of the policy and its value: that of the config or, where it is learnt, what it is now."""
        learnt = self._actor.arrays().get("networks.log_temperature")
        return self.config.fixed_temperature if learnt is None else float(np.exp(learnt))

    @property
    def directory(self) -> Path | None:
        """The run folder, if there is one."""
        return self._run.directory if self._run is not None else None

    def learn(
        self,
        steps: float | None = None,
        *,
        progress: bool = False,
        out: str | Path | None = None,
        track: Iterable[str] | None = None,
        callback: AnyListener | Iterable[AnyListener] = (),
        listeners: AnyListener | Iterable[AnyListener] = (),
    ) -> Agent:
        """Train for `steps` more environment steps; by default, up to `config.steps`.

        `progress` shows a progress bar. With `out`, the first call makes a run folder there, which `implicitq.resume`
        can go on from. `steps` is then the plan that the folder keeps, if `make` was given none, or if it goes beyond.

        `track` names trackers, "tensorboard" or "wandb", whose files lie in the run folder. Without it, a run that had
        some before keeps them; an empty list ends that.

        A `callback`, or every one of a list, is a function that receives every event and stops the run by returning
        False; see `implicitq.callbacks` for some. One that takes two arguments gets the agent first. `listeners` take
        functions of the event alone. Both may be objects with `on_event`.
        """
        if self.together:
            raise InputError("this agent learns in step with other seeds; call learn of the Seeds that it belongs to")
        trainer, until = self.trainer, self.until(steps)
        theirs = [*with_agent(as_listeners("callback", callback), self), *as_listeners("listeners", listeners)]
        ours = self.begin(out, track, until)
        shown = display() if progress and until > trainer.step else []
        with self.closed_on_failure():
            drive(trainer, until, [*ours, *theirs, *shown], self)
        self.warn_if_untrained()
        return self

    def warn_if_untrained(self) -> None:
        """Say that no update was made, where none is to come by the plan."""
        ended = self.step >= self.config.steps if self.planned else self.step > 0
        if ended and self.trainer.learner.updates == 0:
            warnings.warn(
                f"no update was made: the first one comes after {self.config.min_replay:,} steps (min_replay), and the "
                "policy is untrained until then",
                stacklevel=3,
            )

    @property
    def trainer(self) -> Trainer:
        """The trainer; InputError for an agent that only acts."""
        if self._trainer is None:
            raise InputError(
                "this agent came from a policy file, which holds no replay and no optimiser; "
                "use implicitq.resume(run_folder) to train on"
            )
        return self._trainer

    def until(self, steps: float | None) -> int:
        """The step at which `learn(steps)` is to end."""
        if steps is None:
            return self.config.steps
        until = self.trainer.step + whole_number("steps", steps, 0)
        if until > MOST_STEPS:
            raise InputError(f"a run has at most {MOST_STEPS:,} steps, got {until:,}")
        return until

    def begin(self, out: str | Path | None, track: Iterable[str] | None, until: int) -> list[AnyListener]:
        """Begin to learn up to the step `until`: make the run folder if there is to be one, and give the listeners
        that keep the run."""
        trackers.require(track or ())
        if out is not None:
            self._begin_run(Path(out))
        if self._run is not None and self._run.closed:
            raise InputError(f"the training has ended; go on with implicitq.resume({str(self._run.directory)!r})")
        if self._run is not None and until > 0 and (until > self.config.steps or not self.planned):
            self.extend(until)
            self.planned = True
        return [*self._trackers(track), *([] if self._run is None else [self._run])]

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """Close the run folder if the block fails: it would stay locked in this process. A signal is no failure."""
        try:
            yield
        except Interrupted:
            raise
        except BaseException:
            if self._run is not None:
                self._run.close()
            raise

    def start_from(self, path: str | Path) -> Agent:
        """Begin with the weights of a policy file or run folder instead of random ones; before `learn`.

        They must have the shapes of this agent's. Its run folder keeps them, and notes where they come from.
        """
        if self._trainer is None or self.step > 0 or self._run is not None:
            raise InputError("start_from is for an agent that came from make, before its first step")
        path = Path(path)
        found = policy_file.read(_policy_in(path, best=False) if path.is_dir() else path)
        try:
            self._refuse_other_meaning(found)
            self._trainer.begin_with(found.actor.arrays(), found.statistics)
        except InputError as error:
            raise InputError(f"{path} does not fit this agent: {error}") from None
        content = policy_file.content(
            found.config,
            found.observation_space,
            found.action_space,
            found.actor.arrays(),
            found.step,
            found.statistics,
        )
        told = f"{found.config.algorithm} on {found.config.env}, seed {found.config.seed}, after {found.step:,} steps"
        self._start = Start(content, told)
        return self

    def _refuse_other_meaning(self, found: policy_file.PolicyFile) -> None:
        """Refuse weights of the same shapes that would stand for another policy here."""
        kinds = type(found.action_space).__name__, type(self.action_space).__name__
        apart = {"actions": kinds} if len(set(kinds)) > 1 else {}
        apart |= other_meaning(found.config, vars(self.config))
        for name, (theirs, own) in apart.items():
            raise InputError(f"its weights were learnt with {name} {theirs!r}, this agent has {own!r}")

    def branch(self) -> None:
        """Note in the run folder that the run goes on with other settings, if it does."""
        if self._run is not None and self._run.config != self.config:
            self._run.branch(self.config)

    def extend(self, steps: int) -> None:
        """Plan for `steps` environment steps in total instead of `config.steps`; kept in the run folder."""
        if steps == self.config.steps:
            return  # or the run folder would be written to for nothing
        self.config = dataclasses.replace(self.config, steps=steps)
        if self._trainer is not None:
            self._trainer.config = self.config  # which listeners are told
        if self._run is not None:
            self._run.replan(self.config)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Array, Any]:
        """Action(s) for one observation or a batch, with the signature of Stable-Baselines3.

        Drawn from the policy, or with `deterministic` the one to take when not exploring. `action_masks` says which
        actions are allowed, as in sb3-contrib: a 0 or 1 for each choice. `state` and `episode_start` are there for the
        signature: `state` comes back as it is.
        """
        rows, batched = spaces.flatten_any(self.observation_space, observation)
        masks = self._masks(action_masks, len(rows))
        if deterministic:
            coordinates = self._actor.deterministic(_padded(rows), *masks)
        else:
            self._predictions += 1
            _, coordinates = self._actor.sample(_padded(rows), _PREDICTIONS + self._predictions, *masks)
        actions = self._to_environment(np.asarray(coordinates)[: len(rows)])
        return (actions if batched else actions[0]), state

    def value(self, observation: Any, action_masks: Any = None) -> Array:
        """V(s), the soft value: float32 with the leading shape of the input. docs/algorithms.md says how it is made."""
        return self._ask(self._actor.value, observation, None, action_masks)

    def log_prob(self, observation: Any, action: Any, action_masks: Any = None) -> Array:
        """ln pi(a|s); for a `Box`, of the probability mass of the nearest bin.

        Gaussian policies, SAC and `log_policy="density"` have a density instead, in coordinates where the
        bounds are -1 and 1.
        """
        return self._ask(self._actor.log_prob, observation, action, action_masks)

    def q_value(self, observation: Any, action: Any, action_masks: Any = None) -> Array:
        """Q(s, a). For IQ it is temperature * ln pi + V (Eq. 1), with the entropy target added to a centred ln pi.

        For M-IQ, Q - V is the soft advantage divided by (1 - alpha).
        """
        return self._ask(self._actor.q_value, observation, action, action_masks)

    def evaluate(
        self, episodes: int = 10, *, seed: int | None = None, deterministic: bool = True, render: bool = False
    ) -> Evaluation:
        """Returns and lengths of whole episodes, on environments of their own.

        Actions are deterministic, or sampled: the same ones for the same seed. With `render`, the episodes are played
        one after the other in a window.
        """
        episodes = whole_number("episodes", episodes, 1)
        chosen = self.config.seed if seed is None else whole_number("seed", seed, 0, 2**32 - 1)
        act = self._actor.deterministic if deterministic else self._sampling(chosen)
        evaluator = Evaluator(self.environments(), episodes, chosen, shown=render)
        try:
            self._refuse_other_spaces(evaluator.observation_space, evaluator.action_space)
            return evaluator.run(act, self.step, self.statistics)
        finally:
            evaluator.close()

    def prepare(self, env: gym.Env) -> gym.Env:
        """Let the wrappers of an environment of yours use the statistics of training, as evaluations do; gives it back.

        For a loop of your own around `predict`. NormalizeObservation scales as it did in training, NormalizeReward no
        more, and both are frozen. An environment without such wrappers stays as it is.
        """
        own = Statistics(env)
        for sentence in own.misfits(self.statistics):
            warnings.warn(sentence, stacklevel=2)
        own.adopt(self.statistics)
        return env

    def _sampling(self, seed: int) -> Callable[..., Any]:
        """A function that samples actions; the seed and the number of the call pick the random numbers."""
        numbers = itertools.count(episode_seed(seed, EVALUATION, 0, 0))
        return lambda rows, *mask: self._actor.sample(rows, next(numbers) % 2**32, *mask)[1]

    def environments(self) -> EnvironmentMaker:
        """A maker of environments to play in, none of which is in use elsewhere."""
        if self._eval_maker is None:
            name = self.config.env
            if is_object(name):
                raise InputError("the policy was trained on an environment object; give it as load(path, env=...)")
            source = _from_file(name, "the policy", self._trust_env)
            self._eval_maker = EnvironmentMaker(source, action_bound=self.config.action_bound)
        return self._eval_maker.of_copies()

    def policy_function(self) -> tuple[Callable[[Any], Any], int]:
        """The deterministic policy as a JAX function from flat observations [B, O] to coordinates [B, D], and O."""
        return self._actor.deterministic, spaces.flat_size(self.observation_space)

    def save(self, path: str | Path) -> None:
        """Write the policy and its value to one file; `implicitq.load` reads it back."""
        spaces = self.observation_space, self.action_space
        policy_file.save(Path(path), self.config, *spaces, self._actor, self.step, self.statistics)

    def close(self) -> None:
        """Close environments and the run folder."""
        if self._trainer is not None:
            self._trainer.close()
        if self._run is not None:
            self._run.close()

    def _refuse_other_spaces(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        own = self.observation_space, self.action_space
        spaces.refuse_others("the policy is for", own, (observation_space, action_space))

    def _trackers(self, track: Iterable[str] | None) -> list[trackers.Tracking]:
        """The trackers. They hear events before the run folder, so that a checkpoint is never ahead of them."""
        if self._run is None:
            if track:
                raise InputError("track needs a run folder, which holds its files: give out=")
            return []
        choice = trackers.chosen(track, self._run.tracking)
        if choice["trackers"] or self._run.tracking is not None:
            self._run.note_tracking(choice)
        return trackers.build(choice, self._run.directory)

    def _begin_run(self, directory: Path) -> None:
        assert self._trainer is not None
        if self._run is not None and self._run.directory.resolve() == directory.resolve():
            return  # as in a loop around learn
        if self._run is not None:
            raise InputError(f"this agent already writes to {self._run.directory}")
        if self._trainer.step > 0:
            raise InputError("out must be given with the first call of learn: a run folder holds the whole run")
        run = RunFolder.create(directory, self.config, self._start, self.together, self._trainer.eval_env)
        try:
            run.prepare(self._trainer)
        except BaseException:
            run.close()
            raise
        self._run = run

    def _ask(self, compiled: Callable[..., Any], observation: Any, action: Any, action_masks: Any) -> Array:
        rows, batched = spaces.flatten_any(self.observation_space, observation)
        inputs = [_padded(rows)]
        if action is not None:
            inputs.append(_padded(spaces.from_environment(self.action_space, action, len(rows))))
        inputs += self._masks(action_masks, len(rows))
        answer = np.asarray(compiled(*inputs), np.float32)[: len(rows)]
        return answer if batched else answer[0]

    def _masks(self, given: Any, batch: int) -> list[Array]:
        """The masks [B, D, N] for a padded batch, if there are any."""
        if given is None:
            return []
        categories = spaces.spec_of(self.observation_space, self.action_space).categories
        if categories is None:
            raise InputError(f"action_masks are for discrete actions, those of the policy are {self.action_space}")
        return [~_padded(~masks.read(given, categories, batch))]


@overload
def make(
    algorithm: str,
    env: EnvironmentSource,
    *,
    eval_env: EnvironmentSource | None = None,
    seeds: None = None,
    device: str | None = None,
    **hyperparameters: Any,
) -> Agent: ...


@overload
def make(
    algorithm: str,
    env: EnvironmentSource,
    *,
    eval_env: EnvironmentSource | None = None,
    device: str | None = None,
    seeds: Iterable[int],
    **hyperparameters: Any,
) -> Seeds: ...


def make(
    algorithm: str,
    env: EnvironmentSource,
    *,
    eval_env: EnvironmentSource | None = None,
    device: str | None = None,
    seeds: Iterable[int] | None = None,
    **hyperparameters: Any,
) -> Agent | Seeds:
    """An untrained agent for a Gymnasium id, an environment object, or a function that makes one.

    `algorithm` is a name such as "miq" or "sac". Evaluations are made on copies of `env`, or on `eval_env` if that is
    given. It learns and acts on `device`, such as `gpu` or `cpu:1`; None: where JAX puts things. `hyperparameters`
    override those of the preset, under the names of `implicitq.configs`. With `seeds`, one agent for each of them,
    which learn in step in one process: `implicitq.seeds.Seeds`.
    """
    config = configs.resolve(algorithm, EnvironmentMaker(env).name, **hyperparameters)
    planned = "steps" in hyperparameters
    if seeds is None:
        agent = from_config(config, env, eval_env=eval_env, device=device)
        agent.planned = planned
        return agent
    from implicitq.seeds import Seeds  # which is made of agents

    if "seed" in hyperparameters:
        raise InputError("give seed for one agent, or seeds for several, not both")
    group = Seeds.from_config(config, seeds, env, eval_env=eval_env, device=device)
    for agent in group.agents:
        agent.planned = planned
    return group


def from_config(
    config: Config,
    env: EnvironmentSource | None = None,
    *,
    eval_env: EnvironmentSource | None = None,
    device: str | None = None,
    copies: bool = False,
) -> Agent:
    """An untrained agent for a whole config; `env` stands in for the config's id where that is not enough.

    With `copies`, only copies of environment objects are used.
    """
    return _agent(config, EnvironmentMaker(config.env if env is None else env), eval_env, device, copies=copies)


def load(
    path: str | Path,
    env: EnvironmentSource | None = None,
    *,
    best: bool = False,
    trust_env: bool = False,
    device: str | None = None,
) -> Agent:
    """The agent of a policy file or of a run folder; it can act, but not learn on.

    A run folder gives the policy of its newest checkpoint, or, with `best`, of the evaluation with the highest mean.
    `hf://owner/name`, or `hf://owner/name@revision`, is a policy on the Hugging Face Hub (`implicitq push`): one file
    is fetched, and read like any other. Nothing that is loaded runs code.

    It is evaluated on `env`, or on the id that the file names. An id that makes Gymnasium import a module, such as
    `module:Id`, is refused there unless `trust_env`: a file must not choose what code runs.
    """
    found = policy_file.read(_policy_at(path, best), find_device(device))
    maker = EnvironmentMaker(env, action_bound=found.config.action_bound) if env is not None else None
    agent = Agent(
        found.config,
        found.observation_space,
        found.action_space,
        found.actor,
        maker,
        found.step,
        trust_env=trust_env,
        statistics=found.statistics,
    )
    if maker is not None:
        made = maker.of_copies()()
        agent._refuse_other_spaces(made.observation_space, made.action_space)
        made.close()
    return agent


def resume(
    directory: str | Path,
    env: EnvironmentSource | None = None,
    *,
    eval_env: EnvironmentSource | None = None,
    inexact: bool = False,
    salvage: bool = False,
    trust_env: bool = False,
    device: str | None = None,
    in_step: InStep | None = None,
    **changes: Any,
) -> Agent:
    """The agent of a run folder, exactly where its newest good checkpoint was; `learn` goes on from there.

    `env` is needed if the run was made from an environment object, `eval_env` if it had one of its own. An id such as
    `module:Id` in the folder's config makes Gymnasium import a module, which needs `env` or `trust_env`. With
    `inexact`, other versions, processors, numbers of threads or `eval_env` than the run began with are accepted. With
    `salvage`, if no checkpoint is good, rows of the replay that are damaged are left out of the newest one; a warning
    says which. `changes` are hyperparameters to go on with, such as learning_rate: a branch, which the run folder
    notes.
    `in_step` comes from `implicitq.seeds.resume`, which goes on with several seeds together.
    """
    if in_step is None and not has_run(Path(directory)) and seeds_in(Path(directory)):
        raise InputError(f"{directory} holds several seeds; go on with implicitq.seeds.resume({str(directory)!r})")
    run = RunFolder.open(directory, () if in_step is None else in_step.seeds)
    agent = None
    try:
        if env is None and is_object(run.config.env):
            raise InputError(f"{directory} was trained on an environment object; give it as resume(directory, env=...)")
        source = _from_file(run.config.env, str(directory), trust_env) if env is None else env
        config = configs.changed(run.config, **changes)
        check_changes(run.config, changes)
        copies = in_step is not None and not in_step.first
        agent = _agent(config, EnvironmentMaker(source), eval_env, device, run, copies)
        assert agent._trainer is not None
        if not inexact:
            run.check_exactness(agent._trainer.eval_env)
        if env is not None and (run.directory / POLICY).exists():
            before = policy_file.read(run.directory / POLICY)
            given = agent.observation_space, agent.action_space
            spaces.refuse_others("the run has", (before.observation_space, before.action_space), given)
        try:
            run.restore(agent._trainer, salvage, None if in_step is None else in_step.steps)
        except InputError as error:
            if changes and not isinstance(error, EnvironmentFailed):  # changes may be what does not fit
                raise InputError(
                    f"{error}; without a checkpoint that fits, begin a new run with {', '.join(changes)}"
                ) from None
            raise
        if in_step is None:  # else once all seeds are there
            agent.branch()
        return agent
    except BaseException:
        run.close()  # or the folder would stay locked in this process
        if agent is not None:
            agent.close()
        raise


def _agent(
    config: Config,
    maker: EnvironmentMaker,
    eval_env: EnvironmentSource | None,
    device: str | None,
    run: RunFolder | None = None,
    copies: bool = False,
) -> Agent:
    maker = maker.with_action_bound(config.action_bound)
    maker = maker.of_copies() if copies else maker
    eval_maker = maker
    if eval_env is not None and not maker.makes(eval_env):  # or one object would be in use twice
        eval_maker = EnvironmentMaker(eval_env, not (copies or maker.shares_with(eval_env)), config.action_bound)
    trainer = Trainer(config, maker, eval_maker, device)
    envs = trainer.envs
    return Agent(
        config, envs.observation_space, envs.action_space, trainer.learner.shipped, eval_maker, 0, trainer, run
    )


def _policy_at(source: str | Path, best: bool) -> Path:
    """The file that `load` reads."""
    if isinstance(source, str) and hub.is_address(source):
        if best:
            raise InputError(f"the best policy is kept in run folders, and {source} is none; push --best shares it")
        return hub.fetch_policy(source)
    path = Path(source)
    return _policy_in(path, best) if path.is_dir() or best else path


def _policy_in(folder: Path, best: bool) -> Path:
    if best and not folder.is_dir():
        raise InputError(f"the best policy is kept in run folders, and {folder} is none")
    if best and not (folder / BEST).exists():
        raise InputError(f"{folder} has no {BEST}: no evaluation was made yet, or only by an earlier version")
    if not best and not (folder / POLICY).exists():
        raise InputError(f"{folder} has no {POLICY}: it is no run folder, or its run has no checkpoint yet")
    return refuse_links(folder, folder / (BEST if best else POLICY))


def _from_file(name: str, file: str, trusted: bool) -> str:
    if not trusted:
        remedy = (
            "name the environment yourself (--env, or env= in Python), or trust the file (--trust-env, trust_env=True)"
        )
        refuse_modules([name], file, remedy)
    return name


def display(runs: int = 1) -> list[AnyListener]:
    """Shows the progress of a run, or of several that are trained in step."""
    from implicitq.progress import ProgressDisplay  # needs rich, which those who only load and predict do without

    return [ProgressDisplay(runs=runs)]


def _padded(rows: Array) -> Array:
    """Pad the batch to a power of two, so that few sizes are ever compiled."""
    size = 1 << (len(rows) - 1).bit_length() if len(rows) else 1
    if size == len(rows):
        return rows
    return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
