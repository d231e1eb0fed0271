"""Faults of the disk: full at any write, read-only, or the run folder gone."""

from __future__ import annotations

import functools
import os
import random
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared import Ended, Tally, differing, end, files_of, go_on, run, scratch, start, train_words

_PAGE = 4096  # the unit in which a disk in memory fills
_FAULTS = ("full", "full", "full", "read-only", "removed", "made anew")


def disk(tally: Tally, seed: int) -> None:
    """A disk that is full (of any size), a folder read-only, removed, or made anew by another run meanwhile."""
    fault = _FAULTS[seed % len(_FAULTS)]
    chance = random.Random(seed)
    with scratch() as room:
        words = train_words("iq", room / "disk/run")
        (room / "disk").mkdir()
        if fault == "full":
            _full(tally, seed, room / "disk", words, chance)
            return
        process = start(*words, ordinary=True)
        while process.poll() is None and not list((room / "disk/run").glob("checkpoints/*.json")):
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.3))
        outcome, done = _taken_away(process, room / "disk/run", words, fault)
        tally.add(seed, fault, outcome, "", done)


@functools.cache
def _whole() -> dict[str, bytes]:
    with scratch() as room:
        run(*train_words("iq", room / "run"))
        return files_of(room / "run")


def _full(tally: Tally, seed: int, place: Path, words: list[str], chance: random.Random) -> None:
    """A disk of its own, too small by any number of pages; then larger, and the run goes on."""
    pages = sum(-(-len(content) // _PAGE) for content in _whole().values())
    size = chance.randrange(1, pages + 8)  # while it runs, there is more than at its end
    with _mounted(place, size * _PAGE):
        done = run(*words)
        outcome = done.outcome
        left = [path.name for path in place.rglob("*.part")]
        if outcome == "detected" and "No space left on device" not in done.err:
            outcome = "ANOTHER SENTENCE"
        if outcome == "detected" and str(place) not in done.err:
            outcome = "NO FILE NAMED"
        if left:
            outcome = f"LEFT {left}"
        if outcome in ("detected", "done"):
            subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
            outcome = _ends_as_if_never(place / "run", words)
        tally.add(seed, "full at some write" if done.code else "large enough after all", outcome, f"{size} pages", done)


@contextmanager
def _mounted(place: Path, size: int) -> Iterator[None]:
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    except (OSError, subprocess.CalledProcessError):
        raise SystemExit("a full disk needs the right to mount one: run this part as root") from None
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def _taken_away(process: subprocess.Popen[str], folder: Path, words: list[str], fault: str) -> tuple[str, Ended]:
    if fault == "read-only":
        folders = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        for each in folders:
            each.chmod(stat.S_IRUSR | stat.S_IXUSR)
        done = end(process)
        for each in folders:
            each.chmod(stat.S_IRWXU)
        good = done.outcome == "detected" or "finished" in done.out or done.code == 0  # it may have been done already
        return _ends_as_if_never(folder, words) if good else done.outcome, done
    for _ in range(20):  # it may be writing at this moment
        shutil.rmtree(folder, ignore_errors=True)
    if fault == "removed":
        done = end(process)
        outcome = "CAME BACK" if folder.exists() else done.outcome
        return "harmless" if outcome == "done" else outcome, done
    other = run(*words)
    done = end(process)
    apart = differing(_whole(), files_of(folder))
    if done.code == 0:  # it was done before it noticed
        return "DIFFERENT" if apart else "harmless", other
    return done.outcome if other.code == 0 and not apart else "DIFFERENT", done


def _ends_as_if_never(folder: Path, words: list[str]) -> str:
    """What comes of going on once the fault is over."""
    again = run(*go_on(folder, words))
    apart = differing(_whole(), files_of(folder)) if os.path.isdir(folder) else ["everything"]
    good = again.code == 0 or "is finished" in again.err
    return "identical" if good and not apart else f"LOST OR DIFFERENT {again.err.strip()[-200:]} {apart}"
