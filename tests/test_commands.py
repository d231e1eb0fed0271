"""The commands: flags, help, errors, exit codes; implicitq doctor, and what is recommended at the end of a run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import gymnasium as gym
import jax
import pytest

from implicitq import __version__, agent, configs, doctor, video
from implicitq.commands import display
from implicitq.commands import main as cli
from implicitq.commands.parsing import parse_with_config, split_algorithm
from implicitq.commands.train import Options, next_commands
from implicitq.configs import ALGORITHMS, IQConfig, resolve
from implicitq.runs import layout
from implicitq.validation import ALIASES


def run(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


@pytest.fixture
def refused(capfd):
    """Run a command that must fail: with code 2 and one sentence."""

    def check(*arguments: object) -> str:
        assert run(*arguments) == 2
        captured = capfd.readouterr()
        assert "Traceback" not in captured.out + captured.err
        assert not captured.out
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1, captured.err
        return captured.err

    return check


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    from toys import SMALL

    directory = tmp_path_factory.mktemp("cli") / "run"
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items() if k != "hidden"]
    command = ["train", "--env", "toys:Toy-v0", *flags, "--hidden", "8", "--out", directory]
    assert run(*command) == 0
    return directory


def test_names_of_a_stranger_do_not_steer_the_terminal(capsys):
    steering = "\x1b]52;c;aGE=\x07\x1b[2J\u202e"
    shown = display.table(steering, steering)
    shown.add_row(steering)
    for console in (display.console, display.error_console):
        console.print(f"[b] two\nlines: {steering}", shown)
    for printed in capsys.readouterr():
        assert printed.startswith("[b] two\nlines: ?]52;c;aGE=??[2J?\n")
        assert printed.count("?[2J?") == 4
        assert printed.replace("\n", "").isprintable()


@pytest.mark.parametrize("words", [["--bound-values", "False"], ["--bound-values=false"]])
def test_a_switch_that_is_given_a_value_is_explained(words, refused):
    assert "--bound-values takes no value, got '" in (said := refused("train", "iq", *words))
    assert "--no-bound-values off" in said


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_a_reader_that_has_seen_enough_gets_no_traceback(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "implicitq.commands.main", *arguments]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_training_shows_the_preset_the_result_and_what_to_do_next(small_flags, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [*small_flags, "--eval-every", "60"]
    assert run("train", "iq", "--env", "toys:Toy-v0", "--seed", 3, *flags) == 0
    captured = capsys.readouterr()
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"toys-Toy-v0-iq-3-\d{8}-\d{6}", folder.name)
    assert "iq on toys:Toy-v0, seed 3, 120 steps" in captured.out
    assert "preset: none for this task" in captured.out
    assert f"run folder: runs/{folder.name}" in captured.out
    assert "evaluations, deterministic policy" in captured.out
    (evaluate,) = (line.split() for line in captured.out.splitlines() if line.startswith("  implicitq evaluate "))
    assert evaluate[2:] == [f"runs/{folder.name}", "--env", "toys:Toy-v0", "--episodes", "20"]
    assert run(*evaluate[1:]) == 0
    assert "step 60 of 120: return " in captured.err
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "config.json").read_text())["algorithm"] == "iq"


def test_iq_auto_is_the_default_and_the_algorithm_can_stand_anywhere():
    assert split_algorithm([]) == ("iq-auto", [])
    assert split_algorithm(["--env", "CartPole-v1"]) == ("iq-auto", ["--env", "CartPole-v1"])
    assert split_algorithm(["iq", "--steps", "5"]) == ("iq", ["--steps", "5"])
    assert split_algorithm(["--hidden", "64", "64", "iq"]) == ("iq", ["--hidden", "64", "64"])


def test_a_fresh_folder_is_taken_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(layout.time, "strftime", lambda _: "now")
    config = resolve("iq", "module:space/Task-v0")
    first = layout.fresh_folder(config)
    first.mkdir(parents=True)
    assert (str(first), layout.fresh_folder(config).name) == ("runs/module-space-Task-v0-iq-0-now", f"{first.name}-2")


def test_evaluate_prints_a_table_or_json(finished, capsys):
    assert run("evaluate", finished, "--trust-env", "--episodes", 3) == 0
    assert "iq-auto on toys:Toy-v0 after 120 steps" in capsys.readouterr().out
    assert run("evaluate", finished, "--trust-env", "--episodes", 3, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["env"], data["algorithm"], data["step"]) == ("toys:Toy-v0", "iq-auto", 120)
    assert len(data["returns"]) == len(data["lengths"]) == 3
    assert data["mean"] == pytest.approx(sum(data["returns"]) / 3)
    assert run("evaluate", finished / "policy.safetensors", "--trust-env", "--episodes", 3, "--json") == 0
    assert json.loads(capsys.readouterr().out) == data
    assert run("evaluate", finished, "--trust-env", "--episodes", 3, "--seed", 8, "--json") == 0
    assert json.loads(capsys.readouterr().out)["returns"] != data["returns"]


def test_a_finished_run_is_resumed_only_with_more_steps(finished, tmp_path, refused, capfd):
    directory = Path(shutil.copytree(finished, tmp_path / "run"))
    before = (directory / "config.json").read_text()
    assert "is finished at step 120; to train on, give --steps with more" in refused("resume", directory, "--trust-env")
    told = refused("resume", directory, "--trust-env", "--steps", 100)
    assert "--steps is the new total and must be more than the 120 that" in told
    assert told.endswith("got 100\n")
    slower = ("resume", directory, "--trust-env", "--learning-rate", "1e-4")
    assert "is finished at step 120" in refused(*slower)
    assert "must be more than the 120 that" in refused(*slower, "--steps", 120)
    assert (directory / "config.json").read_text() == before
    assert not (directory / "branches.json").exists()
    assert run("resume", directory, "--trust-env", "--steps", 160) == 0
    assert "resuming" in capfd.readouterr().out
    assert json.loads((directory / "config.json").read_text())["steps"] == 160


def test_the_usage_page_names_every_command_and_algorithm_and_where_to_start(capsys):
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        assert run(*arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == "start with: implicitq train"
        for name, summary in cli.COMMANDS.items():
            assert f"  {name:<14}{summary}" in lines
            assert f": implicitq {name} " in summary
        assert all(f"  {name:<14}{entry.summary}" in lines for name, entry in ALGORITHMS.items())
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == f"implicitq {__version__}"


def test_warnings_of_gymnasium_lose_their_colour(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    assert run("--version") == 0
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        gym.logger.warn("%s is out of date", "Task-v2")
    assert capsys.readouterr().err == "warning: Task-v2 is out of date\n"


def test_every_command_is_a_module_and_every_module_a_command():
    shared = {"__init__", "display", "main", "parsing"}
    modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py")} - shared
    assert modules == {name.replace("-", "_") for name in cli.COMMANDS}


def test_usage_and_help_need_no_jax_and_end_well():
    code = """
