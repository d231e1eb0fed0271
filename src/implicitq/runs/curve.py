"""Pictures of a run."""

from __future__ import annotations

import io

import numpy as np

from implicitq.types import Evaluation


def learning_curve(title: str, evaluations: list[Evaluation]) -> bytes:
    """A PNG: mean return of every evaluation against environment steps, with a band of one standard deviation."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = np.array([e.step for e in evaluations])
    means = np.array([e.mean for e in evaluations])
    spread = np.array([e.std for e in evaluations])
    axes.fill_between(steps, means - spread, means + spread, alpha=0.2, linewidth=0, label="± 1 std over episodes")
    axes.plot(steps, means, marker="o", markersize=3, label=f"mean of {len(evaluations[0].returns)} episodes")
    axes.set_title(title, parse_math=False)  # the name of an environment may have any $
    axes.set(xlabel="environment steps", ylabel="undiscounted return (deterministic policy)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
