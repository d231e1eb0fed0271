"""Weights & Biases: one run there for one run folder, with its files in `wandb/` below it.

Where to log in, and whether at all, is W&B's own business: `wandb login`, or WANDB_MODE=offline and later
`wandb sync`. The project is WANDB_PROJECT, or implicitq.
"""

from __future__ import annotations

import os

import wandb

from implicitq.trackers import About, own_folder


class Sink:
    def begin(self, about: About) -> None:
        """Goes on with the run of this id if the server has it; offline, every session keeps the whole curve."""
        for name in ("wandb", ".wandb"):  # W&B takes the second one if it is there
            own_folder(about, name)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "implicitq"),
            id=about.id,
            name=about.title,
            dir=about.folder,
            config={**about.config, "versions": about.versions},
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._known = self._run.step  # the server has what is before this step

    def put(self, step: int, values: dict[str, float], when: float) -> None:
        if step >= self._known:
            self._run.log(values, step=step)

    def flush(self) -> None:
        pass  # W&B sends when it wants to

    def end(self) -> None:
        self._run.finish()
