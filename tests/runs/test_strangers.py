"""Files from a stranger: whatever they hold, one sentence comes of it, and nothing outside of the folder is touched."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from implicitq.runs import strangers
from implicitq.runs.finding import find_runs
from implicitq.runs.layout import read_run, slug
from implicitq.runs.study_table import read_metrics, read_table, write_table
from implicitq.sweeps import random_scores, sweep
from implicitq.sweeps.collecting import collect
from implicitq.sweeps.suites import suite_of
from implicitq.types import InputError
from sweep_fixtures import write_run

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
    assert strangers.read_bytes(tmp_path / "there") == b"content"
    for name, reason in {"link": "a link", "pipe": "not a plain file", "huge": "larger than 256 MB"}.items():
        with pytest.raises(OSError, match=reason):
            strangers.read_bytes(tmp_path / name)


def test_a_huge_table_of_evaluations_is_named_and_left_out(tmp_path, small_plan, monkeypatch):
    monkeypatch.setattr(strangers.read_bytes, "__defaults__", (1_000,))
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
            strangers.parse_json(content)


def test_a_slug_never_leads_out_of_a_folder():
    assert [slug(text) for text in ("..", "../x", "a/../b", "", "Half-Cheetah v5.")] == [
        "unnamed",
        "x",
        "a-..-b",
        "unnamed",
        "Half-Cheetah-v5",
    ]
