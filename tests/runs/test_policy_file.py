"""Policy files are data: good ones come back exactly, any other gives one sentence, quickly and in little memory."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import implicitq
import toys
from implicitq import InputError, configs
from implicitq.commands import main as cli
from implicitq.envs import space_data
from implicitq.envs.making import EnvironmentMaker
from implicitq.evaluate import Evaluator
from implicitq.runs.layout import read_evaluations

GOOD = Path(__file__).parent.parent / "fixtures/layout-1/miq.safetensors"


def parts(path: Path = GOOD) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a policy file."""
    with safetensors.safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["implicitq"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write(path: Path, header: Any, arrays: Mapping[str, np.ndarray]) -> Path:
    """A policy file, whatever its header is; a text stands for itself."""
    text = header if isinstance(header, str) else json.dumps(header)
    path.write_bytes(safetensors.numpy.save(dict(arrays), {"implicitq": text}))
    return path


def altered(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The good policy with a change to its header."""
    header, arrays = parts()
    change(header)
    return write(path, header, arrays)


def with_config(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda header: header["config"].update(values)


def with_space(which: str, **space: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda header: header.update({which: space})


MANY = 10**9
OVERSIZED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a layer without end": with_config(hidden=[10**18]),
    "two wide layers": with_config(hidden=[30_000, 30_000]),
    "many layers": with_config(hidden=[1] * 900),
    "many bins": with_config(bins=65_536),
    "a large choice": with_space("action_space", kind="Discrete", n=MANY, start=0, dtype="int64"),
    "a choice that just fits a file": with_space("action_space", kind="Discrete", n=10**6, start=0, dtype="int64"),
    "many large choices": with_space(
        "action_space", kind="MultiDiscrete", nvec=[10**6] * 100_000, start=[0] * 100_000, dtype="int64"
    ),
    "as many bits as a file may have": with_space("action_space", kind="MultiBinary", n=10**6),
    "a large observation": with_space("observation_space", kind="Discrete", n=MANY, start=0, dtype="int64"),
    "many bits": with_space("action_space", kind="MultiBinary", n=MANY),
    "bits on many axes": with_space("observation_space", kind="MultiBinary", n=[10**6, 10**6]),
    "sums that overflow": with_space(
        "observation_space", kind="MultiDiscrete", nvec=[2**62] * 4, start=[0] * 4, dtype="int64"
    ),
    "a huge Box": with_space(
        "observation_space", kind="Box", shape=[MANY, MANY], dtype="float32", low=["0"], high=["1"]
    ),
    "a product of many axes": with_space(
        "observation_space", kind="Box", shape=[10**18] * 100_000, dtype="float32", low=["0"], high=["1"]
    ),
}
"""Small files that ask for much memory or time."""


OLD_RUNS = ("iq-weights", "miq-auto", "sac")
OLD_POLICIES = ["miq.safetensors", "mdqn.safetensors", *(f"{run}/policy.safetensors" for run in OLD_RUNS)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
WORDS = ["kind", "shape", "dtype", "low", "high", "n", "start", "nvec", "parts"]
KINDS = ["Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"]
NUMBERS = st.integers(-3, 3) | st.sampled_from([2**31, 2**63, 10**18, 10**400, -(2**63), 0.5, float("inf")])
TEXTS = st.sampled_from(["float32", "int8", "uint64", "object", "nan", "inf", "-1e400", "1", "0.5", "Box", "S9"])
LISTS = st.recursive(NUMBERS | TEXTS | JSON, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
SPACES = st.recursive(
    st.fixed_dictionaries({"kind": st.sampled_from(KINDS)}, optional=dict.fromkeys(WORDS[1:], LISTS)),
    lambda inner: st.fixed_dictionaries(
        {"kind": st.sampled_from(["Dict", "Tuple"]), "parts": st.lists(inner | st.tuples(LISTS, inner), max_size=3)}
    ),
    max_leaves=3,
)


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        implicitq.load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1_000
    return str(caught.value)


@pytest.mark.parametrize("name", OLD_POLICIES)
def test_files_without_a_digest_still_load_and_come_back_with_one(name, layout_1, tmp_path):
    path = layout_1 / name
    assert parts(path)[0]["format"] == 1
    first = implicitq.load(path)
    first.save(tmp_path / "again")
    header, arrays = parts(tmp_path / "again")
    assert header["format"] == 2
    assert len(header["digest"]) == 64
    again = implicitq.load(tmp_path / "again")
    assert (again.config, again.step) == (first.config, first.step)
    for name, array in parts(path)[1].items():
        assert array.tobytes() == arrays[name].tobytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "policy"
    implicitq.load(GOOD).save(path)
    return path


def test_one_flipped_bit_of_the_weights_is_noticed(saved, tmp_path):
    content = bytearray(saved.read_bytes())
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    for position in np.linspace(begin, len(content) - 1, 12).astype(int):
        content[position] ^= 1
        (tmp_path / "flipped").write_bytes(content)
        assert "its checksum is wrong" in refused(tmp_path / "flipped")
        content[position] ^= 1


def test_one_changed_number_of_the_header_is_noticed(saved, tmp_path):
    header, arrays = parts(saved)
    header["action_space"]["high"] = ["2.5"]
    assert "its checksum is wrong" in refused(write(tmp_path / "changed", header, arrays))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(number, tmp_path):
    header, arrays = parts()
    arrays["networks.value.network.biases.0"][3] = number
    sentence = refused(write(tmp_path / "policy", header, arrays))
    assert "networks.value.network.biases.0 has a weight that is not finite" in sentence


@pytest.mark.parametrize("change", OVERSIZED.values(), ids=OVERSIZED.keys())
def test_a_small_file_that_asks_for_much_is_refused(change, tmp_path):
    refused(altered(tmp_path / "policy", change))


def test_small_files_that_ask_for_much_get_no_memory(tmp_path):
    """A process that may take another 700 MB, a good file first so that all of JAX is there."""
    for number, change in enumerate(OVERSIZED.values()):
        altered(tmp_path / f"{number}.policy", change)
    code = """
import resource, sys, time
from pathlib import Path
import implicitq
good, *bad = sys.argv[1:]
implicitq.load(good)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 700_000_000,) * 2)
for path in bad:
    begin = time.process_time()
    try:
        implicitq.load(path)
    except implicitq.InputError:
        assert time.process_time() - begin < 5, path
    else:
        raise AssertionError(path)
