"""A run folder: what is in it, and what comes of one that vanishes, lost files, or is on a full disk."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import implicitq
import toys
from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.configs import resolve
from implicitq.machine import versions
from implicitq.runs.folder import RunFolder
from implicitq.runs.layout import read_config, read_evaluations, read_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    from toys import SMALL

    directory = tmp_path_factory.mktemp("runs") / "deep" / "run"
    agent = implicitq.make("miq", "toys:Toy-v0", **SMALL, seed=5).learn(out=directory)
    agent.close()
    return directory


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_has_the_documented_layout(finished):
    names = {path.name for path in finished.iterdir()} - {".lock"}
    assert names == {
        "config.json",
        "versions.json",
        "metrics.csv",
        "timing.csv",
        "evaluations.csv",
        "evaluations.npz",
        "policy.safetensors",
        "best.safetensors",
        "curve.png",
        "checkpoints",
        "replay",
    }


def test_the_config_can_be_read_back(finished, small):
    config = read_config(finished)
    assert config == implicitq.make("miq", "toys:Toy-v0", **small, seed=5).config
    assert json.loads((finished / "config.json").read_text())["layout"] == 1


def test_versions_hold_all_that_bits_depend_on(finished):
    known = json.loads((finished / "versions.json").read_text())
    assert known == versions()
    assert {"python", "jax", "jaxlib", "numpy", "gymnasium", "mujoco", "processor", "threads"} <= set(known)


def test_metrics_have_one_header_and_a_row_per_interval(finished):
    rows = rows_of(finished / "metrics.csv")
    assert [int(row["step"]) for row in rows] == [20, 40, 60, 80, 100, 120]
    assert list(rows[0]) == [
        "step",
        *("episodes", "updates", "episode_return", "episode_length"),
        *("entropy_per_dimension", "gradient_norm", "loss", "q", "td_error", "value"),
        *("kl", "overestimation", "return_spread", "plausible_value"),
    ]
    assert [int(row["updates"]) for row in rows] == [1, 21, 41, 61, 81, 101]
    assert all(np.isfinite(float(row["loss"])) for row in rows)
    assert 0 < float(rows[-1]["entropy_per_dimension"]) <= np.log(3) + 1e-6


def test_metrics_before_the_first_update_are_nan_under_the_same_header(small, tmp_path):
    agent = implicitq.make("miq", "toys:Toy-v0", **{**small, "min_replay": 50, "steps": 40})
    with pytest.warns(UserWarning, match=r"no update was made: the first one comes after 50 steps \(min_replay\)"):
        agent.learn(out=tmp_path / "run")
    agent.close()
    rows = rows_of(tmp_path / "run" / "metrics.csv")
    assert {row["loss"] for row in rows} == {"nan"}
    assert {row["updates"] for row in rows} == {"0"}


def test_clocks_are_in_timing_alone(finished):
    rows = rows_of(finished / "timing.csv")
    assert list(rows[0]) == ["step", "wall_seconds", "cpu_seconds"]
    wall = [float(row["wall_seconds"]) for row in rows]
    assert [int(row["step"]) for row in rows] == [20, 40, 40, 60, 80, 80, 100, 120, 120]  # and after checkpoints
    assert wall == sorted(wall)


def test_the_clocks_of_a_resumed_run_go_on_from_the_end_of_its_checkpoint(small, tmp_path):
    implicitq.make("miq", "toys:Toy-v0", **small, seed=5).learn(40, out=tmp_path / "run").close()
    path = tmp_path / "run" / "timing.csv"
    *rest, last = path.read_text().splitlines()
    path.write_text("\n".join([*rest, "40,1000.0,500.0", ""]))  # as if the evaluation at 40 had taken long
    assert last.startswith("40,")
    implicitq.resume(tmp_path / "run", trust_env=True).learn(20).close()
    step, wall, processor = map(float, path.read_text().splitlines()[-1].split(","))
    assert step == 60
    assert 1_000 < wall < 1_100
    assert 500 < processor < 600


def test_evaluations_are_kept_as_csv_and_in_the_schema_of_stable_baselines3(finished):
    done = read_evaluations(finished)
    rows = rows_of(finished / "evaluations.csv")
    assert [e.step for e in done] == [40, 80, 120]
    assert list(rows[0]) == [
        *("step", "mean_return", "std_return", "mean_length"),
        *("return_0", "return_1", "length_0", "length_1"),
    ]
    assert [float(row["mean_return"]) for row in rows] == [e.mean for e in done]
    with np.load(finished / "evaluations.npz") as arrays:
        assert set(arrays) == {"timesteps", "results", "ep_lengths"}
        assert arrays["timesteps"].tolist() == [40, 80, 120]
        assert arrays["results"].shape == arrays["ep_lengths"].shape == (3, 2)
        assert arrays["results"].tolist() == [list(e.returns) for e in done]
        assert arrays["ep_lengths"].tolist() == [list(e.lengths) for e in done]


def test_the_last_evaluation_is_that_of_the_saved_policy(finished):
    agent = implicitq.load(finished, trust_env=True)
    assert agent.step == 120
    assert agent.evaluate(2) == read_evaluations(finished)[-1]


def test_a_folder_that_holds_a_run_is_refused(finished, small, files_of):
    before = files_of(finished)
    with pytest.raises(InputError, match=r"already holds a run; go on with: implicitq resume .*, or choose another"):
        implicitq.make("miq", "toys:Toy-v0", **small).learn(out=finished)
    assert files_of(finished) == before


def test_a_folder_with_other_things_or_a_file_is_refused(small, tmp_path):
    (tmp_path / "photo.png").write_bytes(b"")
    config = implicitq.make("miq", "toys:Toy-v0", **small).config
    with pytest.raises(InputError, match="is not an empty folder; choose another --out"):
        RunFolder.create(tmp_path, config)
    with pytest.raises(InputError, match="is not an empty folder; choose another --out"):
        RunFolder.create(tmp_path / "photo.png", config)


def test_a_folder_that_was_only_begun_can_be_used(small, tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / "versions.json").write_text("{}")
    RunFolder.create(tmp_path, implicitq.make("miq", "toys:Toy-v0", **small).config).close()
    assert json.loads((tmp_path / "versions.json").read_text()) == versions()


def test_two_processes_cannot_write_one_run(finished):
    code = "import sys, implicitq.runs.folder as r; r.RunFolder.open(sys.argv[1])"
    holder = RunFolder.open(finished)
    done = subprocess.run([sys.executable, "-c", code, finished], capture_output=True, text=True, check=False)
    holder.close()
    assert done.returncode != 0
    assert f"another process is training in {finished}" in done.stderr
    RunFolder.open(finished).close()


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a run folder: it has no config.json"):
        implicitq.resume(tmp_path)
    with pytest.raises(InputError, match=r"is not a run folder: it has no config.json"):
        implicitq.resume(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        implicitq.resume(tmp_path)
    (tmp_path / "config.json").write_text('{"layout": 2}')
    with pytest.raises(InputError, match="has run-folder layout 2; known here: up to 1"):
        implicitq.resume(tmp_path)


def test_a_folder_that_this_process_holds_is_said_to_be_its_own(run):
    agent = implicitq.resume(run, trust_env=True)
    with pytest.raises(InputError, match=r"this process already has .*run open; close the agent that trains there"):
        implicitq.resume(run, trust_env=True)
    agent.close()
    with implicitq.resume(run, trust_env=True) as agent:
        assert repr(agent) == f"<Agent miq on toys:Toy-v0, seed 0, step 120, acts and learns, run folder {str(run)!r}>"
    RunFolder.open(run).close()  # closed by `with`


def test_packages_that_a_task_does_not_use_do_not_count(small, tmp_path):
    values = {**small, "steps": 40}
    for name, env in (("one", "Pendulum-v1"), ("other", "toys:Toy-v0")):
        implicitq.make("miq", env, **values).learn(20, out=tmp_path / name).close()
        path = tmp_path / name / "versions.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "mujoco": "2.0.0"}))
    implicitq.resume(tmp_path / "one").close()
    with pytest.raises(InputError, match=r"other conditions \(mujoco 2.0.0 -> "):
        implicitq.resume(tmp_path / "other", trust_env=True)


def test_the_package_that_a_task_comes_from_counts_where_it_was_recorded(tmp_path):
    RunFolder.create(tmp_path / "run", resolve("iq", "dm_control/cartpole-swingup-v0")).close()
    path = tmp_path / "run" / "versions.json"
    recorded = json.loads(path.read_text())
    with closing(RunFolder.open(tmp_path / "run")) as run:
        run.check_exactness()
        path.write_text(json.dumps({**recorded, "shimmy": "0.1"}))
        with pytest.raises(InputError, match=r"other conditions \(shimmy 0.1 -> "):
            run.check_exactness()
        path.write_text(json.dumps({name: recorded[name] for name in recorded.keys() - {"shimmy"}}))
        run.check_exactness()  # a run from before it was recorded


# Folders that vanish, files that were lost or edited, disks that are full: a sentence, and nothing made worse.


def said(capsys) -> str:
    return " ".join(capsys.readouterr().err.split())


def edit_config(run: Path, **changes) -> None:
    path = run / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_that_was_removed_is_not_made_again(small, tmp_path):
    agent = implicitq.make("miq", "toys:Toy-v0", **small).learn(40, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(InputError, match=r"run was removed or replaced while a run was writing it; nothing more"):
        agent.learn()
    agent.close()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["moved", "removed", "lock removed"])
def test_a_run_does_not_write_into_one_that_took_its_place(how, small, tmp_path, files_of):
    directory = tmp_path / "run"
    agent = implicitq.make("miq", "toys:Toy-v0", **small).learn(40, out=directory)
    if how == "lock removed":
        (directory / ".lock").unlink()
        implicitq.resume(directory, trust_env=True).learn(20).close()
    else:
        shutil.rmtree(directory) if how == "removed" else directory.rename(tmp_path / "elsewhere")
        implicitq.make("iq", "toys:Toy-v0", **small).learn(40, out=directory).close()
    before = files_of(tmp_path)
    with pytest.raises(InputError, match="was removed or replaced"):
        agent.learn()
    agent.close()
    assert files_of(tmp_path) == before


CLOCKS = b"step,wall_seconds,cpu_seconds\n20,1,1\n40,x,2\n80,3,nan\n80,4,2\n"


@pytest.mark.parametrize(
    "content",
    [None, b"", b"step,wall", b"\0" * 40, CLOCKS],
    ids=["missing", "empty", "cut short", "zeros", "damaged rows"],
)
@pytest.mark.filterwarnings("default::UserWarning")  # shown, as to a user
def test_a_damaged_timing_file_is_rebuilt(run, content, capsys):
    (run / "timing.csv").unlink()
    if content is not None:
        (run / "timing.csv").write_bytes(content)
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "140"]) == 0
    assert "timing.csv was damaged; its clocks go on from what is left" in said(capsys)
    header, *rows = (run / "timing.csv").read_text().splitlines()
    assert header == "step,wall_seconds,cpu_seconds"
    assert [int(row.split(",")[0]) for row in rows][-2:] == [140, 140]
    assert len(rows) == (4 if content == CLOCKS else 2)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("discount", 0.91, "discount 0.99 there, 0.91 now"),
        ("batch_size", 16, "batch_size 8 there, 16 now"),
        ("env", "toys:Unseeded-v0", "env toys:Toy-v0 there, toys:Unseeded-v0 now"),
        ("eval_episodes", 3, "eval_episodes 2 there, 3 now"),
    ],
)
def test_a_config_that_was_edited_is_refused(run, files_of, name, value, words, capsys):
    edit_config(run, **{name: value})
    before = files_of(run)
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert f"config.json was changed after the checkpoint at step 120 ({words}); set it back" in said(capsys)
    assert files_of(run) == before


def test_what_may_change_without_changing_the_results_may_be_edited(run):
    edit_config(run, steps=500, checkpoint_every=7, log_every=3, vectorization="async")
    RunFolder.open(run).close()


@pytest.mark.parametrize("name", ["iq-weights", "miq-auto", "sac"])
def test_run_folders_of_earlier_versions_go_on(name, layout_1, tmp_path):
    directory = Path(shutil.copytree(layout_1 / name, tmp_path / "run"))
    agent = implicitq.resume(directory, inexact=True)
    assert agent.step == 80
    before = (directory / "metrics.csv").read_text().splitlines()
    assert agent.learn(20).step == 100
    agent.close()
    after = (directory / "metrics.csv").read_text().splitlines()
    assert after[: len(before)] == before
    assert after[-1].startswith("100,")
    assert {row.count(",") for row in after} == {before[0].count(",")}, "with the columns that the file had"


@pytest.mark.parametrize("name", ["iq-weights", "miq-auto", "sac", "mdqn.safetensors", "miq.safetensors"])
def test_policies_of_earlier_versions_answer_as_they_did(name, layout_1):
    agent = implicitq.load(layout_1 / name)
    known = json.loads((layout_1 / "answers.json").read_text())[name.removesuffix(".safetensors")]
    size = agent.observation_space.shape[0]
    observations = np.linspace(-0.5, 0.5, 2 * size).reshape(2, size).astype(np.float32)
    action = agent.predict(observations, deterministic=True)[0]
    np.testing.assert_allclose(action, known["action"], atol=1e-5)
    np.testing.assert_allclose(agent.value(observations), known["value"], atol=1e-5)
    np.testing.assert_allclose(agent.q_value(observations, action), known["q_value"], atol=1e-5)


def test_an_evaluation_that_was_edited_is_not_believed(run, tmp_path, capsys):
    path = run / "evaluations.csv"
    lines = path.read_text().splitlines()
    cells = lines[-1].split(",")
    path.write_text("\n".join([*lines[:-1], ",".join([cells[0], "1e6", *cells[2:]]), ""]))
    with pytest.raises(InputError, match=r"evaluations.csv was altered: it is not as it was at the checkpoint of step"):
        read_run(run, "run")
    assert cli.run(["collect", str(tmp_path), str(tmp_path / "table")]) != 0
    assert "evaluations.csv was altered" in " ".join(capsys.readouterr()).replace("\n", " ")


def test_settings_that_were_edited_are_not_reported_as_those_of_the_run(run, capsys):
    edit_config(run, discount=0.91)
    assert cli.run(["report", str(run.parent)]) == 2
    assert "config.json was changed after the checkpoint at step 120 (discount 0.99 there, 0.91 now)" in said(capsys)


@pytest.mark.parametrize("how", ["edited", "gone"])
def test_metrics_that_were_damaged_are_left_out_of_a_table_and_named(run, how, tmp_path, capsys):
    content = (run / "metrics.csv").read_bytes()
    (run / "metrics.csv").unlink()
    if how == "edited":
        (run / "metrics.csv").write_bytes(content[:-2] + (b"1\n" if content[-2:] != b"1\n" else b"2\n"))
    assert cli.run(["collect", str(run.parent), str(tmp_path / "table")]) == 0
    assert "left out: the metrics of run: " in capsys.readouterr().out
    assert not (tmp_path / "table/metrics.csv").exists()


def test_evaluations_without_checkpoints_are_read_as_they_are(run):
    shutil.rmtree(run / "checkpoints")
    assert read_run(run, "run").steps.tolist() == [40, 80, 120]


def test_evaluations_after_the_checkpoint_are_read_too(run):
    row = (run / "evaluations.csv").read_text().splitlines()[-1].split(",", 1)[1]
    with open(run / "evaluations.csv", "a") as file:
        file.write(f"160,{row}\n170,1")
    found = read_run(run, "run")
    assert (found.steps.tolist(), found.cut) == ([40, 80, 120, 160], True)


def test_a_run_without_its_checkpoints_does_not_begin_again_over_its_results(run, files_of, capsys):
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    before = files_of(run)
    assert cli.run(["resume", str(run), "--trust-env"]) == 2
    assert "the checkpoints of" in (words := said(capsys))
    assert "implicitq evaluate" in words
    assert files_of(run) == before


def test_training_that_failed_leaves_the_folder_to_whoever_goes_on(small, tmp_path):
    agent = implicitq.make("miq", toys.Breaks(75, "error"), eval_env=toys.Toy, **small)
    with pytest.raises(Exception, match="the floor gave way"):
        agent.learn(out=tmp_path / "run")
    other = implicitq.resume(tmp_path / "run", toys.Toy(), eval_env=toys.Toy)
    assert other.step == 40
    other.close()
    with pytest.raises(InputError, match=r"the training has ended; go on with implicitq.resume"):
        agent.learn()
    agent.close()


@pytest.mark.parametrize("calls", [1, 2, 3, 6, 9, 12])
def test_a_full_disk_names_the_file_and_leaves_no_half(calls, small, small_flags, tmp_path, monkeypatch, capsys):
    flush = os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls -= 1
        if not calls:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    directory = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert cli.run(["train", "miq", "--env", "toys:Toy-v0", *small_flags, "--out", str(directory)]) == 2
    words = said(capsys)
    assert "cannot be written: No space left on device" in words
    assert str(directory) in words.replace(" ", "")
    assert not list(directory.rglob("*.part"))
    if (directory / "config.json").exists():
        RunFolder.open(directory).close()
    else:
        RunFolder.create(directory, implicitq.make("miq", "toys:Toy-v0", **small).config).close()


def test_what_was_left_half_written_goes(run, finished_toy, files_of):
    names = ["replay/000000060-0001.safetensors", "checkpoints/000000120.json", "curve.png", "config.json"]
    for name in names:
        (run / f"{name}.part").write_bytes(b"half")
    (run / "replay" / "notes.safetensors").write_text("not ours")
    implicitq.resume(run, trust_env=True).close()
    assert files_of(run) == {**files_of(finished_toy), "replay/notes.safetensors": b"not ours"}


def test_a_run_without_its_config_is_told_from_an_empty_folder(run, small_flags, files_of, capsys):
    (run / "config.json").unlink()
    before = files_of(run)
    assert cli.run(["resume", str(run), "--trust-env"]) == 2
    assert "is not a run folder: it has no config.json" in said(capsys)
    assert cli.run(["train", "miq", "--env", "toys:Toy-v0", *small_flags, "--out", str(run)]) == 2
    assert "holds a run that has lost its config.json; put it back, or choose another --out" in said(capsys)
    assert files_of(run) == before


def test_the_curve_of_a_run_that_died_at_its_very_end_is_drawn(run, finished_toy, capsys):
    (run / "curve.png").unlink()
    assert cli.run(["resume", str(run), "--trust-env"]) == 2
    assert "is finished at step 120" in said(capsys)
    assert (run / "curve.png").read_bytes() == (finished_toy / "curve.png").read_bytes()
