"""Learning on a device of one's choice, tried with two virtual ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import implicitq
from implicitq.types import InputError
from toys import SMALL, Toy


def test_a_learner_on_the_second_device_stays_there_and_learns_the_same():
    """Were anything left on the first device, the guard would refuse to copy it."""
    code = """
import jax, numpy as np, tempfile, pathlib
import implicitq, toys
first, second = jax.devices()
settings = {**toys.SMALL, "normalize_observations": True, "actor_average": 0.1}

def places(agent):
    return {device for array in agent._trainer.learner.packed for device in array.devices()}

with implicitq.make("miq", toys.Toy, **settings) as here:
    here.learn(60)
    assert places(here) == {first}
folder = pathlib.Path(tempfile.mkdtemp()) / "run"
with implicitq.make("miq", toys.Toy, device="cpu:1", **settings) as there:
    there.learn(20, out=folder)
    assert places(there) == {second}
with implicitq.resume(folder, toys.Toy, device="cpu:1") as there, jax.transfer_guard_device_to_device("disallow"):
    there.learn(40)
    assert places(there) == {second}
ours, theirs = (agent._trainer.learner.arrays() for agent in (here, there))
for name, array in ours.items():
    np.testing.assert_array_equal(array, theirs[name], err_msg=name)
loaded = implicitq.load(folder, device="cpu:1")
observation = np.ones((3,))
assert loaded._actor.value(observation[None].astype(np.float32)).devices() == {second}
np.testing.assert_array_equal(loaded.value(observation), here.value(observation))
"""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["cpu:7", "abacus", "cpu:", "cpu:first", ""])
def test_a_device_that_is_not_there_is_named_with_those_that_are(name):
    with pytest.raises(InputError, match=f"no device '{name}' here; JAX has cpu:0"):
        implicitq.make("iq", Toy, device=name, **SMALL)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen here")
def test_compiled_functions_run_at_once_where_there_is_one_processor():
    """Were they handed to another thread, a long one would not be done when its call returns.

    Its argument is on the device already: a call waits elsewhere for one that is still being copied.
    """
    code = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import jax
from implicitq.machine import find_device
find_device(None)
given = jax.numpy.eye(256).block_until_ready()
long = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, y: y @ x, x)).lower(given).compile()
assert long(given).is_ready()
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True)