"""
    files = [str(GOOD), *map(str, sorted(tmp_path.glob("*.policy")))]
    subprocess.run([sys.executable, "-c", code, *files], check=True, timeout=240)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda h: h.update(kind="checkpoint"), "it is no policy file"),
        (lambda h: h.update(format=3), "it has format 3, known here are 1 to 2"),
        (lambda h: h.update(format="1"), "it has format '1', known here are 1 to 2"),
        (lambda h: h.update(format=0), "it has format 0"),
        (lambda h: h.pop("format"), "it has format None"),
        (lambda h: h.update(format=2), "its header has no digest"),
        (lambda h: h.update(format=2, digest=7), "its checksum is wrong"),
        (lambda h: h.pop("config"), "its header has no config"),
        (lambda h: h.pop("action_space"), "its header has no action_space"),
        (lambda h: h.update(step=-1), "its step must be a whole number of at least 0, got -1"),
        (lambda h: h.update(step=True), "its step must be a whole number"),
        (lambda h: h.update(config=[1]), "a config is a table of hyperparameters, got list"),
        (with_config(hidden="8"), "hidden must be whole numbers, got '8'"),
        (with_config(hidden=[-8]), "hidden must be at most 64 positive layer sizes"),
        (with_config(bins=-3), "bins must be a whole number from 2"),
        (with_config(temperature=10**400), "temperature must be"),
        (with_config(discount={"a": 1}), "'discount' must be a number, a text or a list of numbers"),
        (with_config(env="x" * 2_000), "'env' must be a number, a text or a list of numbers"),
        (with_config(algorithm="sac"), "sac has no hyperparameter"),
        (with_config(hidden=[9]), r"expected float32\[3, 9\]"),
        (with_config(hidden=[90]), "stand for at least 451 weights, but it holds 100"),
        (lambda h: h.update(observation_space=7), "a space cannot be made of 7"),
        (with_space("action_space", kind="Box", shape=[1], dtype="object", low=["0"], high=["1"]), "got 'object'"),
        (with_space("action_space", kind="Box", shape=[-1], dtype="float32", low=[], high=[]), "got -1"),
        (with_space("action_space", kind="Discrete", n=-4, start=0, dtype="int64"), "got -4"),
        (with_space("action_space", kind="MultiDiscrete", nvec=["9" * 99], start=[0], dtype="int64"), "whole numbers"),
        (with_space("action_space", kind="Tuple", parts=[]), "action space Tuple.* is not supported"),
    ],
)
def test_a_malformed_header_is_refused_in_a_sentence(change, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        implicitq.load(altered(tmp_path / "policy", change))


@pytest.mark.parametrize("header", ["", "{", "[]", "null", "[" * 100_000, '{"a":' * 50_000])
def test_a_header_that_is_no_table_is_refused(header, tmp_path):
    refused(write(tmp_path / "policy", header, parts()[1]))


def test_spaces_inside_of_spaces_end_somewhere(tmp_path):
    inner = {"kind": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
    for _ in range(200):
        inner = {"kind": "Tuple", "parts": [inner]}
    sentence = refused(altered(tmp_path / "policy", with_space("observation_space", **inner)))
    assert "a space is nested more than 32 deep" in sentence


def test_arrays_that_do_not_fit_are_refused_before_they_are_read(tmp_path):
    header, arrays = parts()
    name = "networks.policy.network.weights.0"
    wide = {**arrays, name: arrays[name].astype(np.float64)}
    assert f"float64[3, 8] for {name}, expected float32[3, 8]" in refused(write(tmp_path / "wide", header, wide))
    turned = {**arrays, name: np.ascontiguousarray(arrays[name].T)}
    assert f"float32[8, 3] for {name}, expected float32[3, 8]" in refused(write(tmp_path / "turned", header, turned))
    more = {**arrays, "more": arrays[name]}
    assert "has 'more', which is not known here" in refused(write(tmp_path / "more", header, more))


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "BF16", "F4", "X9"])
def test_types_that_no_policy_has_are_refused(dtype, tmp_path):
    content = GOOD.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    layout = json.loads(content[8 : 8 + length])
    size = {"BF16": 2, "F4": 0.5}.get(dtype, 1)
    for name, entry in layout.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            entry.update(dtype=dtype, shape=[int((last - first) / size)])
    text = json.dumps(layout).encode()
    (tmp_path / "policy").write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    refused(tmp_path / "policy")


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 64, struct.pack("<Q", 2**62) + b"{}", b"PK\x03\x04" * 9])
def test_what_is_no_array_file_is_refused(content, tmp_path):
    (tmp_path / "policy").write_bytes(content)
    assert "is not a file of implicitq, or is damaged" in refused(tmp_path / "policy")


def only_input_errors(function, data) -> None:
    with contextlib.suppress(InputError):
        function(data)


@given(JSON | st.dictionaries(st.sampled_from([*configs.to_json(configs.resolve("iq", "X-v0"))]), JSON, max_size=4))
def test_any_data_make_a_config_or_a_sentence(data):
    only_input_errors(configs.from_json, data)
    if isinstance(data, dict):
        for algorithm in ("iq", "miq-auto", "sac", "dqn"):
            only_input_errors(configs.from_json, {**data, "algorithm": algorithm, "env": "X-v0"})


@given(st.sampled_from([*configs.to_json(configs.resolve("iq", "X-v0"))]), NUMBERS | LISTS)
def test_any_value_makes_a_config_or_a_sentence(name, value):
    good = configs.to_json(configs.resolve("miq", "X-v0"))
    only_input_errors(configs.from_json, {**good, name: value})


@pytest.mark.filterwarnings("default::UserWarning")  # of Gymnasium, about bounds
@given(JSON | SPACES)
def test_any_data_make_a_space_or_a_sentence(data):
    only_input_errors(space_data.rebuild, data)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["config", "observation_space", "action_space", "step", "format", "digest"]), JSON | SPACES)
def test_any_header_makes_a_policy_or_a_sentence(tmp_path, name, value):
    path = altered(tmp_path / "policy", lambda header: header.update({name: value}))
    only_input_errors(implicitq.load, path)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, GOOD.stat().st_size - 1), st.integers(1, 255))
def test_any_changed_byte_of_a_saved_file_is_noticed_or_changes_nothing(saved, tmp_path, position, change):
    content = bytearray(saved.read_bytes())
    content[position] ^= change
    (tmp_path / "policy").write_bytes(content)
    try:
        found = implicitq.load(tmp_path / "policy")
    except InputError:
        return
    assert found.config == implicitq.load(saved).config
    assert parts(tmp_path / "policy")[1].keys() == parts(saved)[1].keys()


# The best policy of a run: kept beside the last one, and the same however often the run was interrupted.


class Waning(toys.Toy):
    """Episodes of one step, whose returns are known beforehand."""

    rewards = (1.0, 3.0, 2.0, 3.0)

    def __init__(self) -> None:
        super().__init__(end_chance=0.0, limit=1)

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.rewards[min(self.resets, len(self.rewards)) - 1], terminated, truncated, info


@pytest.fixture(scope="module")
def waned(tmp_path_factory) -> Path:
    """Evaluations of 1, 3, 2 and 3."""
    directory = tmp_path_factory.mktemp("best") / "run"
    values = {**toys.SMALL, "steps": 160, "eval_episodes": 1}
    implicitq.make("miq", toys.Toy, eval_env=Waning, **values).learn(out=directory).close()
    return directory


def test_the_best_policy_is_that_of_the_highest_evaluation_and_of_equals_the_first(waned):
    assert [done.mean for done in read_evaluations(waned)] == [1, 3, 2, 3]
    best, last = implicitq.load(waned, best=True), implicitq.load(waned)
    assert (best.step, last.step) == (80, 160)
    observation = best.observation_space.sample()
    assert best.value(observation) != last.value(observation)


def test_the_best_policy_is_the_one_that_was_evaluated(run):
    done = max(read_evaluations(run), key=lambda evaluation: evaluation.mean)
    assert implicitq.load(run, best=True, trust_env=True).evaluate(2) == done


def test_a_run_that_begins_again_has_no_best_policy_yet(waned, tmp_path):
    run = Path(shutil.copytree(waned, tmp_path / "run"))
    for path in [*(run / "checkpoints").iterdir(), run / "policy.safetensors"]:  # as before the first checkpoint
        path.unlink()
    implicitq.resume(run, toys.Toy, eval_env=Waning).close()
    assert not (run / "best.safetensors").exists()


def test_after_a_fall_back_the_file_is_of_the_checkpoint_and_not_of_what_came_later(small, tmp_path):
    class Rising(Waning):
        rewards = (1.0, 2.0, 3.0)

    values = {**small, "eval_episodes": 1}
    implicitq.make("miq", toys.Toy, eval_env=Rising, **values).learn(out=tmp_path / "run").close()
    assert implicitq.load(tmp_path / "run", best=True).step == 120
    for path in (tmp_path / "run" / "checkpoints").glob("*120.*"):
        path.unlink()
    implicitq.resume(tmp_path / "run", toys.Toy, eval_env=Rising).close()
    assert implicitq.load(tmp_path / "run", best=True).step == 80


def test_runs_of_earlier_versions_have_a_best_policy_from_their_next_evaluation_on(layout_1, tmp_path):
    run = Path(shutil.copytree(layout_1 / "sac", tmp_path / "run"))
    with pytest.raises(InputError, match=r"run has no best.safetensors: no evaluation was made yet, or only by an"):
        implicitq.load(run, best=True)
    implicitq.resume(run, inexact=True).learn(20).close()
    assert implicitq.load(run, best=True).step == 100


@pytest.mark.parametrize(
    "best",
    [
        *({"step": 40}, {"step": -1, "mean": 0.0}, 7),
        *({"step": 40, "mean": mean} for mean in ("much", 1e999, 10**400)),
    ],
)
def test_a_checkpoint_with_a_best_that_cannot_be_is_not_used(run, best):
    from implicitq.runs.files import digest_of

    path = run / "checkpoints" / "000000120.json"
    manifest = json.loads(path.read_text())
    manifest.pop("sha256")
    manifest["trainer"]["best"] = best
    path.write_text(json.dumps({**manifest, "sha256": digest_of(manifest)}))
    with pytest.warns(UserWarning, match="Going on from step 80 instead"):
        implicitq.resume(run, trust_env=True).close()


def test_the_commands_take_the_best_policy(run, capsys):
    step = implicitq.load(run, best=True).step
    assert cli.run(["evaluate", str(run), "--best", "--trust-env", "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == step
    assert cli.run(["evaluate", str(run / "policy.safetensors"), "--best", "--trust-env"]) == 2
    assert "the best policy is kept in run folders" in capsys.readouterr().err
    (run / "best.safetensors").unlink()
    for command in ("evaluate", "video", "export"):
        assert cli.run([command, str(run), "--best"]) == 2
        assert "has no best.safetensors" in capsys.readouterr().err


def test_sampled_evaluations_are_those_of_their_seed(run, capsys):
    agent = implicitq.load(run, trust_env=True)
    drawn = agent.evaluate(3, deterministic=False)
    assert drawn == agent.evaluate(3, deterministic=False)
    assert drawn.returns != agent.evaluate(3).returns
    assert drawn.returns != agent.evaluate(3, deterministic=False, seed=9).returns
    assert cli.run(["evaluate", str(run), "--stochastic", "--trust-env", "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["returns"] == list(drawn.returns)


class Window(toys.Toy):
    metadata = {"render_modes": ["human"], "render_fps": 30}  # noqa: RUF012
    windows = 0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        Window.windows += render_mode == "human"


def test_a_window_shows_the_same_episodes_one_after_the_other(run, monkeypatch, capsys):
    monkeypatch.setitem(gym.registry, "Window-v0", gym.envs.registration.EnvSpec("Window-v0", Window))
    agent = implicitq.load(run, "Window-v0")
    together = agent.evaluate(4)
    assert agent.evaluate(4, render=True).lengths == together.lengths
    assert Window.windows == 1
    command = ["evaluate", str(run), "--env", "Window-v0", "--render", "human", "--episodes", "2"]
    assert cli.run(command) == 0
    assert Window.windows == 2
    with pytest.raises(InputError, match="the environment opens no window: its render_mode is None, not 'human'"):
        implicitq.load(run, toys.Toy()).evaluate(1, render=True)


@pytest.mark.parametrize("task", ["InvertedPendulum-v5", "Pendulum-v1"])
def test_without_a_screen_a_window_is_refused(task, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"a window needs a screen, .* `implicitq video` writes a film instead"):
        Evaluator(EnvironmentMaker(task), 1, 0, shown=True)
    monkeypatch.setenv("DISPLAY", ":0")
    Evaluator(EnvironmentMaker(task), 1, 0, shown=True).close()
