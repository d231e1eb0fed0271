"""Several seeds in step: each as it would be alone, in a folder of its own, and stopped and resumed with the others."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import implicitq
import toys
from implicitq import InputError, seeds
from implicitq.commands import main as cli
from implicitq.events import Evaluated, Measured
from implicitq.runs.layout import checkpoint_steps, read_evaluations
from implicitq.runs.logs import read_metrics
from probes import PixelProbe

TOY, SEEDS = "toys:Toy-v0", (3, 0)


def arrays(agent: implicitq.Agent) -> dict[str, np.ndarray]:
    return agent.trainer.learner.arrays()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Two seeds that nothing has stopped."""
    folder = tmp_path_factory.mktemp("seeds") / "whole"
    with implicitq.make("iq", TOY, seeds=SEEDS, **toys.SMALL) as group:
        assert group.learn(out=folder).step == 120
    return folder


@pytest.mark.parametrize(
    ("algorithm", "env", "more"),
    [
        ("iq", TOY, {"num_envs": 2, "normalize_observations": True}),
        ("iq-auto", TOY, {"warmup": "uniform", "updates_per_step": 2}),
        ("sac", TOY, {}),
        ("dqn", "toys:MaskedToy-v0", {}),
    ],
    ids=str,
)
def test_every_seed_learns_what_it_would_learn_alone(algorithm, env, more, small):
    small |= {"steps": 300, "min_replay": 100, "eval_every": 300, "log_every": 100, **more}
    for name in ("bins",) if algorithm in ("sac", "dqn") else ():
        del small[name]
    group = implicitq.make(algorithm, env, seeds=SEEDS, **small)
    group.learn(100)
    alone = [implicitq.make(algorithm, env, seed=seed, **small) for seed in SEEDS]
    for one, other in zip(group.agents, alone, strict=True):
        other.learn(100)
        for name, column in vars(one.trainer.replay).items():  # nothing was learnt yet: the very same steps
            if isinstance(column, np.ndarray):
                np.testing.assert_array_equal(column, vars(other.trainer.replay)[name], name)
    first, second = arrays(group.agents[0]), arrays(group.agents[1])
    assert any(not np.array_equal(first[name], second[name]) for name in first)
    group.learn(8)
    for one, other in zip(group.agents, alone, strict=True):
        other.learn(8)
        mine, theirs = arrays(one), arrays(other)
        for name in theirs:
            np.testing.assert_allclose(mine[name], theirs[name], rtol=2e-3, atol=2e-4, err_msg=name)
        assert one.trainer.episodes == other.trainer.episodes
        other.close()
    group.close()


def test_images_learn_in_step_too(small):
    with implicitq.make("miq", PixelProbe, seeds=[1, 2], **small | {"steps": 30}) as group:
        group.learn()
        assert group.step == 30
        assert all(np.isfinite(value).all() for agent in group.agents for value in arrays(agent).values())


def test_every_seed_has_a_run_folder_that_all_commands_take(whole, capsys):
    for seed in SEEDS:
        folder = whole / f"seed-{seed}"
        assert json.loads((folder / "config.json").read_text())["seed"] == seed
        assert json.loads((folder / "versions.json").read_text())["seeds_together"] == list(SEEDS)
        assert [done.step for done in read_evaluations(folder)] == [40, 80, 120]
        assert implicitq.load(folder).step == 120
    first, second = (read_metrics(whole / f"seed-{seed}")["loss"] for seed in SEEDS)
    assert not np.array_equal(first, second, equal_nan=True)
    assert cli.run(["plot", str(whole), "--out", str(whole / "plot.png")]) == 0
    assert cli.run(["resume", str(whole), "--trust-env"]) == 2
    assert "is finished at step 120" in " ".join(capsys.readouterr().err.split())
    (whole / "plot.png").unlink()


def stopped_at(step: int):
    return lambda agent, event: event.step < step


@pytest.mark.parametrize("stop", [40, 55])
def test_stopped_and_resumed_together_all_end_as_if_never_stopped(stop, whole, tmp_path, small, files_of):
    part = tmp_path / "part"
    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        assert group.learn(out=part, callback=stopped_at(stop)).step == stop
    with seeds.resume(part, trust_env=True) as group:
        assert group.seeds == SEEDS, "in the order in which they were stacked"
        assert group.learn().step == 120
    for seed in SEEDS:
        assert files_of(part / f"seed-{seed}") == files_of(whole / f"seed-{seed}")


