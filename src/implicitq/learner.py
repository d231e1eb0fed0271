"""Compiles an algorithm: one call per update, one call per action, nothing in between.

State crosses into compiled code as a flat list of few arrays (`packing.py`): to flatten modules on every call, or to
hand over a hundred small arrays, would cost more than the dispatch itself. Updates donate their state, so parameters
are overwritten in place.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from implicitq import equations, machine, networks
from implicitq.algorithms import Algorithm
from implicitq.algorithms.base import Seen
from implicitq.configs import Config
from implicitq.machine import Device
from implicitq.normalization import Normalizer
from implicitq.packing import Packing
from implicitq.types import Array, InputError, PyTree, Spec, Transition, Visited
from implicitq.validation import brief

KL = "kl"  # the metric that `watch` brings

_INIT, _UPDATE, _ACT, _COMPARE = range(4)  # independent streams of random numbers under one seed

_SMALL_STATE = 2**20  # bytes; larger ones are better not copied in and out of a loop
_OF_STATISTICS = re.compile(r"optimizer\..*\.norms\.\d+\.(mean|variance)$")


class LearnerState(NamedTuple):
    algorithm: PyTree
    normalizer: Normalizer | None
    average: PyTree  # running mean of the networks that act, or None
    updates: jax.Array
    metric_sums: dict[str, jax.Array]  # since they were last read, so that nothing is fetched in between
    metric_count: jax.Array


class _Parts(NamedTuple):
    """Which arrays of a `LearnerState` are packed together: by their numbers, or by their slots once packed."""

    networks: list[int]  # those that act
    average: list[int]
    normalizer: list[int]
    metrics: list[int]  # their sums, then their count
    updates: list[int]
    rest: list[int]


class ActorState(NamedTuple):
    networks: PyTree
    normalizer: Normalizer | None


class Actor:
    """Networks that act, and give values to states and actions. Observations are [B, O].

    A last argument, where given, is the mask of the actions that the states allow: [B, D, N].
    """

    def __init__(
        self,
        compiled: _Compiled,
        seed: int,
        packed: Callable[[], list[jax.Array]],
        names: list[str],
        device: Device | None,
    ) -> None:
        """`packed` gives the current arrays of an `ActorState`, packed."""
        self.compiled, self._packed, self.names = compiled, packed, names
        (self.key,) = _placed([_stream(seed, _ACT)], device)

    def sample(self, observation: Array, step: int, *mask: Array) -> tuple[jax.Array, jax.Array]:
        """A stored action of the policy, and its coordinates; `step` picks the random numbers."""
        return self.compiled.sample(self._packed(), self.key, observation, np.uint32(step), *mask)

    def explore(self, observation: Array, step: int, *mask: Array) -> tuple[jax.Array, jax.Array]:
        """As `sample`, with exploration."""
        return self.compiled.explore(self._packed(), self.key, observation, np.uint32(step), *mask)

    def uniform(self, observation: Array, step: int, *mask: Array) -> tuple[jax.Array, jax.Array]:
        """As `sample`, with uniformly random actions."""
        return self.compiled.uniform(self._packed(), self.key, observation, np.uint32(step), *mask)

    def deterministic(self, observation: Array | jax.Array, *mask: Array) -> jax.Array:
        """Coordinates of the action to take when not exploring: [B, D]."""
        return self.compiled.deterministic(self._packed(), observation, *mask)

    def value(self, observation: Array, *mask: Array) -> jax.Array:
        return self.compiled.value(self._packed(), observation, *mask)

    def log_prob(self, observation: Array, coordinates: Array, *mask: Array) -> jax.Array:
        return self.compiled.log_prob(self._packed(), observation, coordinates, *mask)

    def q_value(self, observation: Array, coordinates: Array, *mask: Array) -> jax.Array:
        return self.compiled.q_value(self._packed(), observation, coordinates, *mask)

    def regularization(self, observation: Array, action: Array, *mask: Array) -> tuple[jax.Array, jax.Array]:
        """As `Algorithm.regularization`, for stored actions [B, D]: two arrays [B]."""
        return self.compiled.regularization(self._packed(), observation, action, *mask)

    def divergence_from(
        self, before: list[jax.Array], key: jax.Array, observation: Array, step: int, *mask: Array
    ) -> jax.Array:
        """KL(pi_before, pi) over a batch of states, from one action of pi_before in each; `before` is a `snapshot`.

        With r = pi / pi_before it is the mean of r - 1 - ln r, which has the same expectation as -ln r, is never
        negative, and whose noise is small beside it.
        """
        return self.compiled.divergence(before, self._packed(), key, observation, np.uint32(step), *mask)

    def snapshot(self) -> list[jax.Array]:
        """A copy of what acts now, which updates do not touch."""
        return [jnp.copy(array) for array in self._packed()]

    def arrays(self) -> dict[str, Array]:
        """All arrays by name: what a policy file holds. Copies, which later updates do not touch."""
        copies = [np.array(array) for array in self._packed()]
        return dict(zip(self.names, self.compiled.packing.unpack(copies), strict=True))

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays whose names, shapes or types are not those of this actor."""
        _compare(self.arrays(), arrays)


