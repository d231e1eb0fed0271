"""The pictures of index.md, adaptive.md, hyperparameters.md and reproduction.md, from the tables under benchmarks/.

python docs/figures/make.py [FOLDER]
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS / "peers"))

from costs import costs  # noqa: E402

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
STYLE = {"font.size": 9, "axes.titlesize": 10, "axes.grid": True, "grid.alpha": 0.25, "legend.frameon": False}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 1.7}

Curves = dict[tuple[str, str], np.ndarray]  # (line, task) -> [seeds, points]

ONE_NETWORK = "miq-auto"  # the adaptive agent with one network, of which there are longer runs and an ablation
WITHOUT = {
    "target_update=0.005 batch_norm=False": "target networks instead of\nbatch normalisation",
    "n_step=1": "one step instead of five",
    "log_policy=probability": "probabilities, no density",
    "temperature=0.01 n_step_target=plain": "temperature fixed at 0.01",
    "batch_size=256": "batches of 256, not 128",
    "alpha=0.9": "KL term, alpha 0.9",
    "actor_average=None": "newest weights, no average",
}
LAMBDAS = {
    " target_update=0.05": "0.05",
    " target_update=0.05 normalize_observations=True": "0.05, normalised observations",
    "": "0.005",
    " normalize_observations=True": "0.005, normalised observations",
}
SHORT_LINES = {
    "iq-auto": "iq-auto",
    "sac": "SAC",
    "sbx-crossq": "CrossQ of SBX",
    "miq target_update=0.05": "M-IQ, target_update 0.05",
}
LONG_LINES = {
    "iq": "IQ",
    "miq": "M-IQ",
    "sac": "SAC",
    "iq learning_rate=0.0003": "IQ, learning rate 3e-4",
    "sac learning_rate=0.0003": "SAC, learning rate 3e-4",
    "iq-auto": "iq-auto",
}
CLAIMS = {  # of the paper -> lines of the table with their colours; those of M-IQ are dashed
    "target value and policy": {
        **{"iq": ("IQ", 0), "miq": ("M-IQ", 0), "pcl": ("PCL: no target value", 1), "trust-pcl": ("Trust-PCL", 1)},
        **{"iq-gaussian": ("IQ, normal policy", 2), "miq-gaussian": ("M-IQ, normal policy", 2)},
    },
    "entropy weight": {
        **{"iq temperature=0.001": ("IQ, 0.001", 1), "miq temperature=0.01": ("M-IQ, 0.001", 1)},
        **{"iq": ("IQ, 0.01", 0), "miq": ("M-IQ, 0.01", 0)},
        **{"iq temperature=0.1": ("IQ, 0.1", 2), "miq temperature=1": ("M-IQ, 0.1", 2)},
    },
    "class of policies": {
        **{"iq": ("factored bins", 0), "iq policy=autoregressive": ("autoregressive bins", 1)},
        **{"iq policy=flow": ("flow", 3), "iq-gaussian": ("normal", 2)},
    },
}


def read(study: str, column: str, file: str = "evaluations.csv") -> Curves:
    """A column of the table for every line, task and seed."""
    rows: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (BENCHMARKS / study / file).open() as table:
        for row in csv.DictReader(table):
            rows[row["algo"], row["env"]][row["seed"]].append(float(row[column]))
    return {key: np.array(list(seeds.values())) for key, seeds in rows.items()}


def curves_of(
    panels: Sequence[tuple[str, str]], lines: Mapping[str, str], size: tuple[float, float], time: bool = False
) -> Figure:
    """A panel for each study and task: means over seeds, with a band of one standard error, against steps or time.

    `lines` are those of the table, with their labels. Time is in what a step of `iq-auto` takes.
    """
    figure = Figure(figsize=size, layout="constrained")
    for axes, (study, task) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        curves = read(study, "mean_return")
        places = read(study, "step")
        for (line, label), colour in zip(lines.items(), COLOURS, strict=False):
            if (line, task) not in curves:
                continue
            values = curves[line, task]
            where = places[line, task].mean(axis=0) / 1000 * (costs()[line.split()[0]] if time else 1)
            mean = values.mean(axis=0)
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
            axes.plot(where, mean, color=colour, label=label)
            axes.fill_between(where, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0)
        title = task.removeprefix("implicitq/")
        axes.set(title=title, xlabel="cost, thousand iq-auto steps" if time else "thousand steps")
    figure.axes[0].set_ylabel("return")
    drawn = {}  # not every line is on every task
    for axes in figure.axes:
        drawn |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(drawn.values(), drawn.keys(), loc="outside upper center", ncols=len(lines))
    return figure


def landing(time: bool = False) -> Figure:
    tasks = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
    return curves_of([("gym-100k", task) for task in tasks], SHORT_LINES, (11, 2.7), time)


def longer() -> Figure:
    """Longer runs: four Gym tasks, and two of Adroit."""
    panels = [("gym-300k", task) for task in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")]
    panels += [("claims", f"implicitq/AdroitHand{task}-v1") for task in ("Door", "Pen")]
    return curves_of(panels, LONG_LINES, (13, 2.9))


def ingredients() -> Figure:
    """The return of `miq-auto` without each of its ingredients, as a share of its own on the same seeds."""
    curves = read("gym-100k", "mean_return")
    tasks = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
    figure = Figure(figsize=(8, 3.9), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(WITHOUT))
    for number, (task, colour) in enumerate(zip(tasks, COLOURS, strict=False)):
        whole = curves[ONE_NETWORK, task][:, -1]
        found = [curves[f"{ONE_NETWORK} {flags}", task][:, -1] for flags in WITHOUT]
        shares = [100 * each.mean() / whole[: len(each)].mean() for each in found]
        axes.barh(places + 0.26 * (number - 1), shares, 0.24, color=colour, label=task)
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_yticks(places, list(WITHOUT.values()))
    axes.invert_yaxis()
    axes.set_xlabel(f"return at 100,000 steps, in per cent of that of {ONE_NETWORK} with the same seeds")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right", ncols=3, bbox_to_anchor=(1, 1))
    return figure


def target_update() -> Figure:
    """Returns and values of IQ and M-IQ with a fast and a slow target, with and without normalised observations."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    tasks, files = ("HalfCheetah-v5", "Hopper-v5"), {"mean_return": "evaluations.csv", "value": "metrics.csv"}
    panels = [(task, column) for task in tasks for column in files]
    for row, algorithm in zip(figure.subplots(2, len(panels)), ("iq", "miq"), strict=True):
        for axes, (task, column) in zip(row, panels, strict=True):
            curves, steps = (read("claims", each, files[column]) for each in (column, "step"))
            for (flags, label), colour in zip(LAMBDAS.items(), COLOURS, strict=False):
                key = (algorithm + flags, task)
                if key in curves:
                    axes.plot(steps[key][0] / 1000, curves[key][0], color=colour, label=label)
            axes.set(title=f"{algorithm}, {task.split('-')[0]}: {'V' if column == 'value' else 'return'}")
            if column == "value":
                axes.set_yscale("symlog", linthresh=100)
    for axes in figure.axes[len(panels) :]:
        axes.set_xlabel("thousand steps")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def claims() -> Figure:
    """Returns of the studies of the paper's claims, a column for each and a row for each task."""
    figure = Figure(figsize=(12, 5.6), layout="constrained")
    curves, steps = (read("claims", each) for each in ("mean_return", "step"))
    for row, task in zip(figure.subplots(2, len(CLAIMS)), ("HalfCheetah-v5", "Hopper-v5"), strict=True):
        for axes, (claim, lines) in zip(row, CLAIMS.items(), strict=True):
            for line, (label, colour) in lines.items():
                if (line, task) in curves:
                    dashes = "--" if label.startswith(("M-IQ", "Trust")) else "-"
                    mean = curves[line, task].mean(axis=0)
                    axes.plot(steps[line, task][0] / 1000, mean, dashes, color=COLOURS[colour], label=label)
            axes.set(title=f"{task.split('-')[0]}: {claim}")
    for axes in figure.axes[: len(CLAIMS)]:
        axes.legend(fontsize=7)
    for axes in figure.axes[len(CLAIMS) :]:
        axes.set_xlabel("thousand steps")
    return figure


def main(folder: Path = HERE) -> None:
    pictures = {
        "landing": landing,
        "processor-time": lambda: landing(time=True),
        "longer": longer,
        "ingredients": ingredients,
        "target-update": target_update,
        "claims": claims,
    }
    for name, draw in pictures.items():
        with rc_context(STYLE):
            draw().savefig(folder / f"{name}.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
