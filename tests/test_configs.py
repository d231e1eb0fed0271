from __future__ import annotations

import dataclasses
import inspect
import json
import re

import numpy as np
import pytest

from implicitq import configs
from implicitq.types import InputError

WHOLE = "a whole number of at least 1"
STEPS = "a whole number from 1 to 2000000000"


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        *[(name, 0, WHOLE) for name in ("replay_size", "min_replay")],
        ("steps", 0, STEPS),
        *[(name, 0, WHOLE) for name in ("eval_every", "checkpoint_every", "log_every")],
        *[(name, 0, "a whole number from 1 to 10000") for name in ("n_step", "num_envs")],
        ("batch_size", 0, "a whole number from 1 to 1000000"),
        ("eval_episodes", 0, "a whole number from 1 to 100000"),
        ("steps", -5, STEPS),
        ("steps", 10**13, STEPS),
        ("steps", 2.5, "a whole number"),
        ("steps", True, "a whole number"),
        ("seed", -1, "a whole number from 0 to 4294967295"),
        ("seed", 2**32, "a whole number from 0 to 4294967295"),
        ("discount", 1, "a number in [0, 1)"),
        ("discount", -0.1, "a number in [0, 1)"),
        ("target_update", 0, "a number in (0, 1]"),
        ("target_update", 1.1, "a number in (0, 1]"),
        ("learning_rate", 0, "a positive number"),
        ("learning_rate", float("inf"), "a positive number"),
        ("learning_rate", "fast", "a number"),
        ("hidden", (64, 0), "at most 64 positive layer sizes"),
        ("hidden", (64, 0.5), "whole numbers"),
        ("hidden", 512, "whole numbers"),
        ("normalize_observations", 1, "True or False"),
        ("vectorization", "fork", "'sync' or 'async'"),
        *[("preset", word, "'paper', 'none' or the path of a .toml or .json file") for word in ("best", "file")],
        ("temperature", 0, "a positive number or 'auto'"),
        ("temperature", -1.0, "a positive number or 'auto'"),
        ("temperature", float("nan"), "a number or 'auto' or None"),
        ("temperature", float("inf"), "a positive number or 'auto'"),
        ("alpha", -0.1, "a number in [0, 1]"),
        ("alpha", 1.5, "a number in [0, 1]"),
        ("bins", 1, "a whole number from 2 to 65536"),
        ("bins", 65_537, "a whole number from 2 to 65536"),
        ("policy", "spline", " or ".join(map(repr, configs.POLICIES))),
        ("softmax", "hard", "'plain' or 'steady' or 'scaled'"),
        ("munchausen_clip", 0, "a positive number or None"),
        ("munchausen_clip", -1.0, "a positive number or None"),
        ("munchausen_clip", "off", "a number or None"),
    ],
)
def test_a_bad_value_is_refused_by_name_with_what_came_and_what_is_accepted(name, value, accepted):
    with pytest.raises(InputError) as caught:
        configs.resolve("iq", "Task-v0", **{name: value})
    assert str(caught.value) == f"{name} must be {accepted}, got {value!r}"


@pytest.mark.parametrize(
    "values",
    [
        {"replay_size": 500, "min_replay": 501},
        {"replay_size": 40, "min_replay": 1, "num_envs": 10, "n_step": 3},
    ],
)
def test_a_replay_too_small_for_its_use_is_refused(values):
    with pytest.raises(InputError, match=r"replay_size must be at least min_replay .* and n_step \+ 2 rows for each"):
        configs.resolve("iq", "Task-v0", **values)


@pytest.mark.parametrize(
    ("algorithm", "values"),
    [("miq", {"log_policy": "density"}), ("miq", {"log_policy": "centred"}), ("miq-gaussian", {})],
)
def test_a_clip_of_log_probabilities_is_refused_where_ln_pi_may_be_positive(algorithm, values):
    with pytest.raises(InputError, match="munchausen_clip must be None where ln pi is not that of a prob"):
        configs.resolve(algorithm, "Task-v0", munchausen_clip=1.0, **values)


def test_the_smallest_useful_replay_is_accepted():
    assert configs.resolve("iq", "Task-v0", replay_size=50, min_replay=50, num_envs=10, n_step=3).replay_size == 50


