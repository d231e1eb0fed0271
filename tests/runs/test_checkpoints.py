from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import implicitq
import toys
from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.events import CheckpointDue
from implicitq.replay import Replay
from implicitq.runs import checkpoints, files
from implicitq.runs.directory import Directory
from implicitq.runs.folder import RunFolder


def step_after_resume(directory: Path) -> int:
    agent = implicitq.resume(directory, trust_env=True)
    agent.close()
    return agent.step


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "altered":
        path.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    elif how == "missing":
        path.unlink()


def newest_segment(run: Path) -> str:
    manifest = json.loads((run / "checkpoints" / "000000120.json").read_text())
    return f"replay/{manifest['segments'][-1]['file']}"


def test_the_two_newest_checkpoints_are_kept_and_the_newest_is_used(run):
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == [f"{step:09d}.{kind}" for step in (80, 120) for kind in ("json", "safetensors")]
    assert step_after_resume(run) == 120


@pytest.mark.parametrize("how", ["truncated", "altered", "missing"])
@pytest.mark.parametrize("part", ["arrays", "segment"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(run, how, part):
    name = "checkpoints/000000120.safetensors" if part == "arrays" else newest_segment(run)
    damage(run / name, how)
    with pytest.warns(UserWarning, match=r"(checksum is wrong|No such file).* Going on from step 80 instead"):
        assert step_after_resume(run) == 80
    assert step_after_resume(run) == 80, "set aside, so the second time is silent"


@pytest.mark.parametrize("how", ["truncated", "altered"])
def test_a_damaged_manifest_falls_back_to_the_one_before(run, how):
    damage(run / "checkpoints/000000120.json", how)
    with pytest.warns(UserWarning, match="Going on from step 80 instead"):
        assert step_after_resume(run) == 80


def test_a_checkpoint_of_a_newer_format_falls_back_to_the_one_before(run):
    path = run / "checkpoints/000000120.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": checkpoints.FORMAT + 1}))
    with pytest.warns(UserWarning, match=r"has format 2, newer than the 1 known here. Going on from step 80"):
        assert step_after_resume(run) == 80


def test_a_log_that_was_edited_makes_the_checkpoint_unfit(run):
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    (run / "metrics.csv").write_text("".join(lines[:-1]))  # without the row of step 120
    with pytest.warns(UserWarning, match=r"metrics.csv is not as it was at step 120. Going on from step 80"):
        assert step_after_resume(run) == 80


def test_if_no_checkpoint_is_good_one_sentence_says_why_and_nothing_is_touched(run, files_of):
    damage(run / "checkpoints/000000120.safetensors", "truncated")
    damage(run / "checkpoints/000000080.safetensors", "altered")
    before = files_of(run)
    with pytest.raises(InputError, match=r"no checkpoint of .* can be used: .*120.*checksum.*; .*80.*checksum"):
        implicitq.resume(run, trust_env=True)
    assert files_of(run) == before


def test_a_run_that_fell_back_ends_like_one_that_did_not(run, finished_toy, files_of):
    damage(run / "checkpoints/000000120.safetensors", "altered")
    with pytest.warns(UserWarning, match="Going on from step 80"):
        agent = implicitq.resume(run, trust_env=True)
    agent.learn()
    agent.close()
    after = {name: content for name, content in files_of(run).items() if not name.endswith(".rejected")}
    assert after == files_of(finished_toy)


def test_a_damaged_segment_leaves_no_rows_behind(small, tmp_path, monkeypatch):
    """With rings of different lengths, rows of the failed attempt would otherwise be sampled."""
    monkeypatch.setattr(checkpoints, "_SEGMENT_ROWS", 16)
    values = {**small, "num_envs": 2}
    agent = implicitq.make("miq", "toys:Toy-v0", **values).learn(out=tmp_path / "run")
    agent.close()
    damage(tmp_path / "run" / newest_segment(tmp_path / "run"), "altered")
    with pytest.warns(UserWarning, match="Going on from step 80"):
        agent = implicitq.resume(tmp_path / "run", trust_env=True)
    replay = agent._trainer.replay  # pyright: ignore
    reference = implicitq.make("miq", "toys:Toy-v0", **values).learn(80)
    flags, expected = replay._flags.reshape(2, -1), reference._trainer.replay._flags.reshape(2, -1)  # pyright: ignore
    np.testing.assert_array_equal(flags, expected)
    agent.close()


