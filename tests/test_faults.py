"""The short form of benchmarks/faults: kills, damaged files and equal seeds, through the command line."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import warnings
from pathlib import Path

import pytest

from implicitq.commands import main

FAULTS = Path(__file__).parents[1] / "benchmarks/faults"
pytestmark = pytest.mark.skipif(not FAULTS.is_dir(), reason="the benchmarks are not there, as in a source archive")


@pytest.fixture
def faults(monkeypatch, tmp_path):
    """The modules of the benchmark, with results that go nowhere else."""
    monkeypatch.syspath_prepend(str(FAULTS))
    import files
    import shared
    import training

    monkeypatch.setattr(shared, "RESULTS", tmp_path / "results.csv")
    monkeypatch.setattr(shared, "_COMPILED", tmp_path / "compiled")
    yield {"files": files, "training": training, "shared": shared}
    for name in ("files", "training", "shared", "simulators", "outside"):
        sys.modules.pop(name, None)


def test_a_killed_run_ends_as_one_that_never_was(faults):
    assert faults["training"].kills(range(1))


def test_two_processes_with_one_seed_agree_in_every_byte(faults):
    assert faults["training"].determinism(range(1, 2))


def test_damaged_files_are_detected_or_harmless(faults, monkeypatch):
    """In this process, which is faster than one for each command, and with an alarm against hanging."""
    ended = faults["shared"].Ended

    def run(*words, seconds: float = 120, **_):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("default")
            signal.alarm(int(seconds))
            code = main.run([str(word) for word in words])
            signal.alarm(0)
        return ended(code, out.getvalue(), err.getvalue())

    monkeypatch.setattr(faults["files"], "run", run)
    assert faults["files"].corruption(range(12))
