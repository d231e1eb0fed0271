"""The short form of benchmarks/faults: kills, damaged and hostile files and equal seeds, through the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[1] / "benchmarks/faults"
MODULES = ("damage", "hostile", "processes", "shared", "simulators", "training")
pytestmark = pytest.mark.skipif(not FAULTS.is_dir(), reason="the benchmarks are not there, as in a source archive")


@pytest.fixture
def faults(monkeypatch):
    """The modules of the benchmark."""
    monkeypatch.syspath_prepend(str(FAULTS))
    import shared

    yield shared
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_killed_run_ends_as_one_that_never_was(faults, monkeypatch):
    import training

    monkeypatch.setattr(training, "_MOST_KILLS", 2)
    monkeypatch.setattr(training, "_STEPS", 160)
    tally = faults.Tally("kills")
    training.kills(tally, 1)
    assert tally.good, tally


def test_two_processes_with_one_seed_agree_in_every_byte(faults):
    import training

    tally = faults.Tally("determinism")
    training.determinism(tally, 1)
    assert tally.good, tally


@pytest.mark.parametrize("kind", ["damage", "hostile"])
def test_files_that_are_damaged_or_hostile_are_detected_or_harmless(faults, kind, tmp_path, monkeypatch, capsys):
    """In this process, which is faster than one of its own."""
    import damage
    import hostile
    import processes

    module = {"damage": damage, "hostile": hostile}[kind]
    monkeypatch.setattr(module, "run", processes.command)
    monkeypatch.setattr(hostile, "_MEGABYTES", 10**6)  # this process has its own past
    module.prepare(tmp_path)
    tally = faults.Tally(kind)
    for seed in range(14):
        found = module.case(tmp_path, seed)
        tally.add(seed, found["fault"], found["outcome"], found["about"], faults.Ended(0, "", found["said"]))
    assert tally.good, capsys.readouterr().out


def test_outcomes_are_summed_by_fault(faults, tmp_path):
    first, second = faults.Tally("disk"), faults.Tally("kills")
    for seed, outcome in enumerate(("identical", "identical", "detected")):
        first.add(seed, "full", outcome)
    second.add(4, "kill", "identical")
    for tally in (first, second):
        tally.write(tmp_path / "results.csv")
    again = faults.Tally("disk")
    again.read(tmp_path / "results.csv")
    assert (again.counts, again.seeds) == (first.counts, [0, 2])
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 4
