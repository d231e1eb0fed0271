from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import implicitq
import toys
from implicitq import InputError
from implicitq.events import CheckpointDue
from implicitq.runs import atomic_files as files
from implicitq.runs import checkpoints
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


def test_a_checkpoint_writes_what_is_new_and_not_the_whole_replay_again(small, tmp_path, monkeypatch):
    written: list[tuple[str, int]] = []
    original = Directory.write

    def counting(self: Directory, name: str, content: bytes) -> None:
        written.append((name.split("/")[0], len(content)))
        original(self, name, content)

    monkeypatch.setattr(Directory, "write", counting)
    values = {**small, "checkpoint_every": 1_000, "eval_every": 1_000, "min_replay": 1_000, "log_every": 1_000}
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


def test_a_finished_folder_can_be_opened_again_once_closed(run):
    RunFolder.open(run).close()
    RunFolder.open(run).close()
