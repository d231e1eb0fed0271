"""A damaged old segment of the replay, which both checkpoints need, does not end a run."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import implicitq
from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.replay import Replay

OLDEST = "000000040-0000.safetensors"


def damage(run: Path, name: str = OLDEST) -> None:
    path = run / "replay" / name
    path.write_bytes(path.read_bytes()[:-1])


def test_without_salvage_the_run_is_refused_with_the_way_out(run, files_of):
    damage(run)
    before = files_of(run)
    with pytest.raises(InputError, match=r"no checkpoint of .* can be used: .*checksum is wrong; to go on .*--salvage"):
        implicitq.resume(run, trust_env=True)
    assert files_of(run) == before


@pytest.mark.filterwarnings("default::UserWarning")  # shown, as to a user
def test_a_salvaged_run_says_what_is_lost_and_goes_on_to_its_end(run, tmp_path, capsys):
    manifest = json.loads((run / "checkpoints" / "000000120.json").read_text())
    lost, whole = manifest["segments"][0]["until"][0], manifest["trainer"]["replay"]["written"][0]
    (tmp_path / "precious.txt").write_text("precious")
    damage(run)
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
    damage(run, newest)
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
