"""The central promise: a run that was stopped, however and however often, ends as the run that never was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import implicitq
import toys
from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.commands.parsing import split_hyperparameters
from implicitq.configs import ALGORITHMS
from implicitq.runs import branches, directory
from implicitq.runs.finding import find_runs
from implicitq.runs.layout import read_config, read_evaluations
from implicitq.sweeps.collecting import collect
from implicitq.train import Trainer

HARD = {
    "num_envs": 3,
    "warmup": "uniform",
    "n_step": 3,
    "normalize_observations": True,
    "replay_size": 90,
    "steps": 150,
}
STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]  # signals, and the exit codes that tell of them


class Crash(BaseException):
    """Stands for the sudden death of the process: nothing may catch it."""


def crash_in_collecting(monkeypatch, calls: int) -> None:
    original = Trainer._collect

    def collect(self: Trainer, *actions: Any) -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise Crash
        original(self, *actions)

    monkeypatch.setattr(Trainer, "_collect", collect)


def crash_in_writing(monkeypatch, calls: int) -> None:
    """Between writing a file and giving it its name, or before a file is deleted."""
    rename, unlink = os.replace, os.unlink

    def count() -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise Crash

    def counted_rename(source: Any, target: Any, **handles: Any) -> None:
        count()
        rename(source, target, **handles)

    def counted_unlink(path: Any, **handle: Any) -> None:
        count()
        unlink(path, **handle)

    monkeypatch.setattr(directory.os, "replace", counted_rename)
    monkeypatch.setattr(directory.os, "unlink", counted_unlink)


def train_with_crashes(directory: Path, values: dict[str, Any], crashes: list[tuple[Any, int]], monkeypatch) -> int:
    """Train to the end, dying on the way as told; gives the number of deaths."""
    deaths = 0
    for crash, calls in crashes:
        started = (directory / "config.json").exists()
        agent = (
            implicitq.resume(directory, trust_env=True) if started else implicitq.make("miq", "toys:Toy-v0", **values)
        )
        with monkeypatch.context() as patch:
            crash(patch, calls)
            try:
                agent.learn(out=None if started else directory)
            except Crash:
                deaths += 1
        agent.close()
    agent = implicitq.resume(directory, trust_env=True)
    agent.learn()
    agent.close()
    return deaths


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Finished runs that were never interrupted, by their settings."""
    from toys import SMALL

    made: dict[str, Path] = {}

    def reference(values: dict[str, Any]) -> Path:
        key = json.dumps(values, sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("reference") / "run"
            agent = implicitq.make("miq", "toys:Toy-v0", **{**SMALL, **values}).learn(out=made[key])
            agent.close()
        return made[key]

    return reference


@pytest.mark.parametrize("values", [{}, HARD], ids=["plain", "hard"])
def test_a_run_that_died_several_times_ends_byte_for_byte_like_one_that_never_did(
    values, references, small, tmp_path, monkeypatch, files_of
):
    generator = np.random.default_rng(len(values))
    crashes = [(crash_in_collecting, int(generator.integers(5, 12)))]  # before the first checkpoint
    for _ in range(3):
        crashes.append((crash_in_writing, int(generator.integers(0, 12))))
        crashes.append((crash_in_collecting, int(generator.integers(1, 25)) // values.get("num_envs", 1)))
    deaths = train_with_crashes(tmp_path / "run", {**small, **values}, crashes, monkeypatch)
    assert deaths >= 5
    expected = files_of(references(values))
    found = files_of(tmp_path / "run")
    assert {"metrics.csv", "evaluations.csv", "evaluations.npz", "policy.safetensors"} <= set(expected)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []


def test_a_death_at_any_moment_of_the_last_checkpoint_is_made_good(references, small, tmp_path, monkeypatch, files_of):
    expected = files_of(references({}))
    start = tmp_path / "start"
    agent = implicitq.make("miq", "toys:Toy-v0", **small)
    with monkeypatch.context() as patch:
        crash_in_collecting(patch, 119)
        with pytest.raises(Crash):
            agent.learn(out=start)
    agent.close()
    # In order: evaluations.npz, rows of the replay, arrays, manifest, two deletions, policy.
    for moment in (1, 3, 5, 6):
        directory = Path(shutil.copytree(start, tmp_path / str(moment)))
        agent = implicitq.resume(directory, trust_env=True)
        with monkeypatch.context() as patch:
            crash_in_writing(patch, moment)
            with pytest.raises(Crash):
                agent.learn()
        agent.close()
        agent = implicitq.resume(directory, trust_env=True)
        agent.learn()
        agent.close()
        found = files_of(directory)
        assert [name for name in expected | found if found.get(name) != expected.get(name)] == [], moment


def test_the_replay_of_hard_settings_has_wrapped(references):
    manifest = json.loads((references(HARD) / "checkpoints" / "000000150.json").read_text())
    assert min(manifest["trainer"]["replay"]["written"]) > HARD["replay_size"] // HARD["num_envs"]


def test_a_death_before_the_first_checkpoint_starts_again_at_step_0(small, tmp_path, monkeypatch):
    agent = implicitq.make("miq", "toys:Toy-v0", **small)
    with monkeypatch.context() as patch:
        crash_in_collecting(patch, 35)
        with pytest.raises(Crash):
            agent.learn(out=tmp_path / "run")
    agent.close()
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 2
    agent = implicitq.resume(tmp_path / "run", trust_env=True)
    assert agent.step == 0
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 1, "only the header"
    agent.close()


def spawn(arguments: list[str], prelude: str = "") -> subprocess.Popen[str]:
    code = f"import sys; {prelude}\nfrom implicitq.commands.main import main\nif __name__ == '__main__': main()"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_step(process: subprocess.Popen[str], metrics: Path, step: int) -> None:
    """Until the run has logged `step`, or ended."""
    while process.poll() is None:
        rows = metrics.read_text().splitlines()[1:] if metrics.exists() else []
        if rows and int(rows[-1].split(",")[0]) >= step:
            return
        time.sleep(0.01)


def assert_equal(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_a_signal_to_the_whole_group_loses_nothing_with_worker_processes(
    number, code, references, small_flags, tmp_path, files_of
):
    """A terminal (Ctrl-C) and `timeout` (SIGTERM) signal the group, the workers too."""
    values = {"num_envs": 2, "steps": 1_000, "log_every": 50, "eval_every": 250, "checkpoint_every": 250}
    flags = [*small_flags, "--num-envs", "2"]
    for name, value in values.items():
        flags[flags.index(f"--{name.replace('_', '-')}") + 1] = str(value)
    directory = tmp_path / "run"
    command = ["train", "miq", "--env", "toys:Toy-v0", "--vectorization", "async", *flags, "--out", str(directory)]
    process = spawn(command)
    wait_for_step(process, directory / "metrics.csv", 300)
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert "nothing is lost. Go on with: implicitq resume" in output
    step = max(int(path.stem) for path in (directory / "checkpoints").glob("*.json"))
    assert 300 <= step < 1_000
    assert f"stopped at step {step:,}" in output
    agent = implicitq.resume(directory, trust_env=True)
    assert agent.step == step
    agent.learn()
    agent.close()
    found, expected = files_of(directory), files_of(references(values))
    for name in ("config.json", "policy.safetensors", "best.safetensors"):  # these tell async there, sync here
        del found[name], expected[name]
    assert_equal(found, expected)


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_a_signal_saves_a_checkpoint_and_says_how_to_go_on(
    number, code, references, small_flags, tmp_path, monkeypatch, capsys, files_of
):
    directory = tmp_path / "run"
    original, calls = Trainer._collect, 0

    def collect(self: Trainer, *actions: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 53:
            os.kill(os.getpid(), number)
        original(self, *actions)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_collect", collect)
        command = ["train", "miq", "--env", "toys:Toy-v0", *small_flags, "--out", str(directory)]
        assert cli.run(command) == code
    assert f"stopped at step 53; nothing is lost. Go on with: implicitq resume {directory}" in capsys.readouterr().out
    assert signal.getsignal(number) is before
    assert cli.run(["resume", str(directory), "--trust-env"]) == 0
    assert "resuming" in capsys.readouterr().out
    assert_equal(files_of(directory), files_of(references({})))


def test_an_environment_that_is_not_deterministic_goes_on_with_a_warning(small, tmp_path):
    agent = implicitq.make("miq", "toys:Unseeded-v0", **{**small, "num_envs": 2}).learn(47, out=tmp_path / "run")
    agent.close()
    with pytest.warns(UserWarning, match=r"not fixed by reset\(seed\). The run goes on with new episodes"):
        agent = implicitq.resume(tmp_path / "run", trust_env=True)
    assert agent.learn().step == 120
    agent.close()
    steps = [int(line.split(",")[0]) for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()[1:]]
    assert steps == [20, 40, 48, 60, 80, 100, 120]


def test_other_conditions_are_refused_unless_inexact_is_accepted(small, tmp_path):
    agent = implicitq.make("miq", "toys:Toy-v0", **small).learn(40, out=tmp_path / "run")
    agent.close()
    path = tmp_path / "run" / "versions.json"
    then = json.loads(path.read_text())
    path.write_text(json.dumps({**then, "threads": 96}))
    with pytest.raises(InputError, match=rf"other conditions \(threads 96 -> {then['threads']}\).*--inexact"):
        implicitq.resume(tmp_path / "run", trust_env=True)
    agent = implicitq.resume(tmp_path / "run", inexact=True, trust_env=True)
    assert agent.step == 40
    agent.close()


def test_other_flags_of_the_compiler_are_other_conditions(small, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    implicitq.make("iq", "toys:Toy-v0", **small).learn(40, out=tmp_path / "run").close()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=SSE4_2")
    with pytest.raises(InputError, match=r"other conditions \(xla_flags None -> --xla_cpu_max_isa=SSE4_2\)"):
        implicitq.resume(tmp_path / "run", trust_env=True)


def test_environment_objects_have_to_be_given_again(small, tmp_path):
    import toys

    agent = implicitq.make("miq", toys.Toy(), **small).learn(40, out=tmp_path / "run")
    agent.close()
    with pytest.raises(InputError, match=r"trained on an environment object; give it as resume\(directory, env=...\)"):
        implicitq.resume(tmp_path / "run")
    agent = implicitq.resume(tmp_path / "run", env=toys.Toy())
    assert agent.learn().step == 120
    agent.close()


def test_a_run_can_go_on_beyond_its_planned_end(references, small, tmp_path, files_of):
    agent = implicitq.make("miq", "toys:Toy-v0", **{**small, "steps": 80}).learn(out=tmp_path / "run")
    agent.close()
    agent = implicitq.resume(tmp_path / "run", trust_env=True)
    agent.extend(120)
    told = []
    agent.learn(listeners=[told.append])
    agent.close()
    assert (told[0].until, told[0].config.steps) == (120, 120)
    assert read_config(tmp_path / "run").steps == 120
    found, expected = files_of(tmp_path / "run"), files_of(references({}))
    for files in (found, expected):
        files.pop("best.safetensors", None)  # its header holds the plan of the time when it was written
    assert_equal(found, expected)


@pytest.mark.parametrize("stops", [(7,), (53, 55), (81, 101, 119)])
def test_stops_between_checkpoints_leave_no_trace_in_any_file(stops, references, small, tmp_path, files_of):
    """The rows of the replay, and which checkpoints are kept, are those of the plan."""
    directory = tmp_path / "run"
    for number, step in enumerate(stops):
        agent = implicitq.resume(directory, trust_env=True) if number else implicitq.make("miq", "toys:Toy-v0", **small)
        agent.learn(out=None if number else directory, listeners=[lambda event, step=step: event.step < step])
        assert agent.step == step
        agent.close()
    implicitq.resume(directory, trust_env=True).learn().close()
    assert_equal(files_of(directory), files_of(references({})))


# A run that goes on with other settings: it may where nothing has another shape, and its folder says so.


def test_a_branch_learns_with_the_new_settings_and_is_noted(run, capsys):
    command = ["resume", str(run), "--trust-env", "--steps", "160", "--learning-rate", "1e-2", "--eval-every", "10"]
    assert cli.run(command) == 0
    assert "with other settings from here on: learning_rate 0.01, eval_every 10" in capsys.readouterr().out
    assert json.loads((run / "branches.json").read_text()) == [
        {"step": 120, "changes": {"learning_rate": [3e-4, 1e-2], "eval_every": [40, 10]}}
    ]
    assert read_config(run).learning_rate == 1e-2
    assert [done.step for done in read_evaluations(run)] == [40, 80, 120, 130, 140, 150, 160]
    implicitq.resume(run, trust_env=True).close()  # which is a run like any other


def test_a_branch_that_dies_goes_on_as_one_that_did_not(run, tmp_path, files_of):
    other = shutil.copytree(run, tmp_path / "other")
    implicitq.resume(run, trust_env=True, steps=160, learning_rate=1e-2).learn().close()
    implicitq.resume(other, trust_env=True, steps=160, learning_rate=1e-2).close()  # before its first checkpoint
    implicitq.resume(other, trust_env=True).learn().close()
    assert files_of(run) == files_of(other)


def test_what_is_not_learnt_may_change_without_a_branch(run):
    implicitq.resume(run, trust_env=True, steps=140, checkpoint_every=10, log_every=5).learn().close()
    assert not (run / "branches.json").exists()
    assert read_config(run).log_every == 5


def test_a_run_that_falls_back_behind_its_branch_says_where_it_begins_now(run):
    implicitq.resume(run, trust_env=True, learning_rate=1e-2).close()
    for path in (run / "checkpoints").glob("*120.*"):
        path.unlink()
    implicitq.resume(run, trust_env=True).close()
    assert [branch.step for branch in branches.read(run)] == [80]


def test_a_branch_that_was_noted_but_not_begun_is_forgotten(run):
    before = (run / "config.json").read_text()
    implicitq.resume(run, trust_env=True, learning_rate=1e-2).close()
    (run / "config.json").write_text(before)  # as if the process had died between the two files
    implicitq.resume(run, trust_env=True, discount=0.5).close()
    assert [branch.changes for branch in branches.read(run)] == [{"discount": [0.99, 0.5]}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": (16,)}, r"hidden cannot change in a run that goes on \(it is \(8,\)\): begin a new run"),
        ({"softmax": "scaled"}, r"softmax cannot change in a run that goes on \(it is 'plain'\): begin a new run"),
        ({"eval_episodes": 9}, "eval_episodes cannot change"),
        ({"learning_rate_decay": 100}, "the saved state has nothing for .* begin a new run with learning_rate_decay"),
        ({"learning_rate": -1.0}, "learning_rate must be a positive number, got -1.0"),
        ({"lr": 1.0}, "miq has no hyperparameter 'lr'; did you mean 'learning_rate'?"),
        ({"alpha": 0.0}, "can be used: the saved state has 'algorithm.target.policy.* begin a new run with alpha"),
    ],
)
def test_what_cannot_change_is_refused_and_nothing_is_touched(run, files_of, changes, words):
    before = files_of(run)
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        implicitq.resume(run, trust_env=True, **changes)
    assert files_of(run) == before


def test_a_run_can_go_on_with_steady_logits(small, tmp_path):
    with implicitq.make("iq", toys.Toy, **{**small, "temperature": "auto"}) as agent:
        agent.learn(60, out=tmp_path / "run")
        before = agent.log_prob(np.zeros((1, 3)), np.zeros((1, 2)))
    with implicitq.resume(tmp_path / "run", toys.Toy, softmax="steady") as agent:
        np.testing.assert_array_equal(agent.log_prob(np.zeros((1, 3)), np.zeros((1, 2))), before)
        agent.learn(20)
    assert [branch.changes for branch in branches.read(tmp_path / "run")] == [{"softmax": ["plain", "steady"]}]


def test_the_report_and_a_table_know_a_branch(run, tmp_path):
    implicitq.resume(run, trust_env=True, steps=160, learning_rate=1e-2).learn().close()
    (found,) = find_runs(tmp_path).runs
    assert found.branches == ("from step 120 with learning_rate 0.0003 -> 0.01",)
    from implicitq.reports.reading import gather

    assert any("run is a branch: it went on from step 120" in note for note in gather(tmp_path).notes)
    with pytest.raises(InputError, match="run is broken: a branch, which no seed gives: from step 120"):
        collect(tmp_path, tmp_path / "table")


@pytest.mark.parametrize("content", ["{}", '[{"step": 1}]', '[{"step": 1, "changes": {"discount": 3}}]'])
def test_a_note_that_is_none_is_said(run, content):
    (run / "branches.json").write_text(content)
    with pytest.raises(InputError, match=r"branches.json must be a list of entries"):
        implicitq.resume(run, trust_env=True)


def test_flags_of_hyperparameters_are_told_from_those_of_the_command():
    words = ["--learning-rate", "1e-4", "DIR", "--steps", "9", "--hidden", "8", "8", "--eval-every=5", "--inexact"]
    own, rest = split_hyperparameters(words, {"steps", "inexact"})
    assert own == ["--learning-rate", "1e-4", "--hidden", "8", "8", "--eval-every=5"]
    assert rest == ["DIR", "--steps", "9", "--inexact"]


BOX_OR_CHOICE = {name: "toys:DiscreteToy-v0" if "dqn" in name else "toys:Toy-v0" for name in ALGORITHMS}


def parameters(agent: implicitq.Agent) -> dict[str, np.ndarray]:
    return agent._actor.arrays()


@pytest.mark.parametrize("algorithm", ["miq", "iq-auto", "sac", "mdqn"])
def test_networks_targets_and_averages_begin_with_the_policy(algorithm, small, tmp_path):
    values = {**small, "normalize_observations": True}
    if "dqn" in algorithm or algorithm == "sac":
        values.pop("bins")
    env = BOX_OR_CHOICE[algorithm]
    with implicitq.make(algorithm, env, **values) as first:
        first.learn(40).save(tmp_path / "first.policy")
    with implicitq.make(algorithm, env, seed=7, **values) as agent:
        agent.start_from(tmp_path / "first.policy")
        known = parameters(implicitq.load(tmp_path / "first.policy", trust_env=True))
        assert parameters(agent).keys() == known.keys()
        assert all(np.array_equal(array, known[name]) for name, array in parameters(agent).items())
        state = jax.tree.unflatten(agent._trainer.learner._structure, agent._trainer.learner._unpacked()).algorithm
        online = {array.tobytes() for array in map(np.asarray, jax.tree.leaves(state.online))}
        assert {array.tobytes() for array in map(np.asarray, jax.tree.leaves(state.target))} <= online
        assert agent.learn(30).step == 30


def test_a_run_that_dies_before_its_first_checkpoint_begins_with_the_policy_again(run, small, tmp_path, files_of):
    for name in ("whole", "part"):
        agent = implicitq.make("miq", "toys:Toy-v0", seed=3, **small).start_from(run)
        agent.learn(0 if name == "part" else None, out=tmp_path / name)
        agent.close()
    implicitq.resume(tmp_path / "part", trust_env=True).learn().close()
    assert files_of(tmp_path / "part") == files_of(tmp_path / "whole")
    noted = json.loads((tmp_path / "whole" / "branches.json").read_text())
    assert noted == [{"step": 0, "changes": {"initial policy": [None, "miq on toys:Toy-v0, seed 0, after 120 steps"]}}]
    (found,) = (each for each in find_runs(tmp_path).runs if each.name == "whole")
    assert found.branches == ("from step 0 with initial policy None -> 'miq on toys:Toy-v0, seed 0, after 120 steps'",)
    implicitq.resume(tmp_path / "whole", trust_env=True, steps=140, learning_rate=1e-2).learn().close()
    assert len(json.loads((tmp_path / "whole" / "branches.json").read_text())) == 2


def test_the_command_takes_a_run_or_a_file_and_says_what_does_not_fit(run, small_flags, tmp_path, capsys):
    words = ["train", "miq", "--env", "toys:Toy-v0", *small_flags]
    assert cli.run([*words, "--from", str(run / "best.safetensors"), "--out", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "start.safetensors").exists()
    capsys.readouterr()
    assert cli.run([*words, "--bins", "5", "--from", str(run), "--out", str(tmp_path / "other")]) == 2
    assert "does not fit this agent: its weights were learnt with bins 3, this agent has 5" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (tmp_path / "other").exists()


def test_weights_that_would_mean_another_policy_are_refused(small, tmp_path):
    with implicitq.make("iq", toys.Toy, **small) as first:
        first.save(tmp_path / "policy")
    with (
        implicitq.make("iq", toys.Toy, softmax="scaled", **small) as agent,
        pytest.raises(InputError, match="learnt with softmax 'plain', this agent has 'scaled'"),
    ):
        agent.start_from(tmp_path / "policy")
    with (
        implicitq.make("iq", toys.Toy, log_policy="density", **small) as agent,
        pytest.raises(InputError, match="learnt with log_policy 'probability', this agent has 'density'"),
    ):
        agent.start_from(tmp_path / "policy")
    with implicitq.make("iq", toys.Toy, softmax="steady", **small) as agent:
        agent.start_from(tmp_path / "policy")  # softmax(F) in both
    with (
        implicitq.make("iq", toys.DiscreteToy, **small) as agent,
        pytest.raises(InputError, match="learnt with actions 'Box', this agent has 'Discrete'"),
    ):
        agent.start_from(tmp_path / "policy")


def test_a_run_goes_on_with_the_spaces_and_the_evaluations_that_it_began_with(small, tmp_path):
    def shorter():
        return toys.Toy(end_chance=0, limit=4)

    implicitq.make("miq", toys.Toy, eval_env=shorter, **small).learn(60, out=tmp_path / "run").close()
    with pytest.raises(InputError, match=r"\(eval_env object:shorter -> None\).*resume\(directory, eval_env=\.\.\.\)"):
        implicitq.resume(tmp_path / "run", toys.Toy)
    with pytest.raises(InputError, match=r"the run has actions in Box\(.*, the environment has Discrete\(3"):
        implicitq.resume(tmp_path / "run", toys.DiscreteToy, eval_env=toys.DiscreteToy, inexact=True)
    with implicitq.resume(tmp_path / "run", toys.Toy, eval_env=shorter) as agent:
        assert agent.learn(20).evaluate(2).lengths == (4, 4)
    implicitq.resume(tmp_path / "run", toys.Toy, inexact=True).close()


def test_a_run_that_has_begun_cannot_start_from_a_policy(run, small):
    with implicitq.make("miq", "toys:Toy-v0", **small) as agent:
        agent.learn(20)
        with pytest.raises(InputError, match="start_from is for an agent that came from make, before its first step"):
            agent.start_from(run)
