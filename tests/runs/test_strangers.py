"""Files and folders from a stranger: one sentence comes of it, and nothing outside of the folder is touched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import implicitq
from implicitq import InputError, machine
from implicitq.commands import main as cli
from implicitq.runs import directory as module
from implicitq.runs import files, manifests
from implicitq.runs.directory import Directory
from implicitq.runs.files import digest_of, read_arrays
from implicitq.runs.finding import find_runs
from implicitq.runs.layout import LOGS, read_run, slug
from implicitq.runs.study_table import read_metrics, read_table, write_table
from implicitq.sweeps import random_scores, sweep
from implicitq.sweeps.collecting import collect
from implicitq.sweeps.suites import suite_of
from run_fixtures import write_run

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["algo", "env", "seeds", "config", "runs", "versions", "mean", "std", "lines", "settings"])
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextlib.contextmanager
def only_sentences():
    """An InputError of one line is as good as none."""
    try:
        yield
    except InputError as error:
        assert len(str(error).splitlines()) == 1, error  # noqa: PT017


def changed(data, path, value):
    """The same JSON with another value at a path of keys, or without it."""
    if not path:
        return value
    keys = sorted(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else []
    if not keys:
        return value
    key = list(keys)[path[0] % len(keys)]
    inner = changed(data[key], path[1:], value)
    if isinstance(data, dict):
        return {**data, key: inner}
    return [*data[:key], inner, *data[key + 1 :]]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A small study table with metrics and a plan, as text by file."""
    from implicitq.sweeps.studies import Study, Variant, expand
    from implicitq.sweeps.suites import Suite

    root = tmp_path_factory.mktemp("table")
    plan = expand(Study("small", "", (Variant("iq"),)), Suite("s", ("Pendulum-v1",), {"bins": 5}), 2, 2_000)
    for run in plan.runs:
        write_run(root, run, 1.0, rate=0.1)
    sweep.save_plan(root, plan, ["--study", "small"])
    collect(root, root / "out")
    runs = read_table(root / "out")
    metrics = {("iq", "Pendulum-v1", 0): [{"step": "1000", "loss": "0.5"}]}
    entry = {"mean": 0.0, "std": 1.0, "episodes": 1, "versions": {}}
    write_table(root / "out", runs, metrics, {"Pendulum-v1": entry}, sweep.read_plans(root / "out"))
    newer = {"study": "other", "suite": "s", "command": "", "lines": {}, "left_out": []}
    (root / "out/plans").mkdir()
    (root / "out/plans/other-s.json").write_text(json.dumps(newer))
    files = [path for path in (root / "out").rglob("*") if path.is_file()]
    return {str(path.relative_to(root / "out")): path.read_text() for path in files}


def read_everything(root: Path) -> None:
    with only_sentences():
        read_table(root)
    with only_sentences():
        read_metrics(root)
    with only_sentences():
        sweep.read_plans(root)
    with only_sentences():
        collect(root, root / "again")


@MANY
@given(name=st.sampled_from(["about.json", "about.json", "plans/other-s.json"]),
       path=st.lists(st.integers(0, 9), max_size=6), value=ANY)  # fmt: skip
def test_any_json_in_a_study_table_is_read_or_refused_in_a_sentence(table, name, path, value):
    with folder() as root:
        for each, text in table.items():
            (root / each).parent.mkdir(exist_ok=True)
            (root / each).write_text(text)
        (root / name).write_text(json.dumps(changed(json.loads(table[name]), path, value)))
        read_everything(root)


@MANY
@given(name=st.sampled_from(["evaluations.csv", "metrics.csv"]), at=st.integers(0, 400), content=st.binary(max_size=40))
def test_any_bytes_in_the_csv_files_of_a_table_are_read_or_refused(table, name, at, content):
    with folder() as root:
        for each, text in table.items():
            (root / each).parent.mkdir(exist_ok=True)
            (root / each).write_text(text)
        whole = table[name].encode()
        (root / name).write_bytes(whole[:at] + content + whole[at + len(content) :])
        read_everything(root)


