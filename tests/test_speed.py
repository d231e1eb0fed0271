"""Speed: the measurements measure what they say, and the cache of compiled functions changes no bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import pytest

import implicitq
from implicitq import compilation
from implicitq.bench import growth, parts, updates
from implicitq.bench.clock import Timing, by_turns
from implicitq.bench.loop import WarmLoop, measure
from implicitq.bench.policies import alternatives
from implicitq.commands import bench as command
from implicitq.commands import main as cli
from implicitq.compilation import is_about_cache, show_warning, use_cache
from implicitq.configs import POLICIES, resolve
from implicitq.replay import Replay
from implicitq.types import Spec
from toys import SMALL, Toy

WARM_UP = 1_200  # steps before the clock runs
PAUSE = 0.02
TINY = {"hidden": (8,), "batch_size": 8}


class Slow(Toy):
    """Takes a known time per step, once the measurement has warmed up."""

    steps_taken = 0

    def step(self, action):
        Slow.steps_taken += 1
        if Slow.steps_taken > WARM_UP:
            time.sleep(PAUSE)
        return super().step(action)


@pytest.fixture
def slow_task(monkeypatch):
    monkeypatch.setattr(Slow, "steps_taken", 0)
    gym.register("Slow-v0", Slow)
    yield "Slow-v0"
    del gym.registry["Slow-v0"]


@pytest.fixture(scope="module")
def warm():
    loop = WarmLoop(resolve("iq", "toys:Toy-v0", members=2, **TINY), filled=20, updated=5)  # batches of two parts
    yield loop
    loop.close()


def test_whole_steps_hold_the_environment_and_bare_updates_do_not(slow_task):
    """An update of this network takes far less than a millisecond, a step of the environment twenty of them."""
    found = measure(resolve("iq", slow_task, **TINY), steps=15, repeats=2)
    assert Slow.steps_taken == WARM_UP + 3 * 15  # two repeats, and once more part by part
    assert found["step_ms"]["fastest"] >= 1e3 * PAUSE
    assert found["steps_per_second"] <= 1 / PAUSE
    assert 0 < found["update_ms"]["fastest"] < 0.5 * found["step_ms"]["fastest"]
    assert 0 < found["outside_update"] < 1
    assert found["versions"]["threads"] >= 1
    assert found["shares"]["environment"] > max(found["shares"][part] for part in ("replay", "rest"))
    assert all(0 < share < 1 for share in found["shares"].values())


def test_works_take_turns_and_first_calls_do_not_count():
    calls = []

    def work(name: str, seconds: float):
        calls.append(name)
        time.sleep(0.2 if calls.count(name) == 1 else seconds)

    slow, fast = (lambda: work("slow", 0.02)), (lambda: work("fast", 0.005))
    found = by_turns({"slow": slow, "fast": fast}, repeats=3, seconds=0.01)
    assert 0.02 <= found["slow"].fastest <= found["slow"].median <= found["slow"].slowest
    assert found["fast"].fastest < found["slow"].fastest < 0.2
    turns = [name for name, before in zip(calls, [None, *calls], strict=False) if name != before]
    assert turns == ["slow", "fast"] * 4


def test_the_products_of_an_update_are_counted_without_those_that_lead_nowhere():
    """By hand: per row of a batch, forwards once for the policy and twice for the value, whose second is a target.

    Backwards, every weight has its gradient, and every input but that of the first layer.
    """
    observations, width, bins, batch = 5, 8, 3, 16
    config = resolve("iq", "Pendulum-v1", hidden=(width, width), bins=bins, batch_size=batch)
    spec = Spec(observations, 2, None)
    forwards = {outputs: observations * width + width * width + width * outputs for outputs in (2 * bins, 1)}
    gradients = sum(2 * forward - observations * width for forward in forwards.values())
    by_hand = 2 * batch * (forwards[2 * bins] + 2 * forwards[1] + gradients)
    _, example = updates.learner_with_batch(config, spec)
    assert updates.products(config, spec, example) == by_hand


def test_an_update_is_compared_with_what_the_machine_can_do():
    config = resolve("iq", "Pendulum-v1", **TINY)
    found = updates.measure_updates(config, Spec(3, 1, None), repeats=1)
    inputs, width = 3, 8
    weights = [inputs * width + width + (width + 1) * outputs for outputs in (config.bins, 1)]  # policy, value
    arrays = jax.tree.leaves(updates.trained_numbers(config, Spec(3, 1, None)))
    assert sum(array.size for array in arrays) == sum(weights)
    assert 0 < found["fraction_of_sgemm"] < 0.5  # a tiny network has little for a processor to do


def test_what_the_user_has_set_holds_for_all_algorithms_that_have_it():
    example = resolve("iq", "HalfCheetah-v5", hidden=(16,), bins=3)
    other = updates.config_like(example, "sac", "Ant-v5")
    assert (other.algorithm, other.env, other.hidden) == ("sac", "Ant-v5", (16,))
    usual = updates.config_like(resolve("iq", "HalfCheetah-v5"), "iq-auto", "Pendulum-v1")
    assert usual == resolve("iq-auto", "Pendulum-v1")


def test_the_replay_tells_the_bytes_of_a_transition():
    found = parts.measure_replay(resolve("iq", "toys:Toy-v0", **TINY), 1, size=500)
    assert found["bytes_per_transition"] == Replay.row_bytes(3, 2, np.dtype(np.uint8))


def test_predicting_is_timed_for_one_observation_and_for_many():
    with implicitq.make("iq", Toy, **SMALL) as agent:
        found = parts.measure_predict(agent, 1)
    assert list(found["observations"]) == ["1", "256"]


def test_a_checkpoint_has_the_rows_of_the_steps_before_it(warm):
    before, rows = warm.trainer.step, warm.trainer.replay.written.sum()
    found = parts.measure_checkpoint(warm, step_seconds=1.0, repeats=1, every=50)
    assert warm.trainer.step - before == warm.trainer.replay.written.sum() - rows == 2 * 50
    assert 0 < found["share"] < 0.1  # of fifty steps of a second each


def test_growth_varies_one_thing_at_a_time():
    config, spec = resolve("iq", "Pendulum-v1", **TINY), Spec(3, 1, None)
    wide = growth._varied(config, spec, "width", 64)
    assert wide is not None
    assert wide[0].hidden == (64,)
    row = growth._update(*wide, "width", 64, 1)
    assert row.cost > 0
    assert row.gflop is not None
    assert growth._varied(resolve("sac", "Pendulum-v1"), spec, "bins", 3) is None  # it has none


def test_policies_are_compared_where_the_other_settings_allow_them(capfd):
    assert list(alternatives(resolve("iq", "Pendulum-v1"))) == list(POLICIES)
    assert list(alternatives(resolve("iq", "Pendulum-v1", members=2))) == ["multicategorical", "gaussian"]
    flags = ["--parts", "policies", "--env", "Pendulum-v1", "--hidden", "8", "--batch-size", "8", "--repeats", "1"]
    assert cli.run(["bench", "iq", "--members", "2", *flags]) == 0
    told = capfd.readouterr().out
    assert "gaussian" in told
    assert "flow" not in told
    assert cli.run(["bench", "sac", *flags]) == 2
    assert "sac has one policy" in capfd.readouterr().err


def test_the_cost_of_seeds_in_step_is_that_of_one_of_them(monkeypatch):
    trained = []

    def once(works, repeats, seconds):
        works["step"]()
        return {"step": Timing(6.0, 6.0, 6.0)}

    def small(config, filled, updated, seeds):
        trained.append(WarmLoop(config, filled=10, updated=2, seeds=seeds))
        return trained[0]

    monkeypatch.setattr(growth, "by_turns", once)
    monkeypatch.setattr(growth, "WarmLoop", small)
    row = growth._seeds(resolve("iq", "toys:Toy-v0", **TINY), 2, 1)
    assert (row.what, row.value, row.cost) == ("seeds", 2, 3_000.0)
    assert [trainer.step for trainer in trained[0]._group.trainers] == [13, 13]
    assert [trainer.learner.updates for trainer in trained[0]._group.trainers] == [4, 4]


def test_the_command_measures_its_parts_and_the_start_with_and_without_a_cache(capsys):
    flags = ["--hidden", "8", "--batch-size", "8", "--repeats", "1", "--parts", "predict", "start", "--json"]
    assert cli.run(["bench", "iq", "--env", "Pendulum-v1", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"predict", "start", "versions"}
    fresh, cached = found["start"]["fresh"], found["start"]["cached"]
    assert 0 < cached["first_step"] < cached["first_update"]
    assert fresh["compiling"] > 0
    assert fresh["loaded"] < 5 < cached["loaded"]
    assert len(command._tables(found)) == 1


def test_no_repeats_are_refused(capfd):
    assert cli.run(["bench", "--repeats", "0"]) == 2
    assert "repeats must be a whole number of at least 1, got 0" in capfd.readouterr().err


def test_a_part_that_does_not_exist_is_named(capfd):
    assert cli.run(["bench", "--parts", "update"]) == 2
    assert "did you mean updates" in capfd.readouterr().err.replace("'", "")


# The cache of compiled functions: where it is, what it survives, and that it changes no bit.


READING = "Error reading persistent compilation cache entry for 'jit_update': error: Error -3"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """The folder of a user who has set nothing."""
    for name in ("IMPLICITQ_CACHE", "JAX_COMPILATION_CACHE_DIR", *compilation._JAX_SETTINGS):
        monkeypatch.setenv(name, "")  # so that it is as before at the end, whatever the test does
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "implicitq" / "compiled"


def entry_in(folder: Path, name: str = "jit_update-0a1b-cache", size: int = 10, age: float = 0) -> Path:
    path = folder / name
    path.write_bytes(bytes(size))
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return path


def test_it_lies_in_the_users_cache_folder_and_is_the_users_alone(root):
    folder = use_cache()
    assert folder is not None
    assert folder.parent == root
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)


def test_a_variable_names_another_folder(root, tmp_path, monkeypatch):
    monkeypatch.setenv("IMPLICITQ_CACHE", str(tmp_path / "other"))
    folder = use_cache()
    assert folder is not None
    assert folder.parent == tmp_path / "other"


@pytest.mark.parametrize("how", ["variable", "argument"])
def test_it_can_be_switched_off_also_for_processes_started_from_here(how, root, monkeypatch):
    if how == "variable":
        monkeypatch.setenv("IMPLICITQ_CACHE", "off")
    else:
        use_cache()
    assert use_cache(how == "variable") is None
    assert os.environ["IMPLICITQ_CACHE"] == "off"
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_folder_that_the_user_has_chosen_for_jax_stays(root, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "mine"))
    assert use_cache() is None
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "mine")
    assert not root.exists()


def test_machines_that_share_a_home_and_processes_with_other_threads_have_folders_of_their_own(root, monkeypatch):
    folders = {use_cache()}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(77)))
    folders.add(use_cache())
    monkeypatch.setattr(Path, "read_text", lambda path: "processor\t: 0\nflags\t\t: sse2\n\nprocessor\t: 1\n")
    folders.add(use_cache())
    assert len(folders) == 3
    assert None not in folders


@pytest.mark.parametrize("harm", ["others may write", "a file is in the way"])
def test_a_folder_that_is_not_safe_is_not_used(harm, root):
    folder = use_cache()
    assert folder is not None
    if harm == "others may write":
        folder.chmod(0o777)
    else:
        folder.rmdir()
        folder.touch()
    assert use_cache() is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_oldest_entries_go_when_it_grows_too_large(root, monkeypatch):
    folder = use_cache()
    assert folder is not None
    monkeypatch.setattr(compilation, "_LARGEST", 100)
    paths = [entry_in(folder, f"jit_f-{age}-cache", 30, age) for age in range(4)]
    use_cache()
    assert [path.exists() for path in paths] == [True, True, False, False]


def test_what_cannot_be_read_is_removed_unless_somebody_may_just_be_writing_it(root):
    folder = use_cache()
    assert folder is not None
    old, young = entry_in(folder, age=1_000), entry_in(folder, "jit_update-ffff-cache")
    other = entry_in(folder, "jit_sample-0a1b-cache", age=1_000)
    assert is_about_cache(READING)
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


def test_other_warnings_are_not_about_the_cache(root):
    use_cache()
    assert not is_about_cache("the training has diverged")


def test_a_warning_is_one_plain_line_unless_it_is_about_the_cache(root, capsys):
    use_cache()
    for message in (READING, "\x1b[33mWARN: Overriding [b] :b:\x1b[0m", "\x1b[2J"):  # as Gymnasium, or a file, has it
        show_warning(UserWarning(message), UserWarning, "file.py", 1)
    assert capsys.readouterr() == ("", "warning: Overriding [b] :b:\nwarning: ?[2J\n")


def test_a_cached_function_gives_the_bits_of_a_fresh_one_and_a_broken_entry_does_no_harm(root):
    """One process: compiled, loaded from disk, and compiled again where all entries have lost their ends."""
    code = """
import hashlib, json, os, pathlib, warnings
from implicitq.compilation import show_warning, use_cache
folder = use_cache()
import jax, numpy as np
import implicitq
import toys
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
warnings.showwarning = show_warning

def trained():
    jax.clear_caches()
    hits.clear()
    with implicitq.make("miq", toys.Toy, **toys.SMALL) as agent:
        arrays = agent.learn(60)._trainer.learner.arrays()
    told = hashlib.sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()
    return told, len(hits)

found = [trained(), trained()]
for path in folder.iterdir():
    path.write_bytes(path.read_bytes()[:-20])
    os.utime(path, (1, 1))
found += [trained(), trained()]
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    assert "cache" not in done.stderr
    fresh, loaded, broken, mended = json.loads(done.stdout)
    assert fresh[0] == loaded[0] == broken[0] == mended[0]
    assert loaded[1] > 10
    assert broken[1] < 5
    assert mended[1] == loaded[1]