class Draw(NamedTuple):
    """Training needs actions for observations [E, O]."""

    observation: Array
    step: int
    uniform: bool  # uniformly random actions, not those of the policy
    mask: tuple[Array, ...] = ()


Request = Draw | Transition[Array]
"""What training asks a learner for: actions, or an update with a batch."""
REQUESTS = (Draw, Transition)


class Stack(Protocol):
    """Holds the states of learners that are updated together; `seat` is the number of one of them."""

    def take(self, seat: int) -> list[jax.Array]: ...

    def put(self, seat: int, packed: list[jax.Array]) -> None: ...


class Stored(NamedTuple):
    """Shape and type of an array in a file that is not read yet."""

    shape: tuple[int, ...]
    dtype: str


def load_actor(
    algorithm: Algorithm,
    spec: Spec,
    config: Config,
    found: Mapping[str, Stored],
    read: Callable[[], Mapping[str, Array]],
    device: Device | None = None,
) -> Actor:
    """The actor with the arrays that `read` gives; they are not read if names, shapes or types do not fit."""
    networks = jax.eval_shape(algorithm.fresh_actor, jax.random.key(0))
    normalizer = jax.eval_shape(lambda: _normalizer(spec, config))
    state = ActorState(networks, normalizer)
    names = _names(state)
    _compare(dict(zip(names, jax.tree.leaves(state), strict=True)), found)
    arrays, compiled = read(), _Compiled(algorithm, spec, state)
    packed = _packed(compiled.packing, [arrays[name] for name in names], device)
    return Actor(compiled, config.seed, lambda: packed, names, device)


def least_parameters(config: Config, spec: Spec) -> int:
    """Parameters of one network from observations to a single number: no actor has fewer.

    Computed in whole numbers of any size, so that it can be asked before networks are made from unchecked settings.
    """
    inputs = spec.observation_size if spec.image is None else networks.torso_features(spec.image)
    sizes = (inputs, *config.hidden, 1)
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(sizes))


