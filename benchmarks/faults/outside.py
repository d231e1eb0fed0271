"""Faults from outside of a run: disks full or taken away, simulators that misbehave, sweeps that lose processes."""

from __future__ import annotations

import csv
import functools
import os
import random
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from damage import SUITE
from shared import ENV, Ended, Tally, differing, end, files_of, go_on, run, scratch, start, train_words
from simulators import FAULTS, env_id

_PAGE = 4096  # the unit in which a disk in memory fills
_DISK_FAULTS = ("full", "full", "full", "read-only", "removed", "made anew")
_SIMULATOR_CASES = [
    *((fault, how, "stop") for fault in FAULTS for how in ("sync", "async")),
    *((fault, how, "restart") for fault in ("raises", "reset", "shape") for how in ("sync", "async")),
    *((fault, "async", "restart") for fault in ("dies", "hangs")),
]
_WITH_US = (("dies", "sync"), ("hangs", "sync"))  # so that nobody can tell
_SIMULATOR_CASES = [each for each in _SIMULATOR_CASES if each[:2] not in _WITH_US]
_SWEEP_FAULTS = ("parent killed", "worker killed", "node killed", "two at once")


def disk(tally: Tally, seed: int) -> None:
    """A disk that is full (of any size), a folder read-only, removed, or made anew by another run meanwhile."""
    fault = _DISK_FAULTS[seed % len(_DISK_FAULTS)]
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
def _whole_run() -> dict[str, bytes]:
    with scratch() as room:
        run(*train_words("iq", room / "run"))
        return files_of(room / "run")


def _full(tally: Tally, seed: int, place: Path, words: list[str], chance: random.Random) -> None:
    """A disk of its own, too small by any number of pages; then larger, and the run goes on."""
    pages = sum(-(-len(content) // _PAGE) for content in _whole_run().values())
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
    apart = differing(_whole_run(), files_of(folder))
    if done.code == 0:  # it was done before it noticed
        return "DIFFERENT" if apart else "harmless", other
    return done.outcome if other.code == 0 and not apart else "DIFFERENT", done


def _ends_as_if_never(folder: Path, words: list[str]) -> str:
    """What comes of going on once the fault is over."""
    again = run(*go_on(folder, words))
    apart = differing(_whole_run(), files_of(folder)) if os.path.isdir(folder) else ["everything"]
    good = again.code == 0 or "is finished" in again.err
    return "identical" if good and not apart else f"LOST OR DIFFERENT {again.err.strip()[-200:]} {apart}"


def simulators(tally: Tally, seed: int) -> None:
    """Each fault, in one process and in workers: a sentence that names it, or a restart that is told, never a hang."""
    fault, how, policy = _SIMULATOR_CASES[seed % len(_SIMULATOR_CASES)]
    more = ["--num-envs", 2, "--vectorization", how, "--on-env-error", policy]
    if fault == "hangs":
        more += ["--env-timeout", 5]
    with scratch() as room:
        done = run(*train_words("iq", room / "run", *more, env=env_id(fault)), seconds=240)
        outcome = done.outcome
        if fault == "ignores-seeds" and done.code == 0:  # seen only where an episode is to be brought back
            again = run("resume", room / "run", "--trust-env", "--steps", 240)
            outcome = "SILENT" if again.outcome == "done" else again.outcome
        elif policy == "restart" and outcome == "fallen back":
            outcome = "fallen back" if _restarts(room / "run") else "SILENT"
        elif outcome == "done":
            outcome = "SILENT"
        tally.add(seed, f"{fault}, {how}, {policy}", outcome, "", done)


def _restarts(folder: Path) -> int:
    """As the metrics tell."""
    with open(folder / "metrics.csv", newline="") as file:
        return int(float(list(csv.DictReader(file))[-1]["env_restarts"]))


def sweeps(tally: Tally, seed: int) -> None:
    """Parent, worker or both killed, or a second sweep in the same folder; then the same command to the end."""
    chance = random.Random(seed)
    fault = _SWEEP_FAULTS[seed % len(_SWEEP_FAULTS)]
    with scratch() as room:
        words = _sweep_words(room)
        out = room / "sweep"
        first = start(*words, "--out", out)
        while first.poll() is None and not list(out.glob("*/*/*/checkpoints/*.json")):
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1))
        if fault == "two at once":
            second = run(*words, "--out", out)
            if "another sweep is running" not in second.err and first.poll() is None:
                tally.add(seed, fault, "NO SENTENCE", "", second)
        else:
            _kill(first, fault)
        ended = end(first)
        again = run(*words, "--out", out) if ended.code else ended
        apart = differing(_whole_sweep(), _results(out))
        bad = again.outcome if again.code else "DIFFERENT"
        tally.add(seed, fault, "identical" if again.code == 0 and not apart else bad, f"{apart}", again)


@functools.cache
def _whole_sweep() -> dict[str, bytes]:
    with scratch() as room:
        run(*_sweep_words(room), "--out", room / "sweep")
        return _results(room / "sweep")


def _sweep_words(room: Path) -> list[object]:
    (room / "tiny.toml").write_text(SUITE.format(env=ENV, steps=400))
    return ["sweep", "--suite", room / "tiny.toml", "--seeds", "2", "--workers", "1", "--no-random-scores"]


def _kill(parent: subprocess.Popen[str], fault: str) -> None:
    """A node takes the parent and its workers with it, all at once."""
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    workers = [int(child) for child in children.read_text().split()] if children.exists() else []
    if fault == "node killed" and parent.poll() is None:
        os.kill(parent.pid, signal.SIGSTOP)  # or it would start the next worker in between
    for process in ([] if fault == "parent killed" else workers) + ([] if fault == "worker killed" else [parent.pid]):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended
            continue


def _results(out: Path) -> dict[str, bytes]:
    runs = {str(path.parent.relative_to(out)): path.parent for path in sorted(out.rglob("config.json"))}
    return {f"{name}/{file}": content for name, folder in runs.items() for file, content in files_of(folder).items()}