def test_segments_are_small_whatever_a_row_weighs(small, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_SEGMENT_BYTES", 400)
    with implicitq.make("miq", "toys:Toy-v0", **small) as agent:
        row = agent.trainer.replay.nbytes // agent.config.replay_size
        whole = agent.learn(out=tmp_path / "run").trainer.replay
        for path in (tmp_path / "run/replay").glob("*.safetensors"):
            arrays, _ = files.read_arrays(path)
            assert 1 <= len(next(iter(arrays.values()))) <= 400 // row
    with implicitq.resume(tmp_path / "run", trust_env=True) as again:
        np.testing.assert_array_equal(again.trainer.replay.sample(64).observation, whole.sample(64).observation)


@pytest.mark.filterwarnings("ignore:no update was made")
def test_a_checkpoint_writes_what_is_new_and_not_the_whole_replay_again(small, tmp_path, monkeypatch):
    written: list[tuple[str, int]] = []
    original = Directory.write

    def counting(self: Directory, name: str, content: bytes) -> None:
        written.append((name.split("/")[0], len(content)))
        original(self, name, content)

    monkeypatch.setattr(Directory, "write", counting)
    values = {**small, "checkpoint_every": 600, "eval_every": 1_000, "min_replay": 1_000, "log_every": 1_000}
    agent = implicitq.make("miq", toys.Toy, **values).learn(600, out=tmp_path / "run")
    first = sum(size for folder, size in written if folder == "replay")
    written.clear()
    agent.learn(10)
    second = sum(size for folder, size in written if folder == "replay")
    agent.close()
    row = 3 * 4 + 2 + 4 + 1  # observation, action, reward, flag
    assert first > 600 * row
    assert second < 15 * row + 1_000, "the new rows and a header"


def test_pruning_keeps_what_a_wrapped_replay_needs(small, tmp_path):
    """120 steps through a ring of 50 rows: old segments go, and both checkpoints can be restored."""
    values = {**small, "replay_size": 50, "checkpoint_every": 15}
    directory = tmp_path / "run"
    agent = implicitq.make("miq", "toys:Toy-v0", **values).learn(out=directory)
    expected = agent._trainer.replay.sample(32)  # pyright: ignore
    agent.close()
    manifests = [json.loads(path.read_text()) for path in sorted((directory / "checkpoints").glob("*.json"))]
    needed = {segment["file"] for manifest in manifests for segment in manifest["segments"]}
    assert {path.name for path in (directory / "replay").iterdir()} == needed
    assert manifests[-1]["segments"][0]["first"][0] > 0, "the first rows are no longer needed"
    agent = implicitq.resume(directory, trust_env=True)
    for one, other in zip(agent._trainer.replay.sample(32), expected, strict=True):  # pyright: ignore
        np.testing.assert_array_equal(one, other)
    agent.close()
    (directory / "checkpoints" / "000000120.json").unlink()
    assert step_after_resume(directory) == 105


def test_what_a_killed_process_left_half_done_is_cleared_away(run, finished_toy, files_of):
    (run / "checkpoints" / "000000040.safetensors").write_bytes(b"orphan")
    (run / "checkpoints" / "000000060.json.part").write_bytes(b"half")
    (run / "replay" / "000000060-0001.safetensors").write_bytes(b"orphan")
    agent = implicitq.resume(run, trust_env=True)
    agent._run.on_event(CheckpointDue(agent.step))  # pyright: ignore
    agent.close()
    assert files_of(run) == files_of(finished_toy)


def test_foreign_files_among_the_checkpoints_do_no_harm(run):
    (run / "checkpoints" / "notes.json").write_text("{}")
    assert step_after_resume(run) == 120


def test_array_files_that_are_not_ours_are_refused(tmp_path):
    import safetensors.numpy

    (tmp_path / "other.safetensors").write_bytes(safetensors.numpy.save({"a": np.zeros(3)}))
    with pytest.raises(InputError, match="is not a file of implicitq, or is damaged"):
        files.read_arrays(tmp_path / "other.safetensors")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    files.write_atomically(tmp_path / "file", b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_two_may_write_one_file_at_once(tmp_path, monkeypatch):
    rename = os.replace

    def write_once_more_before(source: Path, target: Path) -> None:
        monkeypatch.setattr(files.os, "replace", rename)
        files.write_atomically(tmp_path / "file", b"another")
        rename(source, target)

    monkeypatch.setattr(files.os, "replace", write_once_more_before)
    files.write_atomically(tmp_path / "file", b"one")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"one"]


def test_what_a_killed_process_left_is_removed_once_it_is_old(tmp_path):
    old, young, other = (tmp_path / f"{name}.part" for name in ("file.01234567", "file.89abcdef", "other.01234567"))
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    files.write_atomically(tmp_path / "file", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", young.name, other.name]


def test_a_finished_folder_can_be_opened_again_once_closed(run):
    RunFolder.open(run).close()
    RunFolder.open(run).close()


OLDEST = "000000040-0000.safetensors"


def damage_segment(run: Path, name: str = OLDEST) -> None:
    path = run / "replay" / name
    path.write_bytes(path.read_bytes()[:-1])


def test_without_salvage_the_run_is_refused_with_the_way_out(run, files_of):
    damage_segment(run)
    before = files_of(run)
    with pytest.raises(
        InputError, match=r"no checkpoint of .* can be used: [^;]*checksum is wrong; to go on .*--salvage"
    ):
        implicitq.resume(run, trust_env=True)
    assert files_of(run) == before


@pytest.mark.filterwarnings("default::UserWarning")  # shown, as to a user
def test_a_salvaged_run_says_what_is_lost_and_goes_on_to_its_end(run, tmp_path, capsys):
    manifest = json.loads((run / "checkpoints" / "000000120.json").read_text())
    lost, whole = manifest["segments"][0]["until"][0], manifest["trainer"]["replay"]["written"][0]
    (tmp_path / "precious.txt").write_text("precious")
    damage_segment(run)
    assert cli.run(["resume", str(run), "--trust-env", "--salvage", "--steps", "200"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert f"{lost} of the {whole} rows of the replay at step 120 are lost ({OLDEST})" in told
    noted = json.loads((run / "salvaged.json").read_text())
    assert noted == [{"step": 120, "rows": lost, "of_rows": whole, "segments": [OLDEST]}]
    steps = [int(line.split(",")[0]) for line in (run / "evaluations.csv").read_text().splitlines()[1:]]
    assert steps == [40, 80, 120, 160, 200]
    assert not (run / "replay" / OLDEST).exists(), "no checkpoint needs it any more"
    agent = implicitq.resume(run, trust_env=True)
    assert agent.step == 200, "its own checkpoints are whole"
    agent.close()
    assert (tmp_path / "precious.txt").read_text() == "precious"


def test_a_run_that_needs_no_salvage_is_not_marked(run, finished_toy, files_of):
    implicitq.resume(run, salvage=True, trust_env=True).close()
    assert files_of(run) == files_of(finished_toy)


def test_an_older_checkpoint_that_is_whole_comes_before_salvage(run):
    newest = json.loads((run / "checkpoints" / "000000120.json").read_text())["segments"][-1]["file"]
    damage_segment(run, newest)
    with pytest.warns(UserWarning, match="Going on from step 80 instead"):
        implicitq.resume(run, salvage=True, trust_env=True).close()
    assert not (run / "salvaged.json").exists()


def test_all_of_the_replay_may_be_lost(run):
    for path in (run / "replay").iterdir():
        path.unlink()
    with pytest.warns(UserWarning, match="rows of the replay at step 120 are lost"):
        agent = implicitq.resume(run, salvage=True, trust_env=True)
    assert agent.learn(40).step == 160
    agent.close()


def test_networks_that_are_damaged_cannot_be_salvaged(run):
    for path in (run / "checkpoints").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"no checkpoint of .* can be used: .*checksum is wrong$"):
        implicitq.resume(run, salvage=True, trust_env=True)


def small_replay(rows: int) -> Replay:
    return Replay(
        rows=2 * rows,
        num_envs=2,
        observation_size=1,
        action_dimensions=1,
        action_dtype=np.dtype(np.float32),
        generator=np.random.default_rng(0),
        discount=0.9,
        n_step=3,
    )


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_no_sample_reaches_across_a_gap(lost):
    """Observations count upwards and rewards are their numbers, so a wrong neighbour shows."""
    replay = small_replay(60)
    everywhere = np.ones(2, bool)
    replay.begin(everywhere, np.array([[0.0], [1000.0]]))
    for step in range(45):
        before, ended = np.array([step, 1000 + step], float), np.array([step % 11 == 10, step % 7 == 6])
        replay.add(before[:, None], before, ended, ~everywhere, before[:, None] + 1)
        replay.begin(ended, before[:, None] + 1)
    written = replay.written
    marks = [written * 0, written // 3, 2 * written // 3, written]
    segments = [(replay.rows(first, until), until - first) for first, until in pairwise(marks)]
    replay.clear()
    for number, (rows, counts) in enumerate(segments):
        replay.end_at_gap() if number in lost else replay.append_rows(rows, counts)
    replay.begin(everywhere, np.array([[45.0], [1045.0]]))
    before = np.array([45.0, 1045.0])
    replay.add(before[:, None], before, ~everywhere, ~everywhere, before[:, None] + 1)
    batch = replay.sample(500)
    start = batch.observation[:, 0]
    np.testing.assert_array_equal(batch.action[:, 0], start)
    goes_on = batch.discount > 0
    distance = batch.next_observation[goes_on, 0] - start[goes_on]
    np.testing.assert_allclose(batch.discount[goes_on], 0.9**distance, rtol=1e-5)
