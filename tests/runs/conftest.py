"""A finished run, and copies of it to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import implicitq
from toys import SMALL

FIXTURES = Path(__file__).parent.parent / "fixtures/layout-1"


@pytest.fixture(scope="session")
def layout_1(tmp_path_factory) -> Path:
    """Run folders and policy files of the first layout, and what the policies answered."""
    directory = Path(shutil.copytree(FIXTURES, tmp_path_factory.mktemp("fixtures") / "layout-1"))
    shutil.unpack_archive(directory / "runs.zip", directory)
    return directory


@pytest.fixture(scope="session")
def finished_toy(tmp_path_factory) -> Path:
    """A run of 120 steps with checkpoints every 40; the last two are kept."""
    directory = tmp_path_factory.mktemp("checkpoints") / "run"
    implicitq.make("miq", "toys:Toy-v0", **SMALL).learn(out=directory).close()
    return directory


@pytest.fixture
def run(finished_toy, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished_toy, tmp_path / "run"))