class _Compiled:
    """The functions of an actor; all of them take the arrays of an `ActorState` first, then the key if they draw."""

    def __init__(self, algorithm: Algorithm, spec: Spec, example: ActorState) -> None:
        """`example` has the shapes of what acts. Its networks and its normaliser are packed apart from each other."""
        leaves, structure = jax.tree.flatten(example)
        own = len(jax.tree.leaves(example.networks))
        self.packing = Packing(leaves, (range(own), range(own, len(leaves))))

        def unpack(packed: list[jax.Array], observation: jax.Array) -> tuple[PyTree, jax.Array]:
            networks, normalizer = jax.tree.unflatten(structure, self.packing.unpack(packed))
            observation = _numbers(observation)
            return networks, observation if normalizer is None else normalizer(observation)

        def explore(
            packed: list[jax.Array], key: jax.Array, observation: jax.Array, step: jax.Array, *mask: jax.Array
        ) -> tuple[jax.Array, jax.Array]:
            return algorithm.explore(*unpack(packed, observation), _at(key, step), *mask)

        def uniform(
            packed: list[jax.Array], key: jax.Array, observation: jax.Array, step: jax.Array, *mask: jax.Array
        ) -> tuple[jax.Array, jax.Array]:
            networks, _ = unpack(packed, observation)
            shape = (observation.shape[0], spec.action_dimensions)
            now = _at(key, step)
            if mask:
                coordinates = jax.random.categorical(now, jnp.where(mask[0], 0.0, -jnp.inf))
            elif spec.categories is None:
                coordinates = jax.random.uniform(now, shape, minval=-1.0, maxval=1.0)
            else:
                coordinates = jax.random.randint(now, shape, 0, jnp.array(spec.categories)[None])
            return algorithm.encode(networks, coordinates)

        def divergence(
            before: list[jax.Array],
            after: list[jax.Array],
            key: jax.Array,
            observation: jax.Array,
            step: jax.Array,
            *mask: jax.Array,
        ) -> jax.Array:
            old, new = unpack(before, observation), unpack(after, observation)
            _, action = algorithm.sample(*old, _at(key, step), *mask)
            gain = algorithm.log_prob(*new, action, *mask) - algorithm.log_prob(*old, action, *mask)  # [B]
            return jnp.mean(jnp.expm1(gain) - gain)

        self.sample = _jit(lambda packed, key, s, t, *mask: algorithm.sample(*unpack(packed, s), _at(key, t), *mask))
        self.explore, self.explores = _jit(explore), _jit(jax.vmap(explore))  # the second of each for stacked actors
        self.uniform, self.uniforms = _jit(uniform), _jit(jax.vmap(uniform))
        self.deterministic = _jit(lambda packed, s, *mask: algorithm.deterministic(*unpack(packed, s), *mask))
        self.value = _jit(lambda packed, s, *mask: algorithm.value(*unpack(packed, s), *mask))
        self.regularization = _jit(lambda packed, s, a, *mask: algorithm.regularization(*unpack(packed, s), a, *mask))
        self.divergence = _jit(divergence)
        self.log_prob = _jit(lambda packed, s, a, *mask: algorithm.log_prob(*unpack(packed, s), a, *mask))
        self.q_value = _jit(lambda packed, s, a, *mask: algorithm.q_value(*unpack(packed, s), a, *mask))