def test_defaults_are_the_paper_s():
    config = configs.resolve("iq", "HalfCheetah-v5")
    expected = {
        "temperature": 0.01,
        "alpha": 0.0,
        "bins": 11,
        "softmax": "plain",
        "discount": 0.99,
        "target_update": 0.005,
        "learning_rate": 3e-4,
        "batch_size": 256,
        "replay_size": 1_000_000,
        "min_replay": 10_000,
        "hidden": (512, 512),
        "eval_every": 10_000,
        "eval_episodes": 10,
        "munchausen_clip": None,
    }
    assert {name: getattr(config, name) for name in expected} == expected
    munchausen = configs.resolve("miq", "HalfCheetah-v5")
    assert (munchausen.temperature, munchausen.alpha) == (0.1, 0.9)


@pytest.mark.parametrize(
    ("algorithm", "env", "expected"),
    [
        ("iq", "Humanoid-v5", {"learning_rate": 3e-5, "temperature": 0.01}),
        ("miq", "Walker2d-v4", {"learning_rate": 3e-5, "temperature": 0.1}),
        ("iq", "AdroitHandDoor-v1", {"temperature": 0.001}),
        ("miq", "AdroitHandPen-v1", {"temperature": 0.01}),
        ("miq", "Pendulum-v1", {"hidden": (256, 256), "min_replay": 1_000, "steps": 10_000, "eval_every": 1_000}),
        ("iq", "CartPole", {"hidden": (256, 256), "steps": 10_000}),
        ("iq", "package.module:space/Pendulum-v1", {"steps": 10_000}),
        ("iq", "object:Pendulum-v1", {"steps": 10_000}),
        ("iq", "PendulumLike-v1", {"steps": 1_000_000}),
    ],
)
def test_a_known_task_brings_its_preset(algorithm, env, expected):
    config = configs.resolve(algorithm, env)
    assert {name: getattr(config, name) for name in expected} == expected


def test_preset_none_is_one_setting_for_all_tasks():
    plain = configs.resolve("iq", "Humanoid-v5", preset="none")
    assert plain == dataclasses.replace(configs.resolve("iq", "Task-v0"), env="Humanoid-v5", preset="none")
    assert configs.describe_preset(plain) == "preset: none"


def test_overrides_win_over_the_preset_and_the_preset_line_shows_what_is_left():
    config = configs.resolve("iq", "Pendulum-v1", steps=77, hidden=[32, 16])
    assert (config.steps, config.hidden, config.min_replay) == (77, (32, 16), 1_000)
    line = configs.describe_preset(config)
    assert line == "preset: Pendulum-v1: min_replay 1,000, eval_every 1,000, checkpoint_every 5,000"
    assert "hidden 256-256" in configs.describe_preset(configs.resolve("iq", "Pendulum-v1"))
    assert configs.describe_preset(configs.resolve("iq", "Hopper-v5")) == "preset: none for this task"


@pytest.mark.parametrize("algorithm", configs.ALGORITHMS)
@pytest.mark.parametrize("values", [{}, {"learning_rate": 1.0, "hidden": (), "preset": "none", "steps": 5}])
def test_a_config_survives_json(algorithm, values):
    config = configs.resolve(algorithm, "Humanoid-v5", **values)
    assert configs.from_json(json.loads(json.dumps(configs.to_json(config)))) == config


@pytest.mark.parametrize(
    "values",
    [
        {"munchausen_clip": 1.0},
        {"kl": 0.3, "entropy": 0.1},
        {"temperature": 0.3, "entropy": 0.1},
        {"temperature": "auto", "softmax": "scaled", "entropy": 0.1},
    ],
)
def test_a_config_of_an_implicit_algorithm_survives_json(values):
    config = configs.resolve("miq", "Humanoid-v5", **values)
    assert configs.from_json(json.loads(json.dumps(configs.to_json(config)))) == config


def test_whole_floats_and_numpy_numbers_become_plain_ones():
    config = configs.resolve(
        "iq", "Task-v0", steps=1e6, seed=np.int64(3), temperature=np.float32(0.5), hidden=list(np.array([4, 5]))
    )
    values = (config.steps, config.seed, config.temperature, *config.hidden)
    assert values == (1_000_000, 3, 0.5, 4, 5)
    assert [type(value) for value in values] == [int, int, float, int, int]
    json.dumps(configs.to_json(config))


