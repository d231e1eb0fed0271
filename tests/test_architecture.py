"""The direction of imports, what must not be in the source, and how little who only loads and predicts needs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import implicitq
from conftest import OF_THE_LOOP

ROOT = Path(implicitq.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

# A file may import from the folders and modules on lines above its own, and on its own.
LAYERS = [
    {"types"},
    {"validation", "machine", "compilation"},
    {"configs"},
    {"events"},
    {"callbacks"},
    {"equations", "networks", "normalization", "packing"},
    {"policies"},
    {"algorithms"},
    {"learner", "envs", "replay"},
    {"evaluate", "hindsight"},
    {"train"},
    {"stacking"},
    {"driver"},
    {"runs", "progress"},
    {"trackers"},
    {"agent", "seeds"},
    {"bench", "video", "export", "doctor", "card"},
    {"push"},
    {"sweeps", "tuning"},
    {"reports"},
    {"commands"},
]
APART = {"theory": {"reports", "commands"}}  # an independent oracle: imports nothing of ours, only these import it
REGISTRIES = {("configs", "policies")}  # a table of module names that only the second of the two imports from
_NAMED = re.compile(r"\bimplicitq(?:\.\w+| import \w+)+")


def room(module: str) -> str:
    """`implicitq.algorithms.iq` -> `algorithms`; the package itself -> ``."""
    return ([*module.split("."), ""])[1]


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports, anywhere in it, or names in a string, as for a process or a later import."""
    found = set()
    tree = ast.parse(path.read_text())
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            is_package = module == "implicitq" or (ROOT.parent / module.replace(".", "/")).is_dir()
            inside = {f"{module}.{alias.name}" for alias in node.names if is_package and is_module(module, alias.name)}
            found |= inside or {module}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            found |= {longest_module(name) for name in _NAMED.findall(node.value)}
    return {name for name in found if name == "implicitq" or name.startswith("implicitq.")}


def longest_module(name: str) -> str:
    """`implicitq.agent.make` -> `implicitq.agent`; what is no module of ours -> ``."""
    package, *words = name.replace(" import ", ".").split(".")
    for word in words:
        if not is_module(package, word):
            break
        package = f"{package}.{word}"
    return package if package != "implicitq" else ""


def is_module(package: str, name: str) -> bool:
    base = ROOT.parent / package.replace(".", "/") / name
    return base.is_dir() or base.with_suffix(".py").is_file()