class Learner:
    """All that learning changes, and the compiled update that changes it.

    `newest` acts with the newest networks, which collect the data; `shipped` with those that are evaluated and saved:
    averaged ones if there are such, else the newest.

    All that an update changes stays on the device from one to the next; a batch comes to it in the call of the update,
    and nothing goes back before somebody asks.
    """

    def __init__(self, algorithm: Algorithm, spec: Spec, config: Config, device: Device | None = None) -> None:
        self._algorithm, self._device = algorithm, device
        self._average_rate = config.actor_average
        needed = 12 * least_parameters(config, spec)  # with both moments of Adam
        machine.refuse_excess(f"a network with hidden {brief(config.hidden)}", needed, needed)
        self.key, self._compare_key = _placed([_stream(config.seed, number) for number in (_UPDATE, _COMPARE)], device)
        first = algorithm.init(jax.random.fold_in(jax.random.key(config.seed), _INIT))
        example = _example_batch(algorithm, spec, first)
        self._summed = _metric_names(algorithm, first, example)
        state = LearnerState(
            first,
            _normalizer(spec, config),
            None if config.actor_average is None else jax.tree.map(jnp.copy, algorithm.actor(first)),
            jnp.zeros((), jnp.uint32),
            {name: jnp.zeros(()) for name in self._summed},
            jnp.zeros(()),
        )
        self.metric_names = (*self._summed, KL)
        self._watched: list[jax.Array] | None = None
        self.action_dtype = np.dtype(example.action.dtype)
        self._stack: Stack | None = None
        leaves, self._structure = jax.tree.flatten(state)
        self._names = _names(state)
        self._packing = Packing(leaves, self._parts(len(leaves)))
        self._slots = _Parts(*self._packing.slots)
        self.packed = _packed(self._packing, leaves, device)
        self._compiled = _jit(self._updated, donate_argnums=0)
        self.update_stacked = _jit(_of_stack(self._updated, self.packed), donate_argnums=0)
        self.newest, self.shipped = self._actors(state, spec, config)

    @property
    def packed(self) -> list[jax.Array]:
        """All arrays of the state, packed."""
        return self._own if self._stack is None else self._stack.take(self._seat)

    @packed.setter
    def packed(self, packed: list[jax.Array]) -> None:
        if self._stack is None:
            self._own = packed
        else:
            self._stack.put(self._seat, packed)

    def wait(self) -> None:
        """Wait until the last update is done."""
        jax.block_until_ready(self.packed)

    def join(self, stack: Stack, seat: int, first: Learner) -> None:
        """Keep the state in a stack from now on, and use the compiled functions of `first`, which are the same."""
        self._stack, self._seat = stack, seat
        self._own = []  # what is in the stack now
        self.newest.compiled = self.shipped.compiled = first.newest.compiled

    def begin_with(self, arrays: Mapping[str, Array]) -> None:
        """Start from the networks of a policy file; before the first update."""
        self.newest.check(arrays)
        leaves = [jnp.array(arrays[name]) for name in self.newest.names]
        actor: ActorState = jax.tree.unflatten(self._actor_structure, leaves)
        state: LearnerState = jax.tree.unflatten(self._structure, self._unpacked())
        algorithm = self._algorithm.start(actor.networks)
        average = None if state.average is None else jax.tree.map(jnp.copy, self._algorithm.actor(algorithm))
        fresh = state._replace(algorithm=algorithm, normalizer=actor.normalizer, average=average)
        self.packed = _packed(self._packing, jax.tree.leaves(fresh), self._device)

    def watch(self) -> None:
        """Remember the current policy: the next metrics have the KL divergence from it."""
        self._watched = self.newest.snapshot()

    def answer(self, request: Request) -> tuple[Array, Array] | None:
        """Do what training asks for; a `Draw` gives stored actions and their coordinates."""
        if isinstance(request, Transition):
            return self.update(request)
        draw = self.newest.uniform if request.uniform else self.newest.explore
        stored, coordinates = draw(request.observation, request.step, *request.mask)
        return np.asarray(stored), np.asarray(coordinates)

    def update(self, batch: Transition[Array]) -> None:
        """One gradient step; returns at once, the result is awaited by whoever reads it."""
        self.packed = self._compiled(self.packed, self.key, batch)
        self.last = batch

    @property
    def updates(self) -> int:
        """Gradient steps so far."""
        (slot,) = self._slots.updates
        return int(self.packed[slot])

    @property
    def calibrates(self) -> bool:
        """Whether `calibrate` does anything."""
        return self._algorithm.calibrate is not None

    def calibrate(self, seen: Seen) -> None:
        """Adapt to finished episodes, by the algorithm's `calibrate`."""
        if self._algorithm.calibrate is not None:
            state: LearnerState = jax.tree.unflatten(self._structure, self._unpacked())
            moved = state._replace(algorithm=self._algorithm.calibrate(state.algorithm, seen))
            self.packed = _packed(self._packing, jax.tree.leaves(moved), self._device)

    def take_metrics(self) -> dict[str, float]:
        """Means since the last call, and the KL divergence since `watch`; empty if there was no update."""
        packed, (slot,) = list(self.packed), self._slots.metrics
        sums = packed[slot]
        *totals, count = np.asarray(sums).reshape(-1).tolist()
        means = {name: total / count for name, total in zip(self._summed, totals, strict=True)} if count else {}
        (packed[slot],) = _placed([jnp.zeros(sums.shape, sums.dtype)], self._device)
        self.packed = packed
        if self._watched is not None:
            mask = () if self.last.mask is None else (self.last.mask,)
            told = self._watched, self._compare_key, self.last.observation, self.updates
            moved = float(self.newest.divergence_from(*told, *mask))
            self._watched = None
            if math.isfinite(moved):  # a greedy policy has none when its action changes
                means[KL] = moved
        return means

    def arrays(self) -> dict[str, Array]:
        """Every array of the state by name, for a checkpoint."""
        return dict(zip(self._names, self._unpacked(), strict=True))

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        """Inverse of `arrays`.

        Sums of metrics that the file lacks begin at zero. Moments of Adam for running statistics, which some files have
        and which are always zero, are left out.
        """
        blank = self.arrays()
        new = [name for name in self._names if name.startswith("metric_sums.") and name not in arrays]
        arrays = {name: array for name, array in arrays.items() if name in blank or not _OF_STATISTICS.search(name)}
        arrays |= {name: np.zeros_like(blank[name]) for name in new}
        _compare(blank, arrays)
        self.packed = _packed(self._packing, [arrays[name] for name in self._names], self._device)

    def _unpacked(self) -> list[Array]:
        return self._packing.unpack([np.asarray(array) for array in self.packed])

    def _parts(self, count: int) -> _Parts:
        """The numbers of the arrays in each part; `count` is the number of all arrays."""
        # `actor` only picks parts out of the state, so it can pick numbers just as well.
        numbered: LearnerState = jax.tree.unflatten(self._structure, range(count))
        networks, metrics = self._algorithm.actor(numbered.algorithm), (numbered.metric_sums, numbered.metric_count)
        parts = (networks, numbered.average, numbered.normalizer, metrics, numbered.updates)
        numbers = [jax.tree.leaves(part) for part in parts]
        return _Parts._make([*numbers, sorted(set(range(count)).difference(*numbers))])

    def _actors(self, state: LearnerState, spec: Spec, config: Config) -> tuple[Actor, Actor]:
        newest = ActorState(self._algorithm.actor(state.algorithm), state.normalizer)
        self._actor_structure = jax.tree.structure(newest)
        compiled, names, slots = _Compiled(self._algorithm, spec, newest), _names(newest), self._slots
        self.acting = slots.networks + slots.normalizer  # which of the packed arrays collect the data
        shipped = (slots.average or slots.networks) + slots.normalizer

        def actor(which: list[int]) -> Actor:
            def packed() -> list[jax.Array]:
                everything = self.packed
                return [everything[slot] for slot in which]

            return Actor(compiled, config.seed, packed, names, self._device)

        return actor(self.acting), actor(shipped)

    def _updated(self, packed: list[jax.Array], key: jax.Array, batch: Transition[jax.Array]) -> list[jax.Array]:
        state: LearnerState = jax.tree.unflatten(self._structure, self._packing.unpack(packed))
        batch, normalizer = batch.map_observations(_numbers), state.normalizer
        if normalizer is not None:
            normalizer = normalizer.seen(batch.observation)
            batch = batch.map_observations(normalizer)
        algorithm, metrics = self._algorithm.update(state.algorithm, batch, _at(key, state.updates))
        average, updates = state.average, state.updates + 1
        if self._average_rate is not None:  # at first the plain mean of all weights so far
            rate = jnp.maximum(self._average_rate, 1 / updates)
            average = equations.polyak(average, self._algorithm.actor(algorithm), rate)
        sums = {name: total + metrics[name] for name, total in state.metric_sums.items()}
        new = LearnerState(algorithm, normalizer, average, updates, sums, state.metric_count + 1)
        return self._packing.pack(jax.tree.leaves(new))


