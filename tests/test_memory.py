"""What does not fit into the memory is refused before it is asked for."""

import pytest

import implicitq
from implicitq import memory
from implicitq.commands import main as cli
from implicitq.memory import Memory
from implicitq.types import InputError


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: Memory(machine=8 * 10**9, limit=10**9, free=3 * 10**8))


def test_a_replay_beyond_all_memory_is_refused_in_a_sentence(small_machine, capsys):
    assert cli.run(["train", "miq", "--env", "toys:Toy-v0", "--hidden", "8", "--replay-size", "10000000000000"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "replay_size 10,000,000,000,000 would take 190,000.0 GB of memory;" in told
    assert "1.0 GB can be had here, of which 0.3 GB are free" in told


def test_a_replay_counts_as_far_as_the_run_fills_it(small_machine, small):
    """Of 19 bytes per row, 1.9 GB are reserved: more than the container may have, but not than the machine has."""
    implicitq.make("miq", "toys:Toy-v0", **{**small, "replay_size": 10**8}).close()
    with pytest.raises(InputError, match=r"replay_size 100,000,000 would take 1.9 GB of memory; 1.0 GB can be had"):
        implicitq.make("miq", "toys:Toy-v0", **{**small, "replay_size": 10**8, "steps": 10**9})


def test_networks_beyond_all_memory_are_refused_in_a_sentence(small_machine, small):
    with pytest.raises(InputError, match=r"a network with hidden \(30000, 30000\) would take 10.8 GB of memory"):
        implicitq.make("miq", "toys:Toy-v0", **{**small, "hidden": (30_000, 30_000)})
    with pytest.raises(InputError, match=r"a network with hidden \(1000000000000000000,\) would take"):
        implicitq.make("sac", "toys:Toy-v0", hidden=(10**18,))


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    found = memory.available()
    assert found is not None
    assert 0 < found.free <= found.limit <= found.machine
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    kinds = dict.fromkeys(("", "memory"), (tmp_path, "memory.max", "memory.current"))
    monkeypatch.setattr(memory, "_KINDS", kinds)
    assert memory.available() == Memory(found.machine, 5_000_000, 2_000_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available().limit == found.machine