@MANY
@given(data=ANY | st.dictionaries(NAMES, ANY))
def test_any_random_scores_are_read_or_refused(data):
    with folder() as root:
        (root / random_scores.FILE).write_text(json.dumps(data))
        with only_sentences():
            random_scores.read(root)


@MANY
@given(content=st.binary(max_size=60) | st.sampled_from([b"task_settings = [1]", b'name = "../x"', b"settings = 3"]))
def test_any_suite_is_read_or_refused(content):
    with folder() as root:
        (root / "suite.toml").write_bytes(b'tasks = ["Pendulum-v1"]\n' + content)
        with only_sentences():
            assert "/" not in suite_of(str(root / "suite.toml")).name


@MANY
@given(config=ANY, rows=st.binary(max_size=60))
def test_any_run_folder_is_read_or_refused(config, rows):
    with folder() as root:
        (root / "config.json").write_text(json.dumps(config))
        (root / "evaluations.csv").write_bytes(b"step,mean_return,std_return\n" + rows)
        with only_sentences():
            read_run(root, "run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task_settings = [1]", "task_settings must be tables of hyperparameters by task, got \\[1\\]"),
        ('name = "../../outside"', "name must be a name of up to 150 letters"),
        ("name = 3", "name must be a name of up to 150 letters"),
        ('[settings]\nenv = "x"', "settings cannot set env"),
    ],
)
def test_a_suite_that_cannot_be_used_says_why(tmp_path, text, message):
    (tmp_path / "s.toml").write_text(f'tasks = ["Pendulum-v1"]\n{text}\n')
    with pytest.raises(InputError, match=message):
        suite_of(str(tmp_path / "s.toml"))


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", "", "x" * 200, 'a" onclick="b', "=1"])
def test_a_plan_with_a_name_that_is_no_files_name_is_refused(tmp_path, small_plan, name):
    with pytest.raises(InputError, match="the name of a suite must be a name of up to"):
        sweep.plan_path(tmp_path, "main", name)
    sweep.save_plan(tmp_path, small_plan, [])
    path = tmp_path / "plans/small-boxes.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "suite": name}))
    with pytest.raises(InputError, match=r"small-boxes\.json: suite must be a name of up to"):
        sweep.read_plans(tmp_path)


def test_nothing_is_read_through_links_or_pipes_or_beyond_bounds(tmp_path):
    (tmp_path / "there").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(10 * 10**9)  # a hole: takes no room on the disk
    assert files.read_bytes(tmp_path / "there") == b"content"
    for name, reason in {"link": "a link", "pipe": "not a plain file", "huge": "larger than 256 MB"}.items():
        with pytest.raises(OSError, match=reason):
            files.read_bytes(tmp_path / name)


def test_a_huge_table_of_evaluations_is_named_and_left_out(tmp_path, small_plan, monkeypatch):
    monkeypatch.setattr(files.read_bytes, "__defaults__", (1_000,))
    run = write_run(tmp_path, small_plan.runs[0], 1.0)
    with open(run / "evaluations.csv", "ab") as file:
        file.truncate(2_000)
    (broken,) = find_runs(tmp_path).broken
    assert "evaluations.csv cannot be read: it is larger than 0 MB" in broken.reason


def test_runs_behind_links_are_no_part_of_a_folder(tmp_path, small_plan):
    write_run(tmp_path / "elsewhere", small_plan.runs[0], 1.0)
    write_run(tmp_path / "here", small_plan.runs[1], 1.0)
    (tmp_path / "here/more").symlink_to(tmp_path / "elsewhere")
    linked = tmp_path / "here/third"
    linked.mkdir()
    (linked / "evaluations.csv").symlink_to(tmp_path / "elsewhere" / small_plan.runs[0].folder / "evaluations.csv")
    (linked / "config.json").write_text("{}")
    found = find_runs(tmp_path / "here")
    assert [run.name for run in found.runs] == [small_plan.runs[1].folder]
    assert "it is a link, which is not followed" in found.broken[0].reason