import contextlib, io, json, sys
from implicitq.commands import main
shown = {}
for words in ([], ["--version"], *([name, "--help"] for name in main.COMMANDS), ["train", "sac", "--help"]):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main.run(words)
    heavy = {"jax", "jaxlib", "equinox", "optax"} & set(sys.modules)
    shown[" ".join(words)] = [code, sorted(heavy), said.getvalue()]
print(json.dumps(shown))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "2000"}
    )
    shown = json.loads(done.stdout)
    assert {words: (code, heavy) for words, (code, heavy, _) in shown.items()} == dict.fromkeys(shown, (0, []))
    for words in shown:
        if words.endswith("--help"):
            assert f"usage: implicitq {words.split()[0]}" in shown[words][2]
            undescribed = [line for line in shown[words][2].splitlines() if re.search(r"  \((default|required)", line)]
            assert not undescribed, f"{words} has options without a help text"


def test_the_help_of_train_shows_every_hyperparameter_with_its_default(capsys):
    assert run("train", "iq", "--help") == 0
    shown = capsys.readouterr().out
    fields = IQConfig.__dataclass_fields__
    assert all(f"--{name.replace('_', '-')}" in shown for name in fields if name != "algorithm")
    assert "--algorithm" not in shown
    words = re.sub(r"[\s│]+", " ", shown)
    for name, value in vars(resolve("iq", "Pendulum-v1")).items():
        if isinstance(value, float):
            assert re.search(rf"--{name.replace('_', '-')} .{{1,400}}?\(default: {value}\)", words), name
    assert "--preset paper|none|FILE" in shown


