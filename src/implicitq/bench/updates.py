"""Updates by algorithm and task, beside what the machine could do at best.

The products of matrices are most of an update. Their floating-point operations are counted from the shapes in the
traced update, 2 m n k for [m, k] @ [k, n], and the rate of a large product on the same threads, in the same minutes,
says how long they would take if nothing else did. Adam, which reads and writes every parameter and its moments, is
measured by itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from implicitq import algorithms, configs
from implicitq.algorithms import Algorithm
from implicitq.bench.clock import by_turns
from implicitq.configs import Config
from implicitq.learner import Learner
from implicitq.replay import Replay
from implicitq.types import Spec, Transition

ALGORITHMS = ("iq", "miq", "iq-auto", "sac")
SHAPES = {  # observation features and action dimensions, so that no environment is needed
    "Pendulum-v1": (3, 1),
    "HalfCheetah-v5": (17, 6),
    "Ant-v5": (105, 8),
    "Humanoid-v5": (348, 17),
    "AdroitHandDoor-v1": (39, 28),
}
_SIDE = 1_024  # of the large matrices
_ROWS = 2_048  # of the replay that batches are drawn from


def measure_updates(config: Config, spec: Spec, repeats: int) -> dict[str, Any]:
    """The speed of the compiled update on a batch in memory, also as a share of the speed of large matrix products."""
    learner, batch = learner_with_batch(config, spec)
    found = by_turns({"update": updating(learner, batch), "adam": adam_step(config, spec), **large_products()}, repeats)
    needed, seconds = products(config, spec, batch), found["update"]
    rate = 2 * _SIDE**3 / min(found["xla"].median, found["numpy"].median)
    return {
        "algorithm": config.algorithm,
        "env": config.env,
        "hidden": list(config.hidden),
        "batch_size": config.batch_size,
        "observation_size": spec.observation_size,
        "action_dimensions": spec.action_dimensions,
        "updates_per_second": 1 / seconds.median,
        "update_ms": seconds.told(1e3),
        "adam_ms": found["adam"].told(1e3),
        "gflop": needed / 1e9,
        "gflop_per_second": needed / seconds.median / 1e9,
        "sgemm_gflop_per_second": rate / 1e9,
        "fraction_of_sgemm": needed / seconds.median / rate,
    }


def config_like(example: Config, algorithm: str, env: str) -> Config:
    """A config of another algorithm or task, with the fields that the user has set in `example`, where it has them."""
    usual = configs.resolve(example.algorithm, example.env, example.preset)
    changed = {name for name in vars(usual) if getattr(usual, name) != getattr(example, name)}
    plain = configs.resolve(algorithm, env, example.preset)
    return configs.changed(plain, **{name: getattr(example, name) for name in changed & vars(plain).keys()})


def spec_of_shape(env: str) -> Spec:
    observation_size, action_dimensions = SHAPES[env]
    return Spec(observation_size, action_dimensions, None)


def learner_with_batch(config: Config, spec: Spec) -> tuple[Learner, Transition[np.ndarray]]:
    """A learner at its start, and a batch of random transitions."""
    algorithm = algorithms.build(config, spec)
    learner = Learner(algorithm, spec, config)
    replay = random_replay(config, spec, learner.action_dtype, _ROWS, _ROWS // 2, algorithm)
    return learner, replay.sample(config.batch_size)


def updating(learner: Learner, batch: Transition[np.ndarray]) -> Callable[[], None]:
    """A function that makes one update, and waits for it, as a training step does: the next action needs it."""

    def update() -> None:
        learner.update(batch)
        learner.wait()

    return update


def random_replay(
    config: Config, spec: Spec, action_dtype: np.dtype, size: int, written: int, algorithm: Algorithm | None = None
) -> Replay:
    """A replay with `written` rows of noise, in which no episode ends, and with all that the algorithm asks for."""
    generator = np.random.default_rng(0)
    replay = Replay(
        rows=size,
        num_envs=1,
        observation_size=spec.observation_size,
        action_dimensions=spec.action_dimensions,
        action_dtype=action_dtype,
        generator=generator,
        discount=config.discount,
        n_step=config.n_step,
        later_steps=algorithm is not None and algorithm.needs_later_steps,
        visited=algorithm is not None and algorithm.needs_visited,
    )
    add = adding(replay, spec, action_dtype)
    for _ in range(written):
        add()
    return replay


def adding(replay: Replay, spec: Spec, action_dtype: np.dtype) -> Callable[[], None]:
    """A function that adds one row of noise to a replay of one environment."""
    generator, no = np.random.default_rng(1), np.zeros(1, bool)
    observation = generator.normal(size=(1, spec.observation_size)).astype(np.float32)
    action = generator.integers(0, 2, (1, spec.action_dimensions)).astype(action_dtype)  # two bins or bounds
    reward = generator.normal(size=1)
    if not replay.written.any():
        replay.begin(~no, observation)
    return lambda: replay.add(action, reward, no, no, observation)


def large_products() -> dict[str, Callable[[], Any]]:
    """One product of large matrices, in XLA and in NumPy; the faster of the two is what the machine can do."""
    factor = np.random.default_rng(0).normal(size=(_SIDE, _SIDE)).astype(np.float32)
    on_device = jnp.asarray(factor)
    multiply = jax.jit(jnp.matmul)
    return {"xla": lambda: multiply(on_device, on_device).block_until_ready(), "numpy": lambda: factor @ factor}


def adam_step(config: Config, spec: Spec) -> Callable[[], Any]:
    """A step of Adam on all that an update trains, in place, and nothing else."""
    numbers = trained_numbers(config, spec)
    adam = optax.adam(config.learning_rate)
    gradient = jax.tree.map(jnp.ones_like, numbers)
    held = [jax.tree.map(jnp.copy, numbers), adam.init(numbers)]

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters: Any, moments: Any, gradient: Any) -> Any:
        change, moments = adam.update(gradient, moments)
        return optax.apply_updates(parameters, change), moments

    def run() -> None:
        held[:] = step(*held, gradient)
        jax.block_until_ready(held)

    return run


def trained_numbers(config: Config, spec: Spec) -> list[Any]:
    """Arrays of zeros like all that Adam changes: its first moments, before any step."""
    state = algorithms.build(config, spec).init(jax.random.key(0))
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, optax.ScaleByAdamState))
    return [leaf.mu for leaf in leaves if isinstance(leaf, optax.ScaleByAdamState)]


def products(config: Config, spec: Spec, batch: Transition[Any]) -> int:
    """Floating-point operations of all products of matrices in one update."""
    algorithm = algorithms.build(config, spec)
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    return _operations(jax.make_jaxpr(algorithm.update)(state, batch, jax.random.key(0)).jaxpr)


def _operations(program: Any) -> int:
    """Counts them in a traced function and what it calls; steps that no result needs do not count."""
    total, needed = 0, set(map(id, program.outvars))
    for step in reversed(program.eqns):
        if needed.isdisjoint(map(id, step.outvars)):
            continue
        needed.update(map(id, step.invars))
        if step.primitive.name == "dot_general":
            (contracted, _), _ = step.params["dimension_numbers"]
            left, result = step.invars[0].aval.shape, step.outvars[0].aval.shape
            total += 2 * math.prod(result) * math.prod(left[axis] for axis in contracted)
        elif step.primitive.name == "conv_general_dilated":
            kernel, result = step.invars[1].aval.shape, step.outvars[0].aval.shape
            outputs = kernel[step.params["dimension_numbers"].rhs_spec[0]]
            total += 2 * math.prod(result) * math.prod(kernel) // outputs
        inner = [getattr(value, "jaxpr", value) for value in step.params.values()]
        total += step.params.get("length", 1) * sum(_operations(each) for each in inner if hasattr(each, "eqns"))
    return total