def test_deep_json_and_half_characters_are_refused(tmp_path):
    for content in (b"[" * 100_000, b'"\\ud800"'):
        with pytest.raises(ValueError, match=r"nested too deeply|half a character"):
            files.parse_json(content)


def test_a_slug_never_leads_out_of_a_folder():
    assert [slug(text) for text in ("..", "../x", "a/../b", "", "Half-Cheetah v5.")] == [
        "unnamed",
        "x",
        "a-..-b",
        "unnamed",
        "Half-Cheetah-v5",
    ]


# A run folder: nothing outside of it is written, cut or deleted, whatever is in it.


@pytest.fixture
def canary(tmp_path) -> Path:
    """A folder beside the run, with files of such names as a run has."""
    folder = tmp_path / "canary"
    folder.mkdir()
    for name in ("precious.txt", "000000040.json", "000000040-0000.safetensors", "000000080.safetensors"):
        (folder / name).write_text("precious")
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def forge(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change all manifests, with checksums that fit."""
    for path in (run / "checkpoints").glob("*.json"):
        manifest = json.loads(path.read_text())
        del manifest["sha256"]
        change(manifest)
        path.write_text(json.dumps({**manifest, "sha256": digest_of(manifest)}))


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("kind", ["log", "segment"])
def test_names_in_a_manifest_lead_nowhere_else(run, canary, kind, absolute, capsys):
    name = str(canary / "precious.txt") if absolute else "../canary/precious.txt"
    if kind == "log":
        forge(run, lambda manifest: manifest["logs"].update({name: {"size": 0, "crc32": 0}}))
    else:
        forge(run, lambda manifest: manifest["segments"][0].update(file=f"../{name}"))
    before = contents(canary), contents(run)
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert f"has {kind}s that no checkpoint has" in capsys.readouterr().err.replace("\n", " ")
    assert (contents(canary), contents(run)) == before


LINKS = {
    "policy.safetensors.part": "precious.txt",
    "policy.safetensors": "precious.txt",
    "metrics.csv": "precious.txt",
    "timing.csv": "precious.txt",
    ".lock": "new.txt",
    "curve.png.part": "new.txt",
    "salvaged.json": "precious.txt",
    "checkpoints": "",
    "replay": "",
    "checkpoints/000000040.json": "000000040.json",
    "checkpoints/000000160.json.part": "new.txt",
    "replay/000000040-0000.safetensors": "000000040-0000.safetensors",
}


@pytest.mark.parametrize("name", LINKS)
def test_links_are_refused(run, canary, name, capsys):
    place = run / name
    if place.is_symlink() or place.exists():
        place.rename(run.parent / "moved-away")
    place.symlink_to(canary / LINKS[name])
    before = contents(canary)
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert "is a symbolic link; a run folder has" in capsys.readouterr().err.replace("\n", " ")
    assert contents(canary) == before


@pytest.mark.parametrize("name", ["policy.safetensors", "best.safetensors"])
def test_a_policy_behind_a_link_is_not_played(run, tmp_path, name, capsys):
    (run / name).rename(tmp_path / "outside")
    (run / name).symlink_to(tmp_path / "outside")
    best = ["--best"] if name.startswith("best") else []
    assert cli.run(["evaluate", str(run), "--trust-env", *best]) == 2
    assert f"{name} is a link, which is not followed" in capsys.readouterr().err.replace("\n", " ")


def test_no_run_begins_with_a_policy_behind_a_link(run, tmp_path, small):
    (run / "policy.safetensors").rename(tmp_path / "outside")
    (run / "policy.safetensors").symlink_to(tmp_path / "outside")
    with implicitq.make("miq", "toys:Toy-v0", **small) as agent, pytest.raises(InputError, match="is a link, which is"):
        agent.start_from(run)


def test_a_report_reads_no_checkpoints_behind_a_link(run, tmp_path):
    (run / "checkpoints").rename(tmp_path / "outside")
    (run / "checkpoints").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="checkpoints is a link, which is not followed"):
        read_run(run, "run")


PIPES = ["metrics.csv", "replay", "policy.safetensors.part", "checkpoints/000000120.safetensors"]


@pytest.mark.parametrize("name", [*PIPES, "replay/000000040-0000.safetensors"])
def test_what_is_neither_a_file_nor_a_folder_is_refused(run, name, capsys):
    """Reading or writing a pipe would wait for ever."""
    if (run / name).exists():
        (run / name).rename(run.parent / "moved-away")
    os.mkfifo(run / name)
    before = [path.read_bytes() for path in sorted(run.glob("*.csv")) if path.is_file()]
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert "is not a plain file; a run folder has" in capsys.readouterr().err.replace("\n", " ")
    assert [path.read_bytes() for path in sorted(run.glob("*.csv")) if path.is_file()] == before


def test_a_pipe_in_the_place_of_evaluations_does_not_hold_up_a_report(run, capsys):
    (run / "evaluations.csv").unlink()
    os.mkfifo(run / "evaluations.csv")
    assert cli.run(["report", str(run.parent)]) == 2
    assert "evaluations.csv cannot be read: it is not a plain file" in capsys.readouterr().err.replace("\n", " ")


def test_a_link_that_appears_while_a_run_is_going_on_is_not_followed(small, tmp_path, canary):
    agent = implicitq.make("miq", "toys:Toy-v0", **small).learn(40, out=tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").unlink()
    (tmp_path / "run" / "metrics.csv").symlink_to(canary / "precious.txt")
    before = contents(canary)
    with pytest.raises(InputError, match=r"metrics.csv is a symbolic link"):
        agent.learn(40)
    agent.close()
    assert contents(canary) == before


def test_another_name_of_a_log_keeps_what_the_run_cuts_off(run, tmp_path):
    """A hard link, as archives may hold."""
    with open(run / "metrics.csv", "ab") as file:
        file.write(b"130,rows after the checkpoint\n")
    (tmp_path / "precious.csv").hardlink_to(run / "metrics.csv")
    content = (tmp_path / "precious.csv").read_bytes()
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "140"]) == 0
    assert (tmp_path / "precious.csv").read_bytes() == content
    assert b"rows after" not in (run / "metrics.csv").read_bytes()


def test_the_folder_itself_may_be_reached_through_a_link(run, tmp_path):
    (tmp_path / "shortcut").symlink_to(run)
    assert cli.run(["resume", str(tmp_path / "shortcut"), "--trust-env", "--steps", "140"]) == 0
    assert (tmp_path / "shortcut").is_symlink()


def test_a_film_does_not_follow_a_link_in_the_folder(tmp_path, canary):
    from implicitq.runs.files import write_atomically

    for name in ("video.gif", "video.gif.part"):
        (tmp_path / name).symlink_to(canary / "precious.txt")
    write_atomically(tmp_path / "video.gif", b"film")
    assert (canary / "precious.txt").read_text() == "precious"
    assert (tmp_path / "video.gif").read_bytes() == b"film"


SEGMENT = {"file": "000000040-0000.safetensors", "sha256": "", "first": [0], "until": [40]}
TRAINER = {"step": 120, "episodes": 1, "finished": [], "replay": {"written": [1], "generator": {}}}
MALFORMED: dict[str, dict[str, Any]] = {
    "arrays": {"arrays": 3},
    "no arrays": {"arrays": None},
    "segments": {"segments": {}},
    "a segment": {"segments": [3]},
    "a name": {"segments": [{**SEGMENT, "file": "000000040-0000.safetensors\n"}]},
    "a folder": {"segments": [{**SEGMENT, "file": "x/000000040-0000.safetensors"}]},
    "too many rows": {"segments": [{**SEGMENT, "until": [10**30]}]},
    "fewer than none": {"segments": [{**SEGMENT, "first": [50]}]},
    "no numbers": {"segments": [{**SEGMENT, "first": ["0"]}]},
    "other rings": {"segments": [{**SEGMENT, "first": [0, 0]}]},
    "no logs": {"logs": {}},
    "logs": {"logs": []},
    "a size": {"logs": {name: {"size": -1, "crc32": 0} for name in LOGS}},
    "a half mark": {"logs": {name: {"size": 1} for name in LOGS}},
    "trainer": {"trainer": []},
    "no step": {"trainer": {"episodes": 0}},
    "a return": {"trainer": {**TRAINER, "finished": [[10**400, 3]]}},
    "restarts": {"trainer": {**TRAINER, "env_restarts": "1"}},
    "rows compared": {"trainer": {**TRAINER, "compared": [1, 2]}},
    "rows learnt from": {"trainer": {**TRAINER, "calibrated": "abc"}},
    "a reward": {"trainer": {**TRAINER, "largest_reward": "x"}},
    "config": {"config": [1]},
    "format": {"format": True},
    "text": {"format": "1"},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_manifest_of_another_shape_is_refused(run, what):
    forge(run, lambda manifest: manifest.update(MALFORMED[what]))
    with pytest.raises(InputError, match=r"that no checkpoint has|is not a checkpoint"):
        manifests.read(run / "checkpoints" / "000000120.json", LOGS)


@pytest.mark.parametrize(
    ("part", "value"),
    [("generator", {"bit_generator": "PCG64", "state": 1}), ("generator", {}), ("written", [7]), ("written", "80")],
)
def test_a_trainer_that_cannot_be_restored_is_refused_in_a_sentence(run, part, value, capsys):
    forge(run, lambda manifest: manifest["trainer"]["replay"].update({part: value}))
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert "no checkpoint of" in capsys.readouterr().err


def rewrite(run: Path, header: dict[str, str], **arrays: Any) -> None:
    """Other arrays in all checkpoints, with checksums that fit."""
    for path in (run / "checkpoints").glob("*.safetensors"):
        found, _ = read_arrays(path)
        path.write_bytes(safetensors.numpy.save({**found, **arrays}, header))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        forge(run, lambda manifest, step=int(path.stem), digest=digest: manifest["trainer"]["step"] != step
              or manifest.update(arrays=digest))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("envs.episodes", np.array([-1]), "an episode with a number below 0"),
        ("envs.episodes", np.array([np.nan]), "no envs.episodes of int64[1]"),
        ("returns", np.array([3]), "no returns of float64[1]"),
        ("observations", np.zeros((1, 99), np.float32), "no observations of float32"),
    ],
)
def test_arrays_that_no_run_has_are_refused(run, name, array, message, capsys):
    rewrite(run, {"implicitq": "{}"}, **{name: array})
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def retyped(content: bytes, name: str, dtype: str) -> bytes:
    """A safetensors file whose array `name`, of one-byte numbers, claims to be of another type."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header[name]["dtype"] = dtype
    told = json.dumps(header).encode()
    return len(told).to_bytes(8, "little") + told + content[8 + length :]


def test_types_that_numpy_does_not_have_are_refused(run, tmp_path):
    content = safetensors.numpy.save({"x": np.zeros(4, np.uint8)}, {"implicitq": "{}"})
    (tmp_path / "arrays").write_bytes(retyped(content, "x", "F8_E4M3"))
    with pytest.raises(InputError, match="x has type F8_E4M3, which no array here has"):
        read_arrays(tmp_path / "arrays")
    policy = run / "policy.safetensors"
    found, header = read_arrays(policy)
    content = safetensors.numpy.save(
        {**found, "statistics.x": np.zeros(4, np.uint8)}, {"implicitq": json.dumps(header)}
    )
    policy.write_bytes(retyped(content, "statistics.x", "F8_E4M3"))
    with pytest.raises(InputError, match=r"statistics\.x has type F8_E4M3"):
        implicitq.load(policy)


def test_arrays_beyond_the_memory_are_refused_before_they_are_read(tmp_path, monkeypatch):
    (tmp_path / "arrays").write_bytes(safetensors.numpy.save({"x": np.zeros(1000)}, {"implicitq": "{}"}))
    monkeypatch.setattr(files.machine, "available", lambda: machine.Memory(4000, 4000, 4000))
    with pytest.raises(InputError, match=r"would take .* of memory"):
        read_arrays(tmp_path / "arrays")


@pytest.mark.parametrize("header", [{}, {"implicitq": "[" * 100_000}])
def test_arrays_with_a_header_that_cannot_be_parsed_are_refused(run, header, capsys):
    rewrite(run, header)
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert "is not a file of implicitq, or is damaged" in capsys.readouterr().err.replace("\n", " ")


def test_a_step_that_is_not_that_of_its_file_is_refused(run):
    forge(run, lambda manifest: manifest["trainer"].update(step=10**9))
    with pytest.raises(InputError, match="has trainer that no checkpoint has"):
        manifests.read(run / "checkpoints" / "000000120.json", LOGS)


@pytest.fixture(params=["handles", "paths"])
def opened(request, tmp_path, monkeypatch):
    if request.param == "paths":
        monkeypatch.setattr(module, "_HANDLES", False)
        monkeypatch.setattr(module, "_NO_LINK", 0)
    (tmp_path / "run").mkdir()
    directory = Directory(tmp_path / "run", ".lock", ("inner",))
    directory.make_subfolders()
    yield directory
    directory.close()


def test_files_are_written_appended_to_cut_renamed_and_removed(opened):
    for name in ("log", "inner/log"):
        opened.write(name, b"one")
        opened.append(name, b"two")
        assert opened.read(name) == b"onetwo"
        opened.cut(name, 4)
        assert opened.read(name) == b"onet"
        opened.rename(name, ".old")
        assert opened.read(name) == b""
    assert opened.files() == [".lock", "log.old"]
    assert opened.files("inner") == ["inner/log.old"]
    opened.remove("inner/log.old")
    assert opened.files("inner") == []


def test_a_table_without_bounds_is_refused(opened):
    with open(opened.path / "log", "wb") as file:
        file.truncate(30 << 30)
    for act in (lambda: opened.read("log"), lambda: opened.cut("log", 4)):
        with pytest.raises(InputError, match="log cannot be read: it is larger than 4096 MB"):
            act()


def test_half_a_file_that_was_left_does_not_stand_in_the_way(opened):
    (opened.path / "log.part").write_bytes(b"half")
    opened.write("log", b"whole")
    assert opened.files() == [".lock", "log"]


@pytest.mark.parametrize("name", ["log", "log.part", "inner/log", "inner/log.part"])
def test_links_are_not_followed(opened, tmp_path, name):
    canary = tmp_path / "canary"
    canary.write_text("precious")
    (opened.path / name).symlink_to(canary)
    target = name.removesuffix(".part")
    actions = [lambda: opened.write(target, b"new")]
    if name == target:
        actions += [lambda: opened.append(name, b"new"), lambda: opened.cut(name, 0), lambda: opened.read(name)]
    for act in actions:
        with pytest.raises(InputError, match=rf"{name} is a symbolic link; a run folder has a plain file there"):
            act()
    assert canary.read_text() == "precious"


def test_a_file_that_is_not_there_is_not_made_by_appending(opened):
    with pytest.raises(InputError, match="log cannot be written: No such file"):
        opened.append("log", b"row")
    assert opened.files() == [".lock"]


def test_one_run_writes_at_a_time(opened):
    with pytest.raises(InputError, match=r"this process already has .* open; close the agent"):
        Directory(opened.path, ".lock", ())


def test_nothing_is_written_once_it_is_closed_or_gone(opened, tmp_path):
    opened.path.rename(tmp_path / "moved")
    for act in (lambda: opened.write("log", b""), lambda: opened.remove(".lock"), opened.make_subfolders):
        with pytest.raises(InputError, match="was removed or replaced while a run was writing it"):
            act()
    assert not opened.path.exists()
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == [".lock", "inner"]
    opened.close()
    with pytest.raises(InputError, match="was closed; nothing more is written"):
        opened.write("log", b"")


def test_systems_without_handles_of_folders_can_import_it():
    code = (
        "import os; os.supports_dir_fd = set(); del os.O_NOFOLLOW, os.O_DIRECTORY\n"
        "from implicitq.runs import directory; assert not directory._HANDLES"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
