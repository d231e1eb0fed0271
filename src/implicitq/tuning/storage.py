"""What Optuna keeps in the folder of a search, and who works on what.

Its journal in a file is lines of JSON: reading one runs no code. (Only its storage in Redis keeps pickles, which is not
used.) Several processes may work in one folder: a trial belongs to whoever holds the lock of its file, which goes with
the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from implicitq.runs.files import LARGEST_RETURN, lock, read_end, refuse_larger, require_plain
from implicitq.tuning.space import Choice, Space
from implicitq.types import InputError
from implicitq.validation import brief

if TYPE_CHECKING:
    import optuna

JOURNAL = "journal.log"
_NAME = "implicitq"
_LONGEST_LINE = 1 << 20  # bytes, of the journal
_FIRST_TRIALS = 5  # that are never stopped early
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def turn(out: Path) -> Iterator[None]:
    """One process at a time."""
    with open(os.open(out / ".turn", _FLAGS, 0o666), "rb+") as file:
        lock(file.fileno(), wait=True)
        yield


def take(folder: Path, number: int) -> Any:
    """The file that says who works on a trial, open; None if another process has it. It goes with the process."""
    file = open(os.open(folder / f".{number:04d}", _FLAGS, 0o666), "rb+")  # noqa: SIM115
    if lock(file.fileno(), wait=False):
        return file
    file.close()
    return None


def client() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("tune needs a package that is missing; pip install 'implicitq[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(module: Any, out: Path, first_prune: int | None) -> optuna.Study:
    """The study of a folder, made if it is not there; no trial is stopped before the step `first_prune`, or ever."""
    path = out / JOURNAL
    guard = module.storages.journal.JournalFileOpenLock(str(path.absolute()))
    try:
        if path.exists():
            require_plain(path)
            guard.acquire()
            try:
                _mend(path)
            finally:
                guard.release()
        storage = module.storages.JournalStorage(
            module.storages.journal.JournalFileBackend(str(path.absolute()), guard)
        )
        pruners = module.pruners
        pruner = pruners.NopPruner() if first_prune is None else pruners.MedianPruner(_FIRST_TRIALS, first_prune)
        study = module.create_study(
            storage=storage, pruner=pruner, study_name=_NAME, direction="maximize", load_if_exists=True
        )
        _check(study.trials)
        return study
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path} is not a journal of Optuna that can be used: {brief(str(error))}") from None


def _mend(path: Path) -> None:
    """Cut off a last line without its end, which a process that was killed has left."""
    size = path.stat().st_size
    refuse_larger(size)
    end = read_end(path, _LONGEST_LINE)
    if len(end) < size and b"\n" not in end:
        raise ValueError(f"its last line is longer than {_LONGEST_LINE:,} bytes")
    os.truncate(path, size - len(end) + end.rfind(b"\n") + 1)


def _check(trials: Iterable[optuna.trial.FrozenTrial]) -> None:
    """Refuse scores that no search writes, of which Optuna believes anything."""
    for trial in trials:
        scores = trial.values or []
        numbers = [*scores, *trial.intermediate_values.values()]
        good = all(isinstance(each, int | float) and abs(each) <= LARGEST_RETURN for each in numbers)
        if len(scores) > 1 or not good:
            raise ValueError(
                f"trial {trial.number} must have numbers for scores, and one at its end, got {brief(numbers)}"
            )


def distributions(module: Any, space: Space) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, dimension in space.items():
        if isinstance(dimension, Choice):
            found[name] = module.distributions.CategoricalDistribution([category(v) for v in dimension.values])
        elif dimension.whole:
            found[name] = module.distributions.IntDistribution(int(dimension.low), int(dimension.high), dimension.log)
        else:
            found[name] = module.distributions.FloatDistribution(dimension.low, dimension.high, dimension.log)
    return found


def category(value: Any) -> Any:
    return str(list(value)) if isinstance(value, tuple) else value