def test_an_unknown_algorithm_gets_the_nearest_name_and_all_known_ones():
    with pytest.raises(InputError, match=r"unknown algorithm 'miqq'; did you mean 'miq'\? known: .*iq, .*miq, .*sac"):
        configs.resolve("miqq", "Task-v0")


def test_an_unknown_hyperparameter_gets_the_nearest_name():
    with pytest.raises(InputError, match=r"iq has no hyperparameter 'temprature'; did you mean 'temperature'\?"):
        configs.resolve("iq", "Task-v0", temprature=0.1)
    with pytest.raises(InputError, match="iq has no hyperparameter 'tau'"):
        configs.resolve("iq", "Task-v0", tau=0.1)


def test_a_file_without_the_names_of_algorithm_and_env_is_refused():
    with pytest.raises(InputError, match="needs the names of its algorithm and its env"):
        configs.from_json({"steps": 5})


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        configs.resolve("iq", "Task-v0").steps = 3  # pyright: ignore


@pytest.mark.parametrize("entry", configs.ALGORITHMS.values(), ids=list(configs.ALGORITHMS))
def test_every_hyperparameter_has_a_help_text(entry):
    """Tyro reads the comment on the line of the field, lost if a formatter breaks the line, or the text below it.

    Or there is a mark with a text that is made from a table.
    """
    text = "".join(inspect.getsource(kind) for kind in entry.config.__mro__[:-1])
    shown = [field.name for field in dataclasses.fields(entry.config) if field.name != "algorithm"]
    told = r"(  # [A-Za-z|].*\.|\n    \"\"\"[A-Z][^\"]*\.\"\"\"|FLAG\(help=.*)$"
    missing = [name for name in shown if not re.search(rf"^    {name}: .+{told}", text, re.MULTILINE)]
    assert missing == []


def test_gaussian_policies_without_truncation_are_refused_where_they_would_act():
    data = configs.to_json(configs.resolve("iq-gaussian", "Pendulum-v1"))
    configs.refuse_outdated(data)
    del data["members"]
    assert configs.from_json(data).algorithm == "iq-gaussian"  # its results can be read
    with pytest.raises(InputError, match="a gaussian without truncation, which this version does not have"):
        configs.refuse_outdated(data)


def test_a_preset_file_is_described_by_what_is_not_the_default(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('algorithm = "iq"\n[settings]\nlearning_rate = 0.001\nhidden = [64, 64]\n')
    told = configs.describe_preset(configs.resolve("iq", "Hopper-v5", path, bins=3))
    assert told == "preset: from a file; other than the defaults: learning_rate 0.001, hidden 64-64, bins 3"
    path.write_text('algorithm = "iq"\n[settings]\nlearnin_rate = 0.001\n')
    with pytest.raises(InputError, match=r"mine\.toml: iq has no hyperparameter 'learnin_rate'; did you mean 'learn"):
        configs.resolve("iq", "Hopper-v5", path)
    path.write_text("[settings]\nlearning_rate = 0.001\n")
    with pytest.raises(InputError, match=r"mine\.toml does not say which algorithm it is for, such as: algo"):
        configs.resolve("iq", "Hopper-v5", path)


def test_a_preset_all_of_whose_values_were_given_otherwise_says_so():
    config = configs.resolve("iq", "Walker2d-v5", learning_rate=1e-3)
    assert configs.describe_preset(config) == "preset: Walker2d-v5: nothing, other values were given for all of it"


def test_steady_logits_of_a_preset_step_back_for_a_policy_that_has_none():
    assert configs.resolve("iq-auto", "Task-v0").softmax == "steady"
    assert configs.resolve("iq-auto", "Task-v0", policy="gaussian").softmax == "plain"
    assert configs.resolve("iq-auto", "Task-v0", policy="multicategorical").softmax == "steady"
    assert configs.resolve("iq-auto", "Task-v0", policy="gaussian", softmax="scaled").softmax == "scaled"
    with pytest.raises(InputError, match="softmax must be 'plain' or 'scaled' with policy 'gaussian', got 'steady'"):
        configs.resolve("iq-auto", "Task-v0", policy="gaussian", softmax="steady")
    with pytest.raises(InputError, match="policy must be"):
        configs.resolve("iq-auto", "Task-v0", policy=["gaussian"])
