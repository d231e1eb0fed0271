"""TensorBoard: event files in `tensorboard/` below the run folder. `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

import json
import stat
import time

# Generated at import, so that no checker sees them.
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.plugins.text import summary_v2 as text
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from implicitq.trackers import About, own_folder

FOLDER = "tensorboard"


class Sink:
    def begin(self, about: About) -> None:
        """A fresh event file takes the place of those of earlier sessions, whose points follow once more."""
        folder = own_folder(about, FOLDER)
        folder.mkdir(exist_ok=True)
        for path in folder.glob("events.out.tfevents.*"):
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
        self._writer = EventFileWriter(str(folder))
        start = SessionLog(status=SessionLog.START)
        self._write(0, time.time(), session_log=start)  # a TensorBoard that is open forgets what it has read
        plain = {name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
                 for name, value in about.config.items()}  # fmt: skip
        self._write(0, time.time(), summary=hparams.hparams_pb(plain, trial_id=about.id))
        for name, told in (("config", about.config), ("versions", about.versions)):
            rows = "\n".join(f"| {key} | {json.dumps(value)} |" for key, value in told.items())
            self._write(0, time.time(), summary=text.text_pb(name, f"{about.title}\n\n| | |\n|---|---|\n{rows}"))

    def put(self, step: int, values: dict[str, float], when: float) -> None:
        summary = Summary()
        for name, value in values.items():
            summary.value.add(tag=name, simple_value=value)
        self._write(step, when, summary=summary)

    def flush(self) -> None:
        self._writer.flush()

    def end(self) -> None:
        self._writer.close()

    def _write(self, step: int, when: float, **content) -> None:
        self._writer.add_event(Event(step=step, wall_time=when, **content))
