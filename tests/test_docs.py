"""Every block of README and docs works, the site builds without a warning, and the examples run. See doc_blocks.py."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib
import pytest
import tyro

import doc_blocks
import implicitq
from doc_blocks import PAGES, ROOT, Block
from implicitq import agent as agents
from implicitq.commands import main
from implicitq.configs import ALGORITHMS, Config
from implicitq.export import export_onnx
from implicitq.seeds import Seeds
from toys import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:no update was made")  # in small form, as NO_UPDATES tells

MOST_STEPS = 60  # of any call of learn in a page or an example: an evaluation and a checkpoint
NO_UPDATES = 900  # min_replay that no page reaches
WITH_UPDATES = ("train.py",)  # all others end before the first update: compiling it would be most of the time
EXAMPLES = sorted((ROOT / "examples").iterdir())


@pytest.fixture
def in_small(monkeypatch, tmp_path, request) -> Iterator[None]:
    """Work in an empty folder, where whatever is trained is tiny, however large the page or the example has it."""
    made: list[implicitq.Agent] = []
    build, evaluate = agents._agent, implicitq.Agent.evaluate
    with_updates = request.node.callspec.id in WITH_UPDATES
    least = SMALL["min_replay"] if with_updates else NO_UPDATES

    def small_agent(config: Config, *given: Any, **named: Any) -> implicitq.Agent:
        goes_on = inspect.signature(build).bind(config, *given, **named).arguments.get("run") is not None
        if not goes_on:  # else it has its settings already
            small = {name: value for name, value in SMALL.items() if name != "steps" and hasattr(config, name)}
            config = dataclasses.replace(config, **{**small, "min_replay": least, "eval_episodes": 1})
        made.append(build(config, *given, **named))
        return made[-1]

    def shortened(learn: Callable[..., Any]) -> Callable[..., Any]:
        def short_learn(self: implicitq.Agent | Seeds, steps: float | None = None, **more: Any) -> Any:
            first = self.agents[0] if isinstance(self, Seeds) else self
            wanted = first.config.steps - first.step if steps is None else steps
            return learn(self, min(int(wanted), MOST_STEPS), **more)

        return short_learn

    def short_evaluate(self: implicitq.Agent, episodes: int = 10, **more: Any) -> implicitq.Evaluation:
        return evaluate(self, min(episodes, 2), **more)

    monkeypatch.setattr(agents, "_agent", small_agent)
    monkeypatch.setattr(implicitq.Agent, "evaluate", short_evaluate)
    for each in (implicitq.Agent, Seeds):
        monkeypatch.setattr(each, "learn", shortened(each.learn))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command line replaces
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    matplotlib.use("agg")
    yield
    assert any(each._trainer.learner.updates for each in made if each._trainer) == with_updates
    for each in made:
        each.close()


class _Parsed(Exception):
    """The parser has accepted the arguments."""


@pytest.fixture
def parse(monkeypatch) -> Callable[[list[str]], None]:
    """Give the arguments of a command to its own parser, and stop there."""
    real = tyro.cli

    def parse_only(*given: Any, **options: Any) -> None:
        real(*given, **options)
        raise _Parsed

    def parse(arguments: list[str]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(tyro, "cli", parse_only)
            if "--help" in arguments or arguments == ["--version"]:
                assert main.run(arguments) == 0
            else:
                with pytest.raises(_Parsed):
                    main.run(arguments)

    return parse


def test_every_block_has_a_language_that_says_how_to_try_it():
    blocks = [block for page in PAGES for block in doc_blocks.blocks(page)]
    assert [b.place for b in blocks if b.trial != "plain" and b.language not in ("python", "sh")] == []
    assert {block.trial for block in blocks} == {"run", "parsed", "marked", "plain"}


def test_the_table_of_hyperparameters_has_all_of_them():
    table = [line for line in (ROOT / "docs/training.md").read_text().splitlines() if line.startswith("| `")]
    told = {name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    names = {field.name for entry in ALGORITHMS.values() for field in dataclasses.fields(entry.config)}
    assert names - told == {"algorithm"}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_ours_or_marked(page, parse, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for block in doc_blocks.blocks(page):
        if block.language == "sh":
            for words in doc_blocks.commands(block.text):
                _check_command(block, words, parse)
    for words in doc_blocks.inline_commands(page):
        parse(words[1:])


def _check_command(block: Block, words: list[str], parse: Callable[[list[str]], None]) -> None:
    arguments = doc_blocks.ours(words)
    if arguments is not None:
        if "--preset" in arguments:  # a file of settings is read while the arguments are
            preset = Path(arguments[arguments.index("--preset") + 1])
            preset.parent.mkdir(parents=True, exist_ok=True)
            preset.write_text(json.dumps({"algorithm": arguments[1], "settings": {}}))
        try:
            parse(arguments)
        except BaseException as error:
            raise AssertionError(f"{block.place}: {' '.join(words)}") from error
    elif words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file(), f"{block.place}: there is no {words[1]}"
    else:
        assert block.not_run, f"{block.place}: {words[0]} is no command of ours; mark the block as not run"


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.trial == "run" for b in doc_blocks.blocks(page))])
def test_the_blocks_of_a_page_run_one_after_the_other(page, in_small, a_run):
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in doc_blocks.blocks(page):
        if block.language == "setup" or (block.language == "python" and block.trial == "run"):
            _run_python(block, namespace)
        elif block.language == "sh" and block.not_run is None:
            for words in filter(doc_blocks.is_short, doc_blocks.commands(block.text)):
                _provide_runs(words, a_run)
                assert main.run(words[1:]) == 0, f"{block.place}: {' '.join(words)}"


def _run_python(block: Block, namespace: dict[str, Any]) -> None:
    source = "\n" * (block.line - 1) + block.text  # so that a traceback has the lines of the page
    if block.module is not None:
        Path(f"{block.module}.py").write_text(block.text)
        source = f"from {block.module} import *"
    exec(compile(source, str(ROOT / block.page), "exec"), namespace)


def _provide_runs(words: list[str], a_run: Path) -> None:
    """Where a command asks for run folders that the page has not made, it finds copies of a tiny run."""
    if words[1] in ("resume", "evaluate", "plot"):
        for word in words[2:]:
            if word.startswith("runs/") and not Path(word).exists():
                shutil.copytree(a_run, word)


@pytest.fixture(scope="module")
def a_run(tmp_path_factory) -> Path:
    """A run on CartPole that was stopped on its way."""
    folder = tmp_path_factory.mktemp("run") / "cartpole"
    with implicitq.make("miq", "CartPole-v1", **{**SMALL, "steps": 1_000, "min_replay": NO_UPDATES}) as agent:
        agent.learn(MOST_STEPS, out=folder)
    return folder


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_run(path, in_small, capsys):
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        source = "\n".join("".join(cell["source"]) for cell in cells)
    else:
        source = path.read_text()
    exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})


@pytest.mark.parametrize("task", ["CartPole-v1", "FrozenLake-v1"])
def test_the_example_of_an_exported_model_plays_its_task(task, in_small, capsys):
    for module in ("jax2onnx", "onnxruntime"):
        pytest.importorskip(module)
    agent = implicitq.make("miq", task)
    export_onnx(agent, Path("policy.onnx"))
    (example,) = [block for block in doc_blocks.blocks("docs/sharing.md") if "onnxruntime" in block.text]
    _run_python(example, {})
    env, total, ended = gym.make(task), 0.0, False
    observation, _ = env.reset(seed=0)
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(agent.predict(observation, deterministic=True)[0])
        total, ended = total + float(reward), terminated or truncated
    assert float(capsys.readouterr().out) == total


def test_the_pictures_of_the_docs_are_drawn_from_the_tables(tmp_path):
    runpy.run_path(str(ROOT / "docs/figures/make.py"))["main"](tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in ROOT.glob("docs/figures/*.png")}


def test_the_site_builds_without_warnings_and_asks_for_nothing_from_elsewhere(tmp_path):
    for module in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.glob("*.html"):
        assert 'src="http' not in page.read_text(), page.name
    assert "<math" in (tmp_path / "algorithms.html").read_text()
