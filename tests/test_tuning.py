"""The search over hyperparameters, with the real Optuna; presets that it writes."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from implicitq import configs
from implicitq.commands import main as cli
from implicitq.events import Evaluated
from implicitq.runs.folder import RunFolder
from implicitq.tuning import storage, study
from implicitq.tuning.space import Choice, Range, default_space, read_space
from implicitq.tuning.study import Plan, search
from implicitq.types import Evaluation, InputError, OtherConditions
from implicitq.validation import read_settings

optuna = pytest.importorskip("optuna")
SPACE = {"learning_rate": Range(1e-4, 1e-1, True, False), "hidden": Choice(((8,), (8, 8)))}


class Stopped(KeyboardInterrupt):
    """As if the user had stopped the search."""


def plan(**changes: Any) -> Plan:
    config = configs.resolve("iq", "Pendulum-v1", steps=100, min_replay=10, eval_every=20, replay_size=1_000)
    return Plan(config, SPACE, **changes)


class FakeRuns:
    """Stands in for training: returns that are best at a learning rate of 0.01, in five evaluations."""

    def __init__(self, monkeypatch) -> None:
        self.made: list[tuple[float, int]] = []
        self.stop_at: int | None = None
        monkeypatch.setattr(study, "_train", self)

    def __call__(self, folder: Path, config: Any, watch: Any, progress: bool) -> list[Evaluation]:
        if self.stop_at == len(self.made):
            raise Stopped
        self.made.append((config.learning_rate, config.seed))
        seen = []
        for step in range(20, 101, 20):
            seen.append(Evaluation((-abs(config.learning_rate - 0.01) * step,), (1,), step))
            if watch(Evaluated(seen[-1])) is False:
                raise study._Pruned
        return seen


def params_of(out: Path) -> list[dict[str, Any]]:
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / "journal.log")))
    return [trial.params for trial in optuna.load_study(study_name="implicitq", storage=storage).trials]


def test_a_search_finds_good_settings_and_writes_them_as_a_preset(tmp_path, monkeypatch):
    FakeRuns(monkeypatch)
    found = search(tmp_path / "out", plan(), 20, lambda text: None)
    assert found.finished + found.pruned == 20
    assert found.pruned > 0
    assert abs(found.settings["learning_rate"] - 0.01) < 0.005
    config = configs.resolve("iq", "Walker2d-v5", preset=tmp_path / "out" / "best.json", seed=4)
    assert config.learning_rate == found.settings["learning_rate"]
    assert (config.steps, config.hidden, config.seed, config.preset) == (100, found.settings["hidden"], 4, "file")


def test_an_interrupted_search_chooses_what_it_would_have_chosen(tmp_path, monkeypatch):
    runs = FakeRuns(monkeypatch)
    search(tmp_path / "whole", plan(), 14, lambda text: None)
    runs.made.clear()
    runs.stop_at = 12
    with pytest.raises(Stopped):
        search(tmp_path / "parts", plan(), 14, lambda text: None)
    assert len(params_of(tmp_path / "parts")) == 13  # the last of them left behind
    with open(tmp_path / "parts" / "journal.log", "ab") as journal:
        journal.write(b'{"op_code": 4, "wor')  # as a process leaves it that is killed while writing
    runs.stop_at = None
    search(tmp_path / "parts", plan(), 14, lambda text: None)
    assert params_of(tmp_path / "parts") == params_of(tmp_path / "whole")
    assert (tmp_path / "parts" / "best.json").read_bytes() == (tmp_path / "whole" / "best.json").read_bytes()
    other = plan()
    object.__setattr__(other.config, "seed", 1)
    search(tmp_path / "other", other, 2, lambda text: None)
    assert params_of(tmp_path / "other") != params_of(tmp_path / "whole")[:2]


@pytest.mark.parametrize("lines", range(1, 7))
def test_a_search_that_is_killed_between_two_lines_of_its_journal_goes_on(lines, tmp_path, monkeypatch):
    FakeRuns(monkeypatch)
    search(tmp_path / "whole", plan(), 2, lambda text: None)
    backend = optuna.storages.journal.JournalFileBackend
    append, left = backend.append_logs, lines

    def append_or_die(self, logs):
        nonlocal left
        if left == 0:
            raise Stopped
        left -= 1
        append(self, logs)

    with monkeypatch.context() as patch:
        patch.setattr(backend, "append_logs", append_or_die)
        with pytest.raises(Stopped):
            search(tmp_path / "parts", plan(), 2, lambda text: None)
    found = search(tmp_path / "parts", plan(), 2, lambda text: None)
    assert (found.finished, found.failed) == (2, 0)
    assert params_of(tmp_path / "parts") == params_of(tmp_path / "whole")


def test_a_trial_that_ends_while_the_trials_are_looked_at_is_not_made_again(tmp_path, monkeypatch):
    module, out = storage.client(), tmp_path / "out"
    (out / study.TRIALS).mkdir(parents=True)
    opened = storage.open_study(module, out, None)
    claimed = study._claim(module, out, plan(), opened, 2)
    assert claimed is not None
    number, lock = claimed
    lock.close()
    take = storage.take

    def end_it_first(folder, which):
        if which == number and opened.trials[number].state == module.trial.TrialState.RUNNING:
            opened.tell(number, 1.0)
        return take(folder, which)

    monkeypatch.setattr(storage, "take", end_it_first)
    claimed = study._claim(module, out, plan(), opened, 2)
    assert claimed is not None
    assert claimed[0] == number + 1
    claimed[1].close()


def test_two_searches_in_one_folder_share_the_work(tmp_path, monkeypatch):
    runs = FakeRuns(monkeypatch)
    both = [threading.Thread(target=search, args=(tmp_path / "out", plan(), 12, lambda text: None)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(runs.made) == len(params_of(tmp_path / "out")) == 12


def test_a_trial_of_several_seeds_counts_their_mean(tmp_path, monkeypatch):
    runs = FakeRuns(monkeypatch)
    search(tmp_path / "out", plan(seeds=2, prune=False), 2, lambda text: None)
    assert [seed for _, seed in runs.made] == [0, 1, 0, 1]


def test_a_trial_that_began_under_other_conditions_waits_for_them(tmp_path, monkeypatch):
    def refuses(folder: Path, *_: Any) -> None:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        raise OtherConditions("the run began under other conditions (threads 2 -> 1)")

    with monkeypatch.context() as patch:
        patch.setattr(study, "_train", refuses)
        with pytest.raises(InputError, match="under other conditions"):
            search(tmp_path / "out", plan(), 2, lambda text: None)
    assert len(list((tmp_path / "out").rglob("checkpoints"))) == 1
    FakeRuns(monkeypatch)
    found = search(tmp_path / "out", plan(), 2, lambda text: None)
    assert (found.finished, found.failed) == (2, 0)


def test_failures_are_told_and_three_in_a_row_end_the_search(tmp_path, monkeypatch):
    def fails(*_: Any) -> None:
        raise InputError("the environment is broken")

    monkeypatch.setattr(study, "_train", fails)
    told: list[str] = []
    with pytest.raises(InputError, match="3 trials in a row have failed, the last one because the environment is brok"):
        search(tmp_path / "out", plan(), 9, told.append)
    assert told[-1] == "trial 2 failed: the environment is broken"


def test_a_folder_holds_one_search(tmp_path, monkeypatch):
    FakeRuns(monkeypatch)
    search(tmp_path / "out", plan(), 1, lambda text: None)
    other = Plan(configs.changed(plan().config, batch_size=8), SPACE)
    with pytest.raises(InputError, match=r"holds a search with another config \(batch_size\); choose another --out"):
        search(tmp_path / "out", other, 1, lambda text: None)
    with pytest.raises(InputError, match="holds a search with another seeds"):
        search(tmp_path / "out", plan(seeds=2), 1, lambda text: None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").touch()
    with pytest.raises(InputError, match="is not an empty folder"):
        search(tmp_path / "full", plan(), 1, lambda text: None)


@pytest.mark.parametrize(
    "content", [b"no json\n\n", b"{}\n", b'{"op_code": 0}\n{"op_code": 99, "worker_id": 1}\n', b"[1]\n"]
)
def test_a_journal_that_is_none_is_refused_in_a_sentence(content, tmp_path, monkeypatch):
    FakeRuns(monkeypatch)
    search(tmp_path / "out", plan(), 1, lambda text: None)
    (tmp_path / "out" / "journal.log").write_bytes(content)
    with pytest.raises(InputError, match="is not a journal of Optuna that can be used"):
        search(tmp_path / "out", plan(), 2, lambda text: None)


@pytest.mark.parametrize(
    "scores", [{"values": ["x"]}, {"values": [1.0, 2.0]}, {"values": [10**400]}, {"intermediate_values": {"1": "x"}}]
)
def test_a_journal_with_scores_that_are_none_is_refused(scores, tmp_path, monkeypatch):
    FakeRuns(monkeypatch)
    search(tmp_path / "out", plan(), 1, lambda text: None)
    journal = tmp_path / "out" / "journal.log"
    made, *_ = (line for line in map(json.loads, journal.read_text().splitlines()) if "params" in line)
    complete = optuna.trial.TrialState.COMPLETE
    with open(journal, "a") as file:
        file.write(json.dumps({**made, "state": complete, "value": None, **scores}) + "\n")
    with pytest.raises(InputError, match="trial 1 must have numbers for scores, and one"):
        search(tmp_path / "out", plan(), 3, lambda text: None)


def test_a_journal_without_bounds_is_refused(tmp_path, monkeypatch):
    FakeRuns(monkeypatch)
    search(tmp_path / "out", plan(), 1, lambda text: None)
    journal = tmp_path / "out" / "journal.log"
    for size, sentence in ((1 << 21, "its last line is longer than 1,048,576 bytes"), (30 << 30, "larger than 256 MB")):
        os.truncate(journal, size)  # a hole: takes no room on the disk
        with pytest.raises(InputError, match=sentence):
            search(tmp_path / "out", plan(), 2, lambda text: None)


def test_a_journal_that_is_a_link_is_refused(tmp_path, monkeypatch):
    FakeRuns(monkeypatch)
    search(tmp_path / "out", plan(), 1, lambda text: None)
    (tmp_path / "out" / "journal.log").rename(tmp_path / "elsewhere")
    (tmp_path / "out" / "journal.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="it is a link, which is not followed"):
        search(tmp_path / "out", plan(), 2, lambda text: None)


@pytest.mark.parametrize("link", ["trials/0000", "trials/0000/seed-0"])
def test_nothing_is_cleared_through_a_link(link, tmp_path):
    run = tmp_path / "precious" / ("seed-0" if link == "trials/0000" else "")
    for name in ("checkpoints", "replay"):
        (run / name).mkdir(parents=True)
    (run / "config.json").write_text("{}")
    place = tmp_path / "out" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "precious")
    told: list[str] = []
    search(tmp_path / "out", plan(), 1, told.append)
    assert "is a link, which is not followed" in told[-1]
    assert {path.name for path in run.iterdir()} == {"config.json", "checkpoints", "replay"}


def test_a_missing_optuna_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'implicitq\[tune\]'"):
        search(tmp_path / "out", plan(), 1, lambda text: None)


def test_real_runs_are_searched_stopped_and_gone_on_with_exactly(tmp_path, small_flags, capsys, monkeypatch):
    """From the command line, with a stop in the middle of a run."""
    monkeypatch.chdir(tmp_path)
    words = ["tune", "iq", "--env", "toys:Toy-v0", *small_flags, "--space", "learning_rate=1e-4..1e-2", "--trials", "1"]
    assert cli.run([*words, "--out", "whole"]) == 0
    from implicitq.agent import Agent

    learn = Agent.learn

    def stopped(agent: Agent, **arguments: Any) -> Agent:
        watch = arguments.pop("callback")

        def stop(event: Any) -> bool | None:
            watch(event)
            if getattr(event, "step", 0) == 70:
                raise Stopped

        return learn(agent, callback=stop, **arguments)

    monkeypatch.setattr(Agent, "learn", stopped)
    assert cli.run([*words, "--out", "parts"]) == 130
    assert "The same command goes on." in capsys.readouterr().out
    monkeypatch.setattr(Agent, "learn", learn)
    assert cli.run([*words, "--out", "parts"]) == 0
    assert Path("parts/best.json").read_bytes() == Path("whole/best.json").read_bytes()
    seed = "trials/0000/seed-0"
    assert Path("parts", seed, "evaluations.csv").read_bytes() == Path("whole", seed, "evaluations.csv").read_bytes()
    assert not Path("parts", seed, "replay").exists()
    command = capsys.readouterr().out.split("try them with a fresh seed: ")[1].splitlines()[0].split()
    assert command[:7] == ["implicitq", "train", "iq", "--env", "toys:Toy-v0", "--preset", "parts/best.json"]
    assert cli.run([*command[1:], "--steps", "20", "--out", "again"]) == 0
    assert json.loads(Path("again/config.json").read_text())["preset"] == "file"


def test_a_run_that_was_killed_before_its_first_log_is_gone_on_with(tmp_path, small):
    config = configs.resolve("iq", "toys:Toy-v0", **{**small, "steps": 40})
    RunFolder.create(tmp_path / "run", config).close()
    assert study._train(tmp_path / "run", config, Mock(hopeless=False), False)[-1].step == 40


def test_every_algorithm_has_a_space_of_its_own_that_its_config_takes():
    for name in configs.ALGORITHMS:
        config = configs.resolve(name, "Task-v0")
        for field, dimension in default_space(config).items():
            for value in dimension.values if isinstance(dimension, Choice) else (dimension.low, dimension.high):
                configs.changed(config, **{field: value})
    assert "temperature" not in default_space(configs.resolve("iq-auto", "Task-v0"))
    assert "batch_size" not in default_space(configs.resolve("iq", "Task-v0"), {"batch_size"})


def test_a_space_is_read_from_words_or_a_file(tmp_path):
    config = configs.resolve("iq", "Task-v0")
    given = ["learning-rate=1e-5..1e-3", "learning_rate_decay=5000..50000", "bins=5,11", "n_step=1..3"]
    words = read_space([*given, "policy=gaussian,flow"], config)
    assert words == {
        "learning_rate": Range(1e-5, 1e-3, True, False),
        "learning_rate_decay": Range(5_000, 50_000, False, True),
        "bins": Choice((5, 11)),
        "n_step": Range(1, 3, False, True),
        "policy": Choice(("gaussian", "flow")),
    }
    path = tmp_path / "space.toml"
    path.write_text("[hidden]\nchoices = [[64], [64, 64]]\n[discount]\nlow = 0.9\nhigh = 0.99\n")
    read = read_space([str(path)], config)
    assert read == {"hidden": Choice(((64,), (64, 64))), "discount": Range(0.9, 0.99, False, False)}


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("lr=1..2", "did you mean 'learning_rate'"),
        ("learning_rate", "space is a .toml file, or words such as"),
        ("learning_rate=-1..1", "learning_rate must be a positive number"),
        ("learning_rate=1e-3..1e-5", "the range of learning_rate must rise"),
        ("learning_rate=low..high", "needs a range between two numbers"),
        (f"learning_rate=1e-3..{10**400}", r"needs a range between two numbers below 2\*\*63"),
        ("bins=5", "bins needs at least two different choices"),
        ("bins=5,1", "bins must be a whole number from 2 to 65536"),
        ("seed=1,2", "seed cannot be searched"),
        ("env_timeout=1..9", "env_timeout cannot be searched"),
        ("missing.toml", "missing.toml cannot be read"),
    ],
)
def test_a_bad_space_is_one_sentence(word, sentence):
    with pytest.raises(InputError, match=sentence):
        read_space([word], configs.resolve("iq", "Task-v0"))


def test_what_is_a_flag_is_not_searched_too(capsys):
    assert cli.run(["tune", "iq", "--learning-rate", "1e-3", "--space", "learning_rate=1e-5..1e-3"]) == 2
    assert "learning_rate is given as a flag and searched too" in capsys.readouterr().err


def test_a_preset_file_can_be_written_by_hand_and_flags_win(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('algorithm = "miq"\n[settings]\nkl = 0.02\ntemperature = 0.2\nhidden = [32, 32]\n')
    config = configs.resolve("miq", "Pendulum-v1", preset=str(path), hidden=(4,))
    assert (config.kl, config.alpha, config.hidden, config.min_replay) == (0.02, None, (4,), 10_000)
    assert configs.from_json(configs.to_json(config)) == config


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "does not say which algorithm it is for, such as: algorithm = 'iq'"),
        ('algorithm = "sac"', "is a preset for 'sac', and cannot be used for 'iq'"),
        ('algorithm = "iq"', "settings must be a table of hyperparameters"),
        ('algorithm = "iq"\n[settings]\nlr = 1', "did you mean 'learning_rate'"),
        ('algorithm = "iq"\n[settings]\nseed = 1', "a preset cannot set seed"),
        ('algorithm = "iq"\n[settings]\nbins = 0', "bins must be a whole number"),
        ('algorithm = "iq"\nsetting = 1', "a preset has no 'setting'; did you mean 'settings'"),
        ("= 1", "is not a TOML file"),
    ],
)
def test_a_bad_preset_file_is_one_sentence(content, sentence, tmp_path):
    path = tmp_path / "preset.toml"
    path.write_text(content)
    with pytest.raises(InputError, match=sentence):
        configs.resolve("iq", "Task-v0", preset=path)


def test_only_small_plain_files_are_read_as_settings(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "large.json").write_text(" " * ((1 << 20) + 1))
    (tmp_path / "round.toml").symlink_to("round.toml")
    reasons = {"pipe.toml": "it is not a plain file", "large.json": "it is larger than 1 MB", "round.toml": "Too many"}
    for name, reason in reasons.items():
        with pytest.raises(InputError, match=f"{name} cannot be read: {reason}"):
            read_settings(tmp_path / name)


def test_a_config_from_a_file_does_not_choose_which_file_is_read(tmp_path):
    (tmp_path / "preset.json").write_text('{"algorithm": "iq", "settings": {"bins": 5}}')
    data = {**configs.to_json(configs.resolve("iq", "Task-v0")), "preset": str(tmp_path / "preset.json")}
    with pytest.raises(InputError, match="preset must be 'paper', 'none' or 'file'"):
        configs.from_json(data)