def _metric_names(algorithm: Algorithm, state: PyTree, batch: Transition[Any]) -> list[str]:
    """Names of the metrics that an update gives."""
    return sorted(jax.eval_shape(algorithm.update, state, batch, jax.random.key(0))[1])


def _jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile, and refuse shapes that fit by accident: [B] beside [B, 1] is an error, and does not pass in silence."""

    @functools.wraps(function)
    def strict(*arguments: Any) -> Any:
        with jax.numpy_rank_promotion("raise"):  # while it is traced, so at no cost per call
            return function(*arguments)

    return jax.jit(strict, **options)


def _of_stack(update: Callable[..., Any], packed: list[jax.Array]) -> Callable[..., Any]:
    """The update for a stack of states like `packed`.

    All at once; but small states on a CPU one by one, which is faster there than products of stacked matrices.
    """
    on_processor = all(device.platform == "cpu" for array in packed for device in array.devices())
    if on_processor and sum(array.nbytes for array in packed) <= _SMALL_STATE:
        return lambda *stacked: jax.lax.map(lambda each: update(*each), stacked)
    return jax.vmap(update)


def _stream(seed: int, number: int) -> jax.Array:
    """Key data of a stream: an argument of compiled functions, so that seeds can share these."""
    return jax.random.key_data(jax.random.fold_in(jax.random.key(seed), number))


def _at(stream: jax.Array, number: jax.Array) -> jax.Array:
    """The key of a stream for a step or an update."""
    return jax.random.fold_in(jax.random.wrap_key_data(stream), number)


def _packed(packing: Packing, arrays: Sequence[Any], device: Device | None) -> list[jax.Array]:
    """The arrays, packed and on the device."""
    return _placed([jnp.array(array) for array in packing.pack([np.asarray(each) for each in arrays], np)], device)


def _placed(arrays: list[jax.Array], device: Device | None) -> list[jax.Array]:
    """The arrays on the device, where functions of them then run; None: where JAX has put them."""
    return arrays if device is None else jax.device_put(arrays, device)


def _normalizer(spec: Spec, config: Config) -> Normalizer | None:
    """None for images: most of their pixels hardly change, and noise in them would be scaled up."""
    return Normalizer.start(spec.observation_size) if config.normalize_observations and not spec.pixels else None


def _numbers(observation: jax.Array) -> jax.Array:
    """Bytes of images as numbers from 0 to 1; all others as they are."""
    return observation.astype(jnp.float32) / 255 if observation.dtype == jnp.uint8 else observation


def _example_batch(algorithm: Algorithm, spec: Spec, state: PyTree) -> Transition[Array]:
    """Shapes and types of what the replay will hand over."""
    observation = np.zeros((algorithm.batch_parts, spec.observation_size), np.float32)
    action, _ = jax.eval_shape(algorithm.sample, algorithm.actor(state), observation, jax.random.key(0))
    scalar = np.zeros(algorithm.batch_parts, np.float32)
    visited = Visited(observation) if algorithm.needs_visited else None
    return Transition(observation, np.zeros(action.shape, action.dtype), scalar, scalar, observation, visited=visited)


def _compare(
    expected: Mapping[str, Array] | Mapping[str, jax.ShapeDtypeStruct],
    found: Mapping[str, Stored] | Mapping[str, Array],
) -> None:
    """Refuse names, shapes and types that are not the expected ones."""
    unknown = sorted(found.keys() - expected)
    if unknown:
        raise InputError(f"the saved state has {brief(unknown[0])}, which is not known here")
    for name, leaf in expected.items():
        came = found.get(name)
        if came is None or came.shape != leaf.shape or str(came.dtype) != str(leaf.dtype):
            shown = "nothing" if came is None else f"{came.dtype}{list(came.shape)}"
            raise InputError(f"the saved state has {shown} for {name}, expected {leaf.dtype}{list(leaf.shape)}")


def _names(tree: PyTree) -> list[str]:
    """A readable name of every leaf, such as `networks.policy.network.weights.0`."""
    return [
        jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