def test_of_a_flag_that_is_given_twice_the_last_counts_for_presets_too():
    words = ["iq", "--env", "Hopper-v5", "--preset", "none", "--env=Humanoid-v5", "--preset", "paper"]
    config = parse_with_config(Options, "train", "Train", "Pendulum-v1", words).config
    assert (config.env, config.preset, config.learning_rate) == ("Humanoid-v5", "paper", 3e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train", "miqq"], "unknown algorithm 'miqq'; did you mean 'miq'?"),
        (["train", "--env", "Pendulum-v7"], "unknown environment 'Pendulum-v7'; did you mean 'Pendulum-v1'?"),
        (["train", "--env", "HalfCheta-v5"], "unknown environment 'HalfCheta-v5'; did you mean 'HalfCheetah-v5'?"),
        (["train", "--temperature", "0"], "temperature must be a positive number or 'auto', got 0"),
        (["train", "--alpha", "1.5"], "alpha must be a number in [0, 1], got 1.5"),
        (["train", "--preset", "best"], "preset must be 'paper', 'none' or the path of a .toml"),
        (["train", "--preset=file"], "preset must be 'paper', 'none' or the path of a .toml or .json file, got 'file'"),
        (["tune", "--preset", "none", "--preset", "file"], "preset must be 'paper', 'none' or the path"),
        (["train", "--bins", "1"], "bins must be a whole number from 2 to 65536, got 1"),
        (["train", "--steps", "-5"], "steps must be a whole number from 1 to 2000000000, got -5"),
        (["train", "--min-replay", "9", "--replay-size", "5"], "replay_size must be at least min_replay (9)"),
        (["resume", "nowhere"], "nowhere is not a run folder: it has no config.json"),
        (["resume", "."], ". is not a run folder: it has no config.json"),
        (["evaluate", "nowhere"], "there is no policy file nowhere"),
        (["evaluate", "."], ". has no policy.safetensors: it is no run folder"),
        (["report", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, message, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--temprature", "1"],
        ["train", "--temperature", "warm"],
        ["evaluate"],
        ["resume", "a", "b"],
        ["sweep"],
        ["report", "a", "--steps", "many"],
        ["theory", "--mdp", "maze"],
    ],
)
def test_bad_flags_are_refused_by_the_parser(arguments, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    captured = capfd.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert captured.err


def test_a_folder_that_cannot_be_used_gets_one_sentence(finished, small_flags, tmp_path, refused):
    (tmp_path / "file").write_text("")
    train = ["train", "--env", "toys:Toy-v0", *small_flags, "--out"]
    assert "already holds a run; go on with: implicitq resume" in refused(*train, finished)
    assert "is not an empty folder; choose another --out" in refused(*train, tmp_path / "file")
    assert "Not a directory" in refused(*train, tmp_path / "file" / "run")


def test_bad_numbers_of_evaluate_get_one_sentence(finished, refused):
    assert "episodes must be a whole number of at least 1, got 0" in refused("evaluate", finished, "--episodes", 0)
    assert "seed must be a whole number from 0" in refused("evaluate", finished, "--seed", "-1")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("toys:Breaks-v0", "the environment failed in step: ZeroDivisionError: the floor gave way (toys.py, line"),
        ("toys:NotFinite-v0", "the environment gave a reward of inf at step 75; rewards must be finite"),
    ],
)
def test_a_failing_environment_keeps_the_last_checkpoint(env, message, small_flags, tmp_path, capsys):
    directory = tmp_path / "run"
    flags = [*small_flags, "--eval-every", "1000"]
    assert run("train", "--env", env, *flags, "--out", directory) == 2
    captured = capsys.readouterr()
    assert f"error: {message}" in captured.err
    assert "Traceback" not in captured.err
    assert f"the last checkpoint is kept; go on from it with: implicitq resume {directory}" in captured.out
    assert sorted(path.name for path in (directory / "checkpoints").glob("*.json")) == ["000000040.json"]


