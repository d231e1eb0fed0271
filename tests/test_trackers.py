"""Trackers, read back with the packages that people read them with: the whole curve, every point once."""

from __future__ import annotations

import json
import shutil
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import implicitq
from implicitq import InputError, trackers
from implicitq.commands import main as cli
from implicitq.runs.layout import read_evaluations
from implicitq.runs.logs import read_metrics
from implicitq.train import Trainer

Curves = dict[str, list[tuple[int, float]]]


class Crash(BaseException):
    """Stands for the sudden death of the process."""


def tensorboard_curves(run: Path) -> Curves:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(point.step, point.value) for point in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def wandb_curves(run: Path) -> Curves:
    """Of the newest offline session. The file is a log in the format of LevelDB, with a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    records: list[Any] = []
    deadline = time.monotonic() + 30
    while not records or records[-1].WhichOneof("record_type") != "exit":  # a process of W&B writes it, a little later
        assert time.monotonic() < deadline
        (path,) = max((run / "wandb").glob("offline-run-*")).glob("*.wandb")
        records = [Record.FromString(content) for content in leveldb_records(path.read_bytes())]
    found: Curves = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
            step = record.history.step.num
            for name, value in items.items():
                if "/" in name:
                    found.setdefault(name, []).append((step, value))
    return found


def leveldb_records(content: bytes) -> list[bytes]:
    """The records that are whole."""
    records, part, position = [], b"", 7
    while position + 7 <= len(content):
        left = 32_768 - position % 32_768
        if left < 7:  # no header fits into the rest of a block
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        if position + 7 + length > len(content):
            break
        part += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(part)
            part = b""
    return records


def expected_curves(run: Path) -> Curves:
    """What the logs of the run say, under some of the names."""
    columns, done = read_metrics(run), read_evaluations(run)
    steps = columns["step"].astype(int).tolist()
    names = {
        "loss": "train/loss",
        "episode_return": "rollout/ep_rew_mean",
        "episode_length": "rollout/ep_len_mean",
        "value": "train/value",
        "entropy_per_dimension": "train/entropy",
        "kl": "train/kl",
        "overestimation": "train/overestimation",
    }
    curves = {
        name: [(step, value) for step, value in zip(steps, columns[column].tolist(), strict=True) if value == value]
        for column, name in names.items()
    }
    curves["eval/mean_reward"] = [(each.step, each.mean) for each in done]
    curves["eval/mean_ep_length"] = [(each.step, sum(each.lengths) / len(each.lengths)) for each in done]
    return curves


def check(found: Curves, run: Path) -> None:
    for name, points in expected_curves(run).items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in points], rel=1e-6), name
    assert all(rate > 0 for _, rate in found["time/fps"])


def die_in_collecting(monkeypatch, calls: int) -> None:
    original = Trainer._collect

    def collect(self: Trainer, *actions: Any) -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise Crash
        original(self, *actions)

    monkeypatch.setattr(Trainer, "_collect", collect)


def test_tensorboard_has_every_point_once_after_deaths_and_resumes(small, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    agent = implicitq.make("miq", "toys:Toy-v0", **small)
    with monkeypatch.context() as patch:
        die_in_collecting(patch, 70)  # the row of step 60 comes after the checkpoint, and comes again
        with pytest.raises(Crash):
            agent.learn(out=run, track=["tensorboard"])
    agent.close()
    assert tensorboard_curves(run)["train/loss"][-1][0] in (40, 60)
    agent = implicitq.resume(run, trust_env=True)
    assert agent.step == 40
    agent.learn(30)
    agent.learn()  # once more in the same process
    agent.close()
    check(tensorboard_curves(run), run)
    assert len(list((run / "tensorboard").iterdir())) == 1


def test_tensorboard_shows_config_and_versions(small, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    implicitq.make("miq", "toys:Toy-v0", **small).learn(20, out=tmp_path / "run", track="tensorboard").close()
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    (config,), (versions,) = (read.Tensors(name) for name in ("config", "versions"))
    assert b"| batch_size | 8 |" in config.tensor_proto.string_val[0]
    assert b"| jax |" in versions.tensor_proto.string_val[0]
    assert read.PluginTagToContent("hparams")


def test_a_run_that_began_without_a_tracker_gets_its_whole_curve(small, tmp_path, files_of, capsys):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    implicitq.make("miq", "toys:Toy-v0", **small).learn(60, out=run).close()
    assert not (run / "tracking.json").exists()
    assert cli.run(["resume", str(run), "--trust-env", "--track", "tensorboard"]) == 0
    check(tensorboard_curves(run), run)
    assert json.loads((run / "tracking.json").read_text())["trackers"] == ["tensorboard"]


def test_tracking_changes_nothing_of_the_run(small, tmp_path, files_of):
    pytest.importorskip("tensorboard")
    for name, track in (("with", ["tensorboard"]), ("without", None)):
        implicitq.make("miq", "toys:Toy-v0", **small).learn(out=tmp_path / name, track=track).close()
    found = {name: data for name, data in files_of(tmp_path / "with").items() if not name.startswith("t")}
    assert found == files_of(tmp_path / "without")


def test_trackers_are_remembered_until_they_are_left_out(small, tmp_path):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    implicitq.make("miq", "toys:Toy-v0", **small).learn(40, out=run, track=["tensorboard"]).close()
    first = json.loads((run / "tracking.json").read_text())
    agent = implicitq.resume(run, trust_env=True).learn(20)
    assert tensorboard_curves(run)["train/loss"][-1][0] == 60
    agent.learn(20, track=[])
    agent.close()
    assert tensorboard_curves(run)["train/loss"][-1][0] == 60
    assert json.loads((run / "tracking.json").read_text()) == {"trackers": [], "id": first["id"]}


def test_wandb_offline_has_every_point_once_after_a_death(small, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    agent = implicitq.make("miq", "toys:Toy-v0", **small)
    with monkeypatch.context() as patch:
        die_in_collecting(patch, 70)
        with pytest.raises(Crash):
            agent.learn(out=run, track=["wandb"])
    agent.close()
    implicitq.resume(run, trust_env=True).learn().close()
    check(wandb_curves(run), run)
    identity = json.loads((run / "tracking.json").read_text())["id"]
    assert len({path.name for path in (run / "wandb").glob(f"offline-run-*-{identity}")}) >= 1


def test_a_missing_package_is_named_with_its_extra_before_a_folder_is_made(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "implicitq.trackers.wandb", raising=False)
    agent = implicitq.make("miq", "toys:Toy-v0", **small)
    with pytest.raises(InputError, match=r"wandb needs a package that is missing .* pip install 'implicitq\[wandb\]'"):
        agent.learn(out=tmp_path / "run", track=["wandb"])
    agent.close()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("track", "words"),
    [
        (["tensorbord"], "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        (["none", "wandb"], "track must be 'none' or names of trackers, got none wandb"),
        (["tensorboard"], "track needs a run folder, which holds its files: give out="),
    ],
)
def test_names_that_are_none_and_a_run_without_a_folder_are_refused(track, words, small):
    agent = implicitq.make("miq", "toys:Toy-v0", **small)
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        agent.learn(track=track)
    agent.close()


@pytest.mark.parametrize("noted", [None, [], {"trackers": 7, "id": "../x"}, {"trackers": [7]}, {"id": 3}])
def test_a_damaged_note_is_as_none(noted):
    choice = trackers.chosen(None, noted)
    assert choice["trackers"] == []
    assert choice["id"].isalnum()


@pytest.mark.parametrize(("tracker", "name"), [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("wandb", ".wandb")])
def test_a_folder_that_is_a_link_is_not_written_into(tracker, name, small, tmp_path, monkeypatch):
    pytest.importorskip(tracker)
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "events.out.tfevents.1").write_bytes(b"precious")
    run = tmp_path / "run"
    implicitq.make("miq", "toys:Toy-v0", **small).learn(40, out=run).close()
    (run / name).symlink_to(tmp_path / "elsewhere")
    agent = implicitq.resume(run, trust_env=True)
    with pytest.raises(InputError, match=f"{name} is not a folder of its own"):
        agent.learn(track=[tracker])
    agent.close()
    assert [path.read_bytes() for path in (tmp_path / "elsewhere").iterdir()] == [b"precious"]
    shutil.rmtree(run)
