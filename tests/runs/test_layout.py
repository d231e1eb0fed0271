"""The files of a run folder as they are read, whole or broken; and study tables, which read back as written."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.configs import resolve, to_file
from implicitq.reports.reading import gather
from implicitq.runs import layout, study_table
from implicitq.runs.curve import _PANELS, Curves, _points, overview, read_curves
from implicitq.runs.finding import find_runs
from implicitq.runs.logs import read_metrics
from implicitq.runs.settings import ForeignConfig, differences, identity
from implicitq.runs.study_table import COLUMNS, is_table, read_table, write_table
from implicitq.sweeps import collecting, random_scores
from implicitq.sweeps.collecting import collect
from implicitq.sweeps.studies import Study, Variant, expand
from implicitq.sweeps.suites import Suite
from implicitq.sweeps.sweep import plan_path, read_plans
from implicitq.types import Evaluation
from run_fixtures import VERSIONS, write_run


def write_evaluations(folder: Path, text: str) -> None:
    (folder / layout.EVALUATIONS).write_text(text)


def test_evaluations_are_read_with_every_episode(tmp_path):
    header = ",".join(layout.evaluation_columns(2))
    assert header == "step,mean_return,std_return,mean_length,return_0,return_1,length_0,length_1"
    write_evaluations(tmp_path, f"{header}\n40,2.0,1.0,4.5,1.0,3.0,4,5\n80,2.5,0.5,6.0,2.0,3.0,6,6\n120,")
    assert layout.read_evaluations(tmp_path) == [Evaluation((1.0, 3.0), (4, 5), 40), Evaluation((2.0, 3.0), (6, 6), 80)]


@pytest.mark.parametrize("read", [layout.read_evaluations, layout.read_curve])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it has no evaluations.csv"),
        ("mean_return,step\n", "does not begin with its header"),
        ("step,mean_return,std_return\n10,1.0\n", "has a row that is not whole"),
        ("step,mean_return,std_return\nx,1.0,1.0\n", "has a row that is not of numbers"),
    ],
)
def test_both_readers_of_evaluations_refuse_in_the_same_words(tmp_path, read, text, message):
    if text is not None:
        write_evaluations(tmp_path, text)
    with pytest.raises(InputError, match=message):
        read(tmp_path)


def test_checkpoints_are_counted_by_their_finished_files(tmp_path):
    assert layout.checkpoint_steps(tmp_path) == []
    folder = tmp_path / layout.CHECKPOINTS
    folder.mkdir()
    for name in ("000000120.json", "000000080.json", "000000160.safetensors", "000000200.json.part", "notes.json"):
        (folder / name).write_text("{}")
    assert layout.checkpoint_steps(tmp_path) == [80, 120]


def test_the_last_score_is_known_however_many_episodes_an_evaluation_has(tmp_path):
    rows = [f"{step},-1234.5,1.0,1000.0{',-1234.567890123456' * 1_000}{',1000' * 1_000}" for step in (40, 80)]
    write_evaluations(tmp_path, "\n".join([",".join(layout.evaluation_columns(1_000)), *rows, ""]))
    assert layout.progress_of(tmp_path) == layout.Progress(step=80, score=-1234.5)


def test_seeds_behind_links_are_no_part_of_a_folder(tmp_path):
    for name in ("elsewhere", "here/seed-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / layout.CONFIG).write_text("{}")
    (tmp_path / "here/seed-0").symlink_to(tmp_path / "elsewhere")
    assert layout.seeds_in(tmp_path / "here") == [1]


def test_a_committed_run_folder_is_read(layout_1):
    run = layout.read_run(layout_1 / "sac", "sac")
    assert run.config == layout.read_config(layout_1 / "sac")
    assert run.finished
    assert layout.read_evaluations(run.folder)[-1].mean == run.means[-1]


def test_a_run_of_another_library_is_read_with_what_it_tells(tmp_path):
    values = {"algorithm": "sbx-sac", "env": "HalfCheetah-v5", "steps": 30, "seed": 2, "learning_starts": 5}
    (tmp_path / layout.CONFIG).write_text(json.dumps(values))
    write_evaluations(tmp_path, "step,mean_return,std_return\n10,1.5,0.0\n20,2.5,0.0\n")
    run = layout.read_run(tmp_path, "run")
    assert run.config == ForeignConfig("sbx-sac", "HalfCheetah-v5", 30, 2, 10, values)
    assert not run.finished
    (tmp_path / layout.CONFIG).write_text(json.dumps({**values, "steps": "many"}))
    with pytest.raises(InputError, match=r"config.json has no steps that can be used, got 'many'"):
        layout.read_run(tmp_path, "run")
    (tmp_path / layout.CONFIG).write_text(json.dumps({**values, "algorithm": "sac"}))
    with pytest.raises(InputError, match=r"config.json has run-folder layout None"):
        layout.read_run(tmp_path, "run")


HEADERS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("form", list(HEADERS))
def test_a_run_is_drawn_in_every_format(run, tmp_path, form, capsys):
    assert cli.run(["plot", str(run), "--out", str(tmp_path / f"picture.{form}")]) == 0
    assert (tmp_path / f"picture.{form}").read_bytes().startswith(HEADERS[form])
    assert "1 run(s)" in capsys.readouterr().out


def test_runs_are_found_below_a_folder_once_and_told_apart_by_what_differs(run, tmp_path):
    for seed in (1, 2):
        other = shutil.copytree(run, tmp_path / "more" / f"seed-{seed}")
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "seed": seed}))
    shutil.copytree(run, tmp_path / "more" / ".aside")  # no run of this folder, for reports either
    found = read_curves([run, tmp_path / "more", run])
    assert [curves.label for curves in found] == ["seed 0", "seed 1", "seed 2"]
    assert overview(found).startswith(HEADERS["png"])
    shutil.copytree(run, tmp_path / "more" / "again")
    assert f"({tmp_path / 'more' / 'again'})" in read_curves([run, tmp_path / "more"])[1].label


def test_every_panel_has_the_numbers_of_the_logs(run):
    (found,) = read_curves([run])
    columns = read_metrics(run)
    assert found.label == "miq on toys:Toy-v0, seed 0"
    for panel, column in _PANELS.items():
        steps, values = _points(found, panel)
        if column == "":
            assert steps.tolist() == [40, 80, 120]
        elif column == "temperature":
            assert values.tolist() == [0.1] * 6, "a fixed one is that of the config"
        else:
            known = np.isfinite(columns[column])
            np.testing.assert_array_equal(values, columns[column][known])
            np.testing.assert_array_equal(steps, columns["step"][known])


def test_a_run_of_another_library_has_its_evaluations_only(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"algorithm": "sbx-sac", "env": "Task $x$", "steps": 20, "seed": 0})
    )
    (tmp_path / "evaluations.csv").write_text("step,mean_return,more\n10,1.5,0\n20,2.5,0\n")
    found = read_curves([tmp_path])
    assert _points(found[0], "evaluation, mean return")[1].tolist() == [1.5, 2.5]
    assert overview(found).startswith(HEADERS["png"])


def test_numbers_that_no_axis_has_are_left_out_of_a_picture(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"algorithm": "sbx-sac", "env": "Task", "steps": 20, "seed": 0, "temperature": 10**400})
    )
    (tmp_path / "metrics.csv").write_text("step,loss\n10,nan\n")
    with pytest.raises(InputError, match="there is nothing to draw yet in"):
        read_curves([tmp_path])
    (tmp_path / "metrics.csv").write_text("step,loss\n10,1.7e308\n20,-1.7e308\n1e300,1\n40,-1e50\n50,1e50\n60,2\n")
    found = read_curves([tmp_path])
    assert _points(found[0], "loss")[0].tolist() == [40, 50, 60]
    assert overview(found).startswith(HEADERS["png"])


def test_a_plot_knows_the_temperature_that_two_weights_add_up_to(tmp_path):
    (tmp_path / "run").mkdir()
    config = resolve("miq", "Pendulum-v1", temperature=None, alpha=None, kl=0.09, entropy=0.01)
    (tmp_path / "run" / "config.json").write_text(json.dumps(to_file(config)))
    (tmp_path / "run" / "metrics.csv").write_text("step,loss\n10,1.0\n20,2.0\n")
    (found,) = read_curves([tmp_path / "run"])
    assert found.temperature == pytest.approx(0.1)


def test_many_runs_have_a_legend_that_ends():
    steps = np.array([1.0, 2.0])
    runs = [Curves(f"run {number}", [], {"step": steps, "loss": steps}) for number in range(30)]
    assert overview(runs).startswith(HEADERS["png"])


def test_what_cannot_be_drawn_is_said(run, tmp_path, capsys):
    for words, sentence in (
        ([tmp_path / "nothing"], "nothing is not a folder"),
        ([tmp_path / "empty"], "there is no run in"),
        ([run, "--out", "picture.jpeg"], "the picture must end in .png, .svg or .pdf, got picture.jpeg"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert cli.run(["plot", *map(str, words)]) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())
    for name in ("evaluations.csv", "metrics.csv"):
        header = (run / name).read_text().splitlines()[0]
        (run / name).write_text(f"{header}\n")
    with pytest.raises(InputError, match="there is nothing to draw yet in"):
        read_curves([run])
    (run / "metrics.csv").write_text("step,loss\n1,2,3\n")
    with pytest.raises(InputError, match=r"run cannot be drawn: metrics.csv is not a table that begins with step"):
        read_curves([run])


# Study tables: what is written reads back, and what is broken is refused in one sentence.


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def table(finished_sweep, tmp_path) -> Path:
    """The finished sweep as a table, without its run folders."""
    collect(finished_sweep, tmp_path / "table")
    shutil.rmtree(finished_sweep)
    return tmp_path / "table"


def test_a_table_is_a_few_files_with_these_columns(table):
    assert sorted(path.name for path in table.iterdir()) == ["about.json", "evaluations.csv"]
    header, first, *rest = (table / "evaluations.csv").read_text().splitlines()
    assert header == ",".join(COLUMNS) == "algo,env,seed,step,mean_return,cpu_seconds"
    assert first.split(",")[:4] == ["iq", "InvertedPendulum-v5", "0", "1000"]
    assert first.endswith(",nan")  # these runs have no clocks
    assert len(rest) == 2 * 3 * 3 * 10 - 1
    about = json.loads((table / "about.json").read_text())
    assert list(about) == ["configs", "versions", "random_scores", "plans"]
    assert set(about["random_scores"]) == {"InvertedPendulum-v5", "Pendulum-v1"}
    assert [(plan["study"], plan["suite"]) for plan in about["plans"]] == [("small", "boxes")]
    (versions,) = about["versions"]
    assert versions["versions"] == VERSIONS
    assert versions["runs"]["sac"] == {"InvertedPendulum-v5": [0, 1, 2], "Pendulum-v1": [0, 1, 2]}
    entries = about["configs"]
    assert len(entries) == 6
    assert entries[0]["seeds"] == [0, 1, 2]
    assert not {"env", "seed"} & set(entries[0]["config"])


def test_the_runs_of_a_table_are_those_that_were_collected(small_plan, tmp_path):
    for run in small_plan.runs:
        write_run(tmp_path / "runs", run, 10.0, rate=0.5)
    before = {identity(run.config): run for run in find_runs(tmp_path / "runs").runs}
    collect(tmp_path / "runs", tmp_path / "table")
    after = read_table(tmp_path / "table")
    assert len(after) == len(before) == len(small_plan.runs)
    for run in after:
        same = before[identity(run.config)]
        assert run.config == same.config
        assert run.name == same.name
        assert (run.versions, run.finished) == (same.versions, same.finished)
        for name in ("steps", "means", "seconds"):
            assert getattr(run, name).tolist() == getattr(same, name).tolist()


def test_a_run_folder_is_no_place_for_a_table(small_plan, tmp_path):
    folder = write_run(tmp_path, small_plan.runs[0], 10.0)
    before = (folder / "evaluations.csv").read_bytes()
    for source in (folder, tmp_path):
        with pytest.raises(InputError, match="is the folder of a run, whose files a table would replace"):
            collect(source, folder)
    assert (folder / "evaluations.csv").read_bytes() == before


def test_lines_that_differ_in_a_sign_have_folders_of_their_own(tmp_path):
    values = ({"entropy_target": -0.5}, {"entropy_target": 0.5})
    plan = expand(
        Study("two", "", tuple(Variant("sac", each) for each in values)), Suite("s", ("Pendulum-v1",)), 1, 5_000
    )
    for run in plan.runs:
        write_run(tmp_path / "runs", run, 10.0)
    collect(tmp_path / "runs", tmp_path / "table")
    names = {run.name for run in read_table(tmp_path / "table")}
    assert names == {f"Pendulum-v1/sac-entropy-target-{value}/seed-0" for value in ("0.5", "minus-0.5")}


def test_two_lines_that_a_table_would_call_the_same_are_refused_before_it_is_written(tmp_path):
    for number, label in enumerate(("sbx sac", "sbx-sac")):
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(parents=True)
        config = {"algorithm": label, "env": "Pendulum-v1", "steps": 20, "seed": 0, "learning_rate": number}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "evaluations.csv").write_text("step,mean_return,more\n10,1.5,0\n20,2.5,0\n")
    with pytest.raises(InputError, match="two different runs would be called"):
        collect(tmp_path / "runs", tmp_path / "table")
    assert not is_table(tmp_path / "table")


def test_a_half_written_row_of_metrics_is_not_collected(small_plan, tmp_path):
    folder = write_run(tmp_path / "runs", small_plan.runs[0], 10.0)
    (folder / "metrics.csv").write_text("step,loss,value\n1000,1.5,-2.5\n2000,1.25,-1")
    collect(tmp_path / "runs", tmp_path / "table")
    (rows,) = study_table.read_metrics(tmp_path / "table").values()
    assert [row["value"] for row in rows] == ["-2.5"]


def test_two_collections_into_one_table_at_once_lose_no_run(small_plan, tmp_path, monkeypatch):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder, run in zip(folders, small_plan.runs, strict=False):
        write_run(folder, run, 10.0)
    both, read = threading.Barrier(2), collecting._table_in

    def read_at_once(out):
        found = read(out)
        with contextlib.suppress(threading.BrokenBarrierError):  # only one may be here
            both.wait(0.5)
        return found

    monkeypatch.setattr(collecting, "_table_in", read_at_once)
    threads = [threading.Thread(target=collect, args=(folder, tmp_path / "table")) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_table(tmp_path / "table")) == 2


def test_the_versions_of_an_entry_are_held_once(table):
    assert len({id(run.versions) for run in read_table(table)}) == 1


def test_writing_what_was_read_changes_nothing(table):
    before = {path.name: path.read_bytes() for path in table.iterdir() if path.is_file()}
    write_table(table, read_table(table), study_table.read_metrics(table), random_scores.read(table), read_plans(table))
    assert {path.name: path.read_bytes() for path in table.iterdir() if path.is_file()} == before


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("evaluations.csv", "mean_return,", "", "evaluations.csv must have the columns algo, env, seed, step"),
        ("evaluations.csv", "algo,env", "env,algo", "evaluations.csv must have the columns algo, env, seed, step"),
        ("evaluations.csv", ",0,1000,", ",zero,1000,", "evaluations.csv has numbers that are none in line 2"),
        (
            "evaluations.csv",
            ",0,2000,",
            ",0,1000,",
            "steps that do not ascend from 0 to at most 1,000,000,000,000,000: iq on InvertedPendulum-v5, seed 0",
        ),
        ("evaluations.csv", ",nan\n", "\n", "evaluations.csv has 5 cells instead of 6 in line 2"),
        ("evaluations.csv", "\niq,", "\niqq,", "about.json has no config of iqq on InvertedPendulum-v5, seed 0"),
        ("evaluations.csv", "\niq,", "\n\x0biq,", "about.json has no config of ?iq on InvertedPendulum-v5, seed 0"),
        (
            "about.json",
            '"algorithm": "iq"',
            '"algorithm": "iqq"',
            "iq on InvertedPendulum-v5: unknown algorithm",
        ),
        ("about.json", '"layout": 1', '"layout": 99', "it has run-folder layout 99"),
        ("about.json", '"discount": 0.99', '"discount": 2', "discount must be"),
        ("about.json", '"algo": "iq"', '"line": "iq"', "about.json: configs must be a list of entries"),
        ("about.json", "[\n", "", "about.json cannot be read"),
        ("about.json", '{"algo"', '7, {"algo"', "about.json: configs must be a list of entries"),
        ("about.json", '"runs"', '"of"', "about.json: versions must be a list of entries"),
        ("about.json", '"mean"', '"mode"', "about.json holds no random-policy scores"),
        ("about.json", '"left_out"', '"out"', "about.json is not the plan of a sweep"),
    ],
)
def test_a_broken_table_is_refused_in_one_sentence(table, capsys, file, old, new, message):
    edit(table / file, old, new)
    assert cli.run(["report", str(table)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("file", ["evaluations.csv", "about.json"])
def test_a_table_without_one_of_its_files_is_named_as_broken(table, file):
    (table / file).unlink()
    assert is_table(table)
    (broken,) = find_runs(table).broken
    assert broken.reason == f"it has no {file}"


def test_runs_below_a_broken_table_are_reported_all_the_same(table, small_plan):
    write_run(table, small_plan.runs[0], 1.0)
    edit(table / "about.json", "[\n", "")
    found = gather(table)
    assert len(found.runs) == 1
    assert [broken.name for broken in found.broken] == ["."]


def as_before(table: Path) -> None:
    """The same table as it was written when every part of about.json had a file of its own."""
    about = json.loads((table / "about.json").read_text())
    (table / "about.json").unlink()
    (table / "configs.json").write_text(json.dumps(about["configs"]))
    (table / "versions.json").write_text(json.dumps(about["versions"]))
    (table / "random-scores.json").write_text(json.dumps(about["random_scores"]))
    for plan in about["plans"]:
        path = plan_path(table, plan["study"], plan["suite"])
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(plan))


def test_a_table_of_several_files_is_read_and_collecting_makes_it_one_of_today(table):
    before = {path.name: path.read_bytes() for path in table.iterdir()}
    told = gather(table)
    as_before(table)
    assert is_table(table)
    assert repr(gather(table)) == repr(told)
    collect(table, table)
    assert {path.name: path.read_bytes() for path in table.iterdir()} == before


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("evaluations.csv", "\niq,", "\niqq,", "configs.json has no config of iqq on InvertedPendulum-v5, seed 0"),
        ("configs.json", '"algo": "iq"', '"line": "iq"', "configs.json: configs must be a list of entries"),
        ("versions.json", '"runs"', '"of"', "versions.json: versions must be a list of entries"),
    ],
)
def test_a_broken_table_of_several_files_is_refused_too(table, file, old, new, message):
    as_before(table)
    edit(table / file, old, new)
    with pytest.raises(InputError, match=message):
        read_table(table)


def test_run_folders_below_a_table_are_found_too(table, small_plan):
    folder = write_run(table, small_plan.runs[0], 1.0)
    found = find_runs(table.parent)
    assert found.tables == (table,)
    assert len(found.runs) == 19
    assert folder in {run.folder for run in found.runs}


def test_a_rate_that_follows_another_one_is_no_other_setting():
    """SAC's temperature had the learning rate of the networks; now it has its own, of the same value."""
    now, then = resolve("sac", "Pendulum-v1"), resolve("sac", "Pendulum-v1", temperature_learning_rate=None)
    assert identity(now) == identity(then)
    assert differences(now, then) == ""
    faster = resolve("sac", "Pendulum-v1", temperature_learning_rate=None, learning_rate=1e-3)
    assert identity(now) != identity(faster)
    assert "temperature_learning_rate 0.0003 there, 0.001 planned" in differences(now, faster)


@pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="a source distribution has no benchmarks")
def test_the_tables_of_the_benchmarks_are_whole():
    found = find_runs(BENCHMARKS)
    names = {path.relative_to(BENCHMARKS).as_posix() for path in found.tables}
    assert {"gym-100k", "gym-300k", "halfcheetah", "quick", "claims"} <= names
    assert not found.broken
    assert len(found.runs) >= 244