def test_paths_with_brackets_are_shown_as_they_are(small_flags, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("train", "--env", "toys:Toy-v0", *small_flags, "--out", "runs[bold]") == 0
    assert "run folder: runs[bold]" in capsys.readouterr().out


def test_names_with_colons_are_shown_as_they_are(tmp_path, capsys):
    assert run("train", "--env", "a:b:c", "--out", tmp_path / "run") == 2
    assert "got 'a:b:c'" in capsys.readouterr().err


def test_the_module_runs_as_a_process_with_its_exit_code(tmp_path):
    for arguments, code in ((["--version"], 0), (["resume", "nowhere"], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "implicitq.commands.main", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ},
        )
        assert done.returncode == code
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flag", "ours"),
    [
        ("--lr", "--learning-rate"),
        ("--gamma", "--discount"),
        ("--total-timesteps", "--steps"),
        ("--buffer_size", "--replay-size"),
        ("--tau", "--target-update or --temperature"),
    ],
)
def test_flags_of_other_libraries_are_told_by_their_names_here(flag, ours, refused):
    assert refused("train", "sac", flag, "0.1") == f"error: unknown flag {flag}; did you mean {ours}?\n"
    assert refused("train", "sac", f"{flag}=0.1") == f"error: unknown flag {flag}; did you mean {ours}?\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--steps", "x"), "--steps takes a whole number, got 'x'"),
        (("--steps", "1.5"), "--steps takes a whole number, got '1.5'"),
        (("--steps=",), "--steps takes a whole number, got ''"),
        (("--steps",), "--steps needs a value"),
        (("--learning-rate", "fast"), "--learning-rate takes a number, got 'fast'"),
        (("--temperature", "low"), "--temperature takes None or a number or auto, got 'low'"),
        (("--seeds", "0,1"), "--seeds takes whole numbers with spaces between them, got '0,1'"),
        (("--hidden", "64,64"), "--hidden takes whole numbers with spaces between them, got '64,64'"),
        (("--warmup", "no"), "--warmup takes policy or uniform, got 'no'"),
        (("--hidden",), "--hidden needs a value"),
        (("--seeds", "--steps", "5"), "--seeds needs a value"),
        (("--seed", "1", "2"), "--seed takes one value, got '1 2'"),
        (("--algo", "sac"), "unknown flag --algo: the algorithm has none, as in implicitq train sac"),
        (("--explore", "1"), "unknown flag --explore; did you mean --exploration?"),
        (("--eval_evry=3",), "unknown flag --eval_evry; did you mean --eval-every?"),
        (("--xyzzy", "1"), "unknown flag --xyzzy; implicitq train iq-auto --help shows all"),
    ],
)
@pytest.mark.parametrize("columns", ["40", "200"])
def test_a_flag_that_cannot_be_read_gets_one_sentence(words, told, columns, refused, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert refused("train", *words) == f"error: {told}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("report",), "implicitq report needs DIR; implicitq report --help says more"),
        (("push",), "implicitq push needs DIR and REPO; implicitq push --help says more"),
        (("sweep",), "implicitq sweep needs --out DIR; implicitq sweep --help says more"),
        (("report", "one", "two"), "'two' is too much; implicitq report --help shows what the command takes"),
        (("resume", "run", "--learnin-rate", "1"), "unknown flag --learnin-rate; did you mean --learning-rate?"),
    ],
)
@pytest.mark.parametrize("columns", ["40", "200"])
def test_what_is_missing_or_too_much_is_told_in_one_sentence(words, told, columns, refused, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert refused(*words) == f"error: {told}\n"


def test_a_whole_number_may_be_written_as_a_power_of_ten():
    found = parse_with_config(Options, "train", "Train", "Pendulum-v1", ["--steps", "2e3", "--hidden", "1e1", "8"])
    assert found.config.steps == 2_000
    assert found.config.hidden == (10, 8)


def test_an_alias_is_the_name_of_no_hyperparameter():
    for entry in ALGORITHMS.values():
        assert not set(ALIASES) & {field.name for field in dataclasses.fields(entry.config)}
    known = {field.name for entry in ALGORITHMS.values() for field in dataclasses.fields(entry.config)}
    assert {name for names in ALIASES.values() for name in names} <= known


# implicitq doctor, and the commands that are recommended at the end of a run.


def test_the_doctor_looks_at_everything_and_finds_that_training_works(capsys):
    assert cli.run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["training_works"] is True
    findings = {finding["name"]: finding for finding in told["findings"]}
    assert {"versions", "devices", "cores", "processor", "compile cache", "memory", "disk"} <= findings.keys()
    assert importlib.metadata.version("jax") in findings["versions"]["told"]
    assert findings["training"]["told"].startswith("works")
    for name in ("video", "export", "hub", "tune"):
        found = findings[f"extra {name}"]
        assert found["state"] == "good" or found["remedy"] == f"pip install 'implicitq[{name}]'"
    assert str(Path.home()) not in json.dumps(told)


def test_the_doctor_says_so_where_training_does_not_work(monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("no device")

    monkeypatch.setattr(agent, "make", broken)
    monkeypatch.setattr(doctor, "_rendering", lambda: iter(()))
    assert cli.run(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "does not work: RuntimeError: no device" in told
    assert "training does not work here" in told


@pytest.mark.parametrize("error", [RuntimeError("Unable to initialize backend 'bogus'"), AssertionError()])
def test_the_doctor_says_so_where_jax_has_no_device(monkeypatch, error):
    monkeypatch.setattr(jax, "devices", Mock(side_effect=error))
    monkeypatch.setenv("JAX_PLATFORMS", "bogus")
    devices, *_ = doctor._machine()
    assert (devices.name, devices.state) == ("devices", "broken")
    assert devices.told.startswith("JAX finds none with JAX_PLATFORMS='bogus': ")
    assert devices.told.endswith(str(error) or "AssertionError")
    assert devices.remedy == "unset JAX_PLATFORMS, or set it to cpu"


def test_what_does_not_render_is_told_with_its_remedy(monkeypatch):
    def fails(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: no EGL\n")

    monkeypatch.setattr(subprocess, "run", fails)
    three, two = doctor._rendering()
    assert (three.state, two.state) == ("missing", "missing")
    assert "ImportError: no EGL" in three.told
    assert "apt install libegl1" in (three.remedy or "")
    assert two.remedy == "pip install 'implicitq[video]'"


def test_what_an_extra_lacks_is_found_through_the_extras_that_it_asks_for(monkeypatch):
    needs = {
        "implicitq": ["numpy>=1", "outer[fast]>=2; extra == 'speed'"],
        "outer": ["inner<2; extra == 'fast'", "other; extra == 'slow'", "gone; extra == 'fast'"],
    }
    have = {"numpy": "2.0", "outer": "2.1", "inner": "2.5"}

    def version(name: str) -> str:
        if name not in have:
            raise importlib.metadata.PackageNotFoundError(name)
        return have[name]

    monkeypatch.setattr(importlib.metadata, "requires", needs.get)
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert list(doctor.missing_of("implicitq", "")) == []
    assert list(doctor.missing_of("implicitq", "speed")) == ["inner<2 (there is 2.5)", "gone"]


def test_recommended_commands_name_what_a_film_needs_and_modules_again(monkeypatch):
    pendulum = configs.resolve("miq", "Pendulum-v1")
    commands = next_commands(Path("my runs/one"), pendulum)
    assert "implicitq evaluate 'my runs/one' --episodes 20" in commands
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    commands = next_commands(Path("run"), pendulum)
    assert "implicitq video run   (first: pip install 'implicitq[video]')" in commands
    assert not [command for command in commands if "HalfCheetah" in command]
    own = configs.resolve("miq", "toys:Toy-v0")
    assert f"implicitq resume run --env toys:Toy-v0 --steps {2 * own.steps}" in next_commands(Path("run"), own)


@pytest.mark.parametrize(
    ("have", "screen", "expected"),
    [({"EGL"}, "", "egl"), ({"OSMesa"}, "", "osmesa"), (set(), "", None), ({"EGL"}, ":0", None)],
)
def test_pictures_without_a_screen_are_drawn_by_a_library_that_needs_none(have, screen, expected, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.setattr(video.ctypes.util, "find_library", lambda name: name if name in have else None)
    assert video.renderer() == expected
    blocked = video.hindrance("HalfCheetah-v5")
    assert (blocked is None) == (expected is not None or bool(screen))
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert video.renderer() == "osmesa"
