"""Faults from outside of a run: simulators that misbehave, disks that are full or gone, sweeps that lose processes."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import stat
import time
from pathlib import Path

from shared import ENV, Ended, Tally, differing, end, files_of, go_on, run, scratch, start, train_words
from simulators import FAULTS

_SUITE = """tasks = ["{env}"]
algorithms = ["iq"]
[settings]
steps = {steps}
hidden = [8]
min_replay = 20
batch_size = 8
replay_size = 1000
bins = 3
eval_every = 40
eval_episodes = 1
checkpoint_every = 40
log_every = 20
"""


def simulators(seeds: range) -> bool:
    """Each fault, in one process and in workers: a sentence that names it, never a traceback or a hang."""
    tally = Tally("simulators", "train")
    cases = [(fault, how) for fault in FAULTS for how in ("sync", "async")]
    for seed in seeds:
        fault, how = cases[seed % len(cases)]
        if (fault, how) in (("dies", "sync"), ("hangs", "sync")):
            continue  # within our own process: nobody is left to tell of it
        more = ["--num-envs", 2, "--vectorization", how]
        if fault == "hangs":
            more += ["--env-timeout", 5]
        with scratch() as room:
            env = f"simulators:{fault.title()}-v0"
            done = run(*train_words("iq", room / "run", *more, env=env), seconds=120)
            outcome = done.outcome
            if fault == "close" and outcome in ("done", "fallen back"):
                outcome = "harmless"
            tally.add("SILENT" if outcome == "done" else outcome, seed, f"{fault}, {how}", done)
    return tally.write()


def disk(seeds: range) -> bool:
    """A limit to the size of files stands for a full disk; then the folder read-only, or gone while the run goes on."""
    tally = Tally("disk", "train, resume")
    whole: dict[str, bytes] = {}
    for seed in seeds:
        chance = random.Random(seed)
        with scratch() as room:
            if not whole:
                run(*train_words("iq", room / "whole"))
                whole = files_of(room / "whole")
            folder = room / "run"
            words = train_words("iq", folder)
            fault = ("full", "read-only", "vanished")[seed % 3]
            if fault == "full":
                most = chance.randrange(1, max(map(len, whole.values())))
                done = run(*words, limits={resource.RLIMIT_FSIZE: most})
                about = f"no file beyond {most} bytes"
            else:
                done, about = _taken_away(folder, words, fault, chance), fault
            outcome = done.outcome
            if outcome in ("detected", "done", "fallen back") and fault != "vanished":
                again = run(*go_on(folder, words))
                apart = differing(whole, files_of(folder))
                good = again.code == 0 or "is finished" in again.err
                outcome = "identical" if good and not apart else f"LOST OR DIFFERENT {again.err.strip()[-200:]} {apart}"
            elif outcome == "done" and not folder.exists():
                outcome = "SILENT"
            tally.add(outcome, seed, about, done)
    return tally.write()


def _taken_away(folder: Path, words: list[str], fault: str, chance: random.Random) -> Ended:
    process = start(*words)
    while process.poll() is None and not list(folder.glob("checkpoints/*.json")):
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.3))
    if fault == "vanished":
        shutil.rmtree(folder, ignore_errors=True)
        return end(process)
    if os.geteuid() == 0:  # whom no rights stop: let folders be files instead
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        (folder / "checkpoints").write_text("")
        done = end(process)
        (folder / "checkpoints").unlink(missing_ok=True)
        shutil.rmtree(folder)  # nothing to go on from: the same command starts again
        return done
    folders = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    for each in folders:
        each.chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = end(process)
    for each in folders:
        each.chmod(stat.S_IRWXU)
    return done


def sweeps(seeds: range) -> bool:
    """The parent or a worker killed, or a second sweep in the same folder; then the same command to the end."""
    tally = Tally("sweeps", "sweep")
    whole: dict[str, bytes] = {}
    for seed in seeds:
        chance = random.Random(seed)
        fault = ("parent", "worker", "two at once")[seed % 3]
        with scratch() as room:
            (room / "tiny.toml").write_text(_SUITE.format(env=ENV, steps=400))
            words = ["sweep", "--suite", room / "tiny.toml", "--seeds", "2", "--workers", "1", "--no-random-scores"]
            if not whole:
                run(*words, "--out", room / "whole")
                whole = _results(room / "whole")
            out = room / "sweep"
            first = start(*words, "--out", out)
            while first.poll() is None and not list(out.glob("*/*/*/checkpoints/*.json")):
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 1))
            if fault == "two at once":
                second = run(*words, "--out", out)
                if "another sweep is running" not in second.err and first.poll() is None:
                    tally.add("NO SENTENCE", seed, fault, second)
            else:
                _kill(first.pid, out, fault)
            ended = end(first)
            again = run(*words, "--out", out) if ended.code else ended
            apart = differing(whole, _results(out))
            bad = again.outcome if again.code else "DIFFERENT"
            tally.add("identical" if again.code == 0 and not apart else bad, seed, f"{fault}, {apart}", again)
    return tally.write()


def _kill(parent: int, out: Path, fault: str) -> None:
    if fault == "parent":
        os.kill(parent, signal.SIGKILL)
        return
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)


def _results(out: Path) -> dict[str, bytes]:
    runs = {str(path.parent.relative_to(out)): path.parent for path in sorted(out.rglob("config.json"))}
    return {f"{name}/{file}": content for name, folder in runs.items() for file, content in files_of(folder).items()}