def own_module(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(name: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if name in names)


def test_every_module_has_a_layer():
    rooms = {room(own_module(path)) for path in SOURCES} - {"", *APART}
    assert rooms <= set().union(*LAYERS)


@pytest.mark.parametrize("path", SOURCES, ids=own_module)
def test_imports_go_one_way(path):
    own = room(own_module(path))
    if own == "":  # the package's face: public names only
        assert {room(name) for name in imports(path)} <= {"types", "callbacks", "agent", ""}
        return
    for name in imports(path):
        target = room(name)
        if target in ("", own) or (own, target) in REGISTRIES:
            continue
        assert own not in APART, f"{own} imports {name}"
        allowed = own in APART[target] if target in APART else layer(target) <= layer(own)
        assert allowed, f"{own_module(path)} imports {name}, which lies above it"


def test_the_check_of_directions_sees_imports(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("from implicitq import agent, __version__\ndef f():\n    import implicitq.train\n")
    assert imports(path) == {"implicitq.agent", "implicitq.train"}


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ('run([python, "-m", "implicitq.sweeps.worker"])', {"implicitq.sweeps.worker"}),
        ('run([python, "-c", "from implicitq import bench; bench.measure()"])', {"implicitq.bench"}),
        ('TABLE = {"train": ("implicitq.commands.train", "trains")}', {"implicitq.commands.train"}),
        ('import_module(f"implicitq.commands.{name}")', {"implicitq.commands"}),
        ('say("see implicitq.agent.make, or implicitq train --help")', {"implicitq.agent"}),
        ('say("use implicitq.load(path)")', set()),
        ('"""A docstring may speak of implicitq.agent."""', set()),
    ],
)
def test_the_check_of_directions_sees_modules_named_in_strings(line, seen, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(line)
    assert imports(path) == seen


def test_no_algorithm_imports_another():
    for path in (ROOT / "algorithms").glob("*.py"):
        if path.stem != "__init__":
            others = {name for name in imports(path) if name.startswith("implicitq.algorithms.")}
            shared = {f"implicitq.algorithms.{name}" for name in ("base", "implicit", "ensemble")}
            assert others <= {*shared, own_module(path)}, path.name


def test_the_training_loop_names_no_algorithm():
    names = {path.stem for path in (ROOT / "algorithms").glob("*.py")} - {"__init__", "base"}
    assert names
    tree = ast.parse((ROOT / "train.py").read_text())
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not {word for word in words if word.lower() in names or word.lower() in {"miq", "iqconfig"}}


def test_compiled_functions_do_not_look_at_the_settings_of_the_loop():
    """So that tests can share them between agents that differ in nothing else (conftest.py)."""
    not_compiled = {("algorithms/__init__.py", "env"), ("learner.py", "seed")}
    paths = [ROOT / f"{name}.py" for name in ("learner", "networks", "normalization", "equations")]
    for path in [*paths, *(ROOT / "algorithms").glob("*.py"), *(ROOT / "policies").glob("*.py")]:
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        read = {node.attr for node in nodes if ast.unparse(node.value).endswith("config")}
        assert {(str(path.relative_to(ROOT)), name) for name in read & OF_THE_LOOP} <= not_compiled


def test_nothing_that_runs_code_from_files_is_used():
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "eval", "exec", "allow_pickle"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = set()
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = {node.func.id} | {keyword.arg for keyword in node.keywords}
            elif isinstance(node, ast.Call):
                names = {keyword.arg for keyword in node.keywords}
            assert not names & forbidden, f"{path.name}, line {getattr(node, 'lineno', '?')}"


def test_help_configs_reports_and_theory_need_no_jax():
    modules = [
        "machine",
        "configs",
        "runs.layout",
        "runs.curve",
        "runs.logs",
        "runs.hub",
        "card",
        "tuning.space",
        "sweeps.studies",
        "sweeps.suites",
        "sweeps.sweep",
        "theory",
    ]
    modules += [f"reports.{path.stem}" for path in sorted((ROOT / "reports").glob("*.py")) if path.stem != "__init__"]
    modules += ["commands.parsing", "commands.main"]
    code = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module("implicitq." + module)
    heavy = {{"jax", "jaxlib", "equinox", "optax"}} & set(sys.modules)
    assert not heavy, f"{{module}} imports {{heavy}}"
sys.modules["implicitq.configs"].resolve("miq", "Pendulum-v1")
assert "jax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["--version"], {"numpy", "rich", "tyro", "jax"}),
        (["--help"], {"jax", "gymnasium", "matplotlib", "scipy"}),
        (["train", "--help"], {"jax", "gymnasium", "matplotlib", "scipy"}),
    ],
)
def test_help_and_version_import_little_and_so_come_at_once(arguments, unused):
    code = f"""
import sys
from implicitq.commands.main import run
assert run({arguments}) == 0
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "implicitq" in done.stdout
    assert not unused & set(done.stderr.split())


# Loading and predicting, in fresh processes where nothing else can be imported.


# What docs/sharing.md says is enough, with what these packages need themselves.
ENOUGH = {
    *("numpy", "jax", "jaxlib", "equinox", "gymnasium", "safetensors"),
    *("scipy", "opt_einsum", "ml_dtypes", "jaxtyping", "wadler_lindig", "typing_extensions"),
    *("cloudpickle", "farama_notifications"),
}
CODE = """
import importlib.metadata, json, sys

enough = {*json.loads(sys.argv[2]), *sys.stdlib_module_names, "implicitq"}
for name in importlib.metadata.packages_distributions():
    if name not in enough and not name.startswith("_"):
        sys.modules[name] = None  # as if it were not installed

import implicitq
import numpy as np

folder = sys.argv[1]
for name, size in json.loads(sys.argv[3]).items():
    agent = implicitq.load(f"{folder}/{name}")
    rows = np.zeros((2, size), np.float32)
    action, _ = agent.predict(rows, deterministic=True)
    agent.save(f"{folder}/again")
agent.value(rows), agent.q_value(rows, action), agent.evaluate(1)
"""


def test_loading_and_predicting_import_nothing_but_what_they_need(tmp_path, small):
    sizes = {}
    for algorithm, task, size in (("miq", "Pendulum-v1", 3), ("sac", "Pendulum-v1", 3), ("dqn", "CartPole-v1", 4)):
        settings = {name: value for name, value in small.items() if name != "bins" or algorithm == "miq"}
        with implicitq.make(algorithm, task, **settings) as agent:
            agent.save(tmp_path / algorithm)
        sizes[algorithm] = size
    done = alone(ENOUGH, str(tmp_path), sizes)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["jax", "safetensors"])
def test_less_is_not_enough(package, tmp_path):
    done = alone(ENOUGH - {package}, str(tmp_path), {"none": 1})
    assert done.returncode != 0
    assert f"import of {package}" in done.stderr


def alone(enough: set[str], folder: str, sizes: dict[str, int]) -> subprocess.CompletedProcess[str]:
    """A fresh process in which no other packages can be imported."""
    words = [sys.executable, "-c", CODE, folder, json.dumps(sorted(enough)), json.dumps(sizes)]
    return subprocess.run(words, capture_output=True, text=True, check=False)
