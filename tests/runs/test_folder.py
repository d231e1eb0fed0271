from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import implicitq
from implicitq import InputError
from implicitq.machine import versions
from implicitq.runs.folder import RunFolder
from implicitq.runs.layout import read_config, read_evaluations


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