def test_after_a_sudden_death_between_two_checkpoints_all_go_on_from_the_last_common_one(
    whole, tmp_path, small, files_of
):
    part = tmp_path / "part"
    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        group.learn(out=part, callback=stopped_at(80))
    last = part / f"seed-{SEEDS[1]}" / "checkpoints"
    for path in last.glob("*80.*"):
        path.unlink()
    assert [checkpoint_steps(part / f"seed-{seed}") for seed in SEEDS] == [[40, 80], [40]]
    with seeds.resume(part, trust_env=True) as group:
        assert group.step == 40
        group.learn()
    for seed in SEEDS:
        assert files_of(part / f"seed-{seed}") == files_of(whole / f"seed-{seed}")


def test_one_seed_alone_goes_on_only_if_that_is_accepted_as_inexact(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    with pytest.raises(InputError, match=r"seeds_together \[3, 0\] -> None.*implicitq resume .*copy\), or .*--inexact"):
        implicitq.resume(copy / "seed-0", trust_env=True)
    with implicitq.resume(copy / "seed-0", trust_env=True, inexact=True) as agent:
        assert agent.learn(5).step == 125
    with seeds.resume(copy, trust_env=True) as group:
        assert group.step == 120, "the last step at which both have a checkpoint"
    shutil.rmtree(copy / "seed-3")
    with pytest.raises(InputError, match=r"has no seed-3, which was trained together with \[0\]"):
        seeds.resume(copy, trust_env=True)


def test_the_command_trains_stops_at_a_signal_and_goes_on(whole, tmp_path, small_flags, files_of, capsys, monkeypatch):
    out = tmp_path / "out"
    original = toys.Toy.step
    calls = 0

    def step(self: toys.Toy, action: Any):
        nonlocal calls
        calls += 1
        if calls == 99:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(toys.Toy, "step", step)
        code = cli.run(["train", "iq", "--env", TOY, "--seeds", *map(str, SEEDS), "--out", str(out), *small_flags])
    assert code == 130
    told = " ".join(capsys.readouterr().out.split())
    assert "seeds 3 0, 120 steps" in told
    assert f"Go on with: implicitq resume {out}" in told
    steps = [checkpoint_steps(out / f"seed-{seed}") for seed in SEEDS]
    assert steps[0] == steps[1]
    assert 0 < steps[0][-1] < 120
    assert cli.run(["resume", str(out), "--trust-env"]) == 0
    told = capsys.readouterr().out
    assert "std over seeds" in told
    assert f"implicitq report {out}" in told
    for seed in SEEDS:
        assert files_of(out / f"seed-{seed}") == files_of(whole / f"seed-{seed}")


def test_an_environment_that_fails_stops_all_seeds_and_is_named(tmp_path, small):
    made = []

    def make() -> toys.Toy:
        made.append(toys.Breaks(50, "error") if len(made) == 1 else toys.Toy())
        return made[-1]

    group = implicitq.make("iq", make, seeds=SEEDS, **small)
    with pytest.raises(InputError, match=r"^seed 0: the environment failed in step.*the floor gave way"):
        group.learn(out=tmp_path / "out")
    group.close()
    assert [checkpoint_steps(tmp_path / "out" / f"seed-{seed}") for seed in SEEDS] == [[40, 50], [40]]
    with seeds.resume(tmp_path / "out", toys.Toy) as group:
        assert group.step == 40


def test_callbacks_hear_which_agent_an_event_is_of(small):
    heard = []
    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        group.learn(40, callback=lambda agent, event: heard.append((agent.config.seed, type(event), event.step)))
        assert repr(group) == f"<Seeds (3, 0): iq on {TOY}, step 40>"
        with pytest.raises(InputError, match="learns in step with other seeds"):
            group.agents[0].learn(1)
        results = group.evaluate(episodes=3)
        assert {seed: len(done.returns) for seed, done in results.items()} == {3: 3, 0: 3}
    assert [each for each in heard if each[1] is Evaluated] == [(3, Evaluated, 40), (0, Evaluated, 40)]
    assert [each[0] for each in heard if each[1] is Measured] == [3, 0, 3, 0]


@pytest.mark.parametrize("wrong", [[], [0, 0], 3, ["0"], [True], [-1], "01"])
def test_seeds_that_are_none_are_refused(wrong, small):
    with pytest.raises(InputError, match=r"seeds? must be"):
        implicitq.make("iq", TOY, seeds=wrong, **small)


def test_seed_and_seeds_exclude_each_other_and_folders_must_be_free(whole, small, capsys):
    with pytest.raises(InputError, match="give seed for one agent, or seeds for several"):
        implicitq.make("iq", TOY, seed=0, seeds=SEEDS, **small)
    assert cli.run(["train", "iq", "--env", TOY, "--seed", "1", "--seeds", "1", "2"]) == 2
    assert "give --seed for one run, or --seeds for several" in " ".join(capsys.readouterr().err.split())
    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        with pytest.raises(InputError, match="already holds runs; go on with: implicitq resume"):
            group.learn(out=whole)
        with pytest.raises(InputError, match="not an empty folder"):
            group.learn(out=whole / "seed-0")
