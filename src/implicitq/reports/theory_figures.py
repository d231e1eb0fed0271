"""The figures of a study. Matplotlib is imported when a figure is drawn, never before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from implicitq.theory.complexity import PREDICTED_ACCURACY_SLOPE, PREDICTED_HORIZON_SLOPE, Complexity
from implicitq.theory.study import Study

# Okabe and Ito's palette: distinguishable without colour vision
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"
FLOOR = 1e-17  # zero differences are drawn here on logarithmic axes
GAP_FLOOR = 1e-6  # and so are policies that are exactly optimal


def _canvas(panels: int = 2) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * panels, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for axis in axes:
        axis.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, folder: Path, name: str) -> Path:
    """Writes PNG and SVG; returns the PNG's path. Both are the same bytes for the same numbers."""
    from matplotlib import rc_context

    path = folder / f"{name}.png"
    with rc_context({"svg.hashsalt": "implicitq", "svg.fonttype": "path"}):
        figure.savefig(path, dpi=110, metadata={"Software": None})
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
    return path


def draw_equivalence(result: Study) -> Any:
    """Theorem 1: one state's policy from both schemes, and their differences at every iteration."""
    sides, plan = result.equivalence, result.plan
    figure, (left, right) = _canvas()
    shown = min(len(sides.iq.values), 41)
    # the state whose policy takes longest to settle has most to show
    movement = np.abs(np.diff(sides.iq.policies[:shown], axis=0)).sum(axis=(0, 2))
    state = int(movement.argmax())
    iterations = np.arange(shown)
    for action in range(min(result.mdp.actions, 4)):
        colour = (BLUE, ORANGE, GREEN, RED)[action]
        left.plot(iterations, sides.iq.policies[:shown, state, action], color=colour, label=f"action {action}")
        left.plot(
            iterations,
            sides.md.policies[:shown, state, action],
            "o",
            color=colour,
            markersize=3.5,
            mfc="white",
        )
    left.plot([], [], color=GREY, label="IQ-DP (line)")
    left.plot([], [], "o", color=GREY, mfc="white", markersize=3.5, label="MD-VI (circles)")
    left.set(xlabel="iteration k", ylabel=f"probability in state {state}", ylim=(-0.03, 1.03))
    left.set_title("Policies side by side, same noise", fontsize=11)
    left.legend(fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    k = np.arange(len(sides.allowance))
    for name, values, colour in [
        ("policies", sides.policy_difference, BLUE),
        ("values", sides.value_difference, ORANGE),
        ("Q of App. A.4", sides.q_difference, GREEN),
    ]:
        right.semilogy(k, np.maximum(values, FLOOR), color=colour, linewidth=1, label=name)
    right.semilogy(k, sides.allowance, "--", color=GREY, label="$10^{-10}$ + forced rounding")
    right.set(xlabel="iteration k", ylabel="largest absolute difference", ylim=(FLOOR / 2, None))
    right.set_title("IQ-DP minus MD-VI", fontsize=11)
    right.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    figure.suptitle(
        f"Theorem 1 on {result.name}: alpha {plan.alpha:g}, temperature {plan.temperature:g}, "
        f"noise {plan.noise:g} per step",
        fontsize=12,
    )
    return figure


def draw_bounds(result: Study) -> Any:
    """Theorem 2: the exact gap beneath the bound, for each alpha."""
    figure, axes = _canvas(len(result.bounds))
    for axis, (alpha, bound) in zip(axes, result.bounds.items(), strict=True):
        k = bound.iterations
        axis.loglog(k, bound.gap.mean(-1), color=BLUE, label=r"gap $\|Q_* - Q_\pi\|_\infty$, exact")
        axis.loglog(k, bound.bound.mean(-1), color=RED, label="bound = main term + remainder")
        axis.loglog(k, np.maximum(bound.main.mean(-1), FLOOR), "--", color=ORANGE, linewidth=1, label="main term")
        remainder = bound.remainder.mean(-1)
        axis.loglog(k[remainder > 0], remainder[remainder > 0], ":", color=GREY, label="remainder")
        low = max(1e-6, float(bound.gap.mean(-1).min()) / 3)
        axis.set(xlabel="iteration k", ylabel="unit of returns", ylim=(low, None))
        which = "KL alone: norm of the average error" if alpha == 1 else "norms of moving averages of errors"
        axis.set_title(f"alpha = {alpha:g} ({which})", fontsize=11)
        axis.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    seeds = next(iter(result.bounds.values())).gap.shape[-1]
    figure.suptitle(
        f"Theorem 2 on {result.name}: temperature {result.plan.temperature:g}, noise {result.plan.noise:g}, "
        f"mean of {seeds} seeds",
        fontsize=12,
    )
    return figure


def draw_averaging(result: Study) -> Any:
    """Errors average out at alpha = 1 and leave a floor at alpha = 0."""
    figure, (axis,) = _canvas(1)
    figure.set_size_inches(7.4, 4.4)
    averaging = result.averaging
    colours = [GREY, RED, ORANGE, GREEN, BLUE]
    for (name, gap), colour in zip(averaging.gaps.items(), colours, strict=False):
        mean = np.maximum(gap.mean(1), GAP_FLOOR)
        spread = gap.std(1) / np.sqrt(gap.shape[1])
        axis.loglog(averaging.iterations, mean, color=colour, label=name)
        low = np.maximum(mean - 2 * spread, np.maximum(mean / 5, GAP_FLOOR))
        axis.fill_between(averaging.iterations, low, mean + 2 * spread, color=colour, alpha=0.15, linewidth=0)
    crossover = averaging.crossover("IQ-DP, alpha = 1", "value iteration")
    if crossover is not None:
        axis.axvline(crossover, color=GREY, linestyle=":", linewidth=1)
        axis.annotate(
            f"alpha = 1 ahead of value\niteration from k = {crossover} on",
            (crossover, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(5, 0),
            textcoords="offset points",
            fontsize=8,
            color=GREY,
        )
    axis.set(xlabel="iteration k", ylabel=r"gap $\|Q_* - Q_{\pi}\|_\infty$ (unit of returns)")
    axis.set_title(
        f"Zero-mean noise {result.plan.noise:g} on {result.name}, {result.plan.seeds} seeds\n"
        f"gap in the MDP each scheme optimises, at least {GAP_FLOOR:g}; band: 2 standard errors",
        fontsize=11,
    )
    axis.legend(fontsize=8)
    return figure


def draw_limits(result: Study) -> Any:
    """Temperature to zero: value iteration, advantage learning; many iterations: the regularised optimum."""
    figure, (left, right) = _canvas()
    limits, plan = result.limits, result.plan
    left.loglog(
        limits.temperatures,
        np.maximum(limits.to_value_iteration, FLOOR),
        "o-",
        color=BLUE,
        label="alpha = 0, to value iteration",
    )
    left.loglog(
        limits.temperatures,
        np.maximum(limits.to_advantage_learning, FLOOR),
        "s-",
        color=ORANGE,
        label=f"alpha = {plan.alpha:g}, to advantage learning",
    )
    left.set(xlabel="temperature", ylabel=r"$\max_k \|V_k - V_k^{\mathrm{limit}}\|_\infty$")
    left.set_title("Temperature to zero (lowest points: no difference)", fontsize=11)
    left.legend(fontsize=8)
    right.semilogy(np.maximum(limits.fixed_point, FLOOR), color=GREEN)
    right.set(xlabel="iteration k", ylabel=r"$\|V_k - V_*\|_\infty$")
    goal = (1 - plan.alpha) * plan.temperature
    right.set_title(f"Many iterations: the optimum regularised at {goal:.3g}", fontsize=11)
    figure.suptitle(f"Limits of IQ-DP on {result.name}", fontsize=12)
    return figure


def draw_complexity(found: Complexity) -> Any:
    """Samples to an epsilon-optimal policy: measured slopes beside the predicted one."""
    figure, (left, right) = _canvas()
    slopes = found.slopes()
    styles = [(BLUE, "o", "-"), (ORANGE, "s", "--"), (RED, "^", "-"), (GREEN, "v", "-")]
    panels = [
        (left, 1.0 / found.epsilons, found.by_epsilon, 0, PREDICTED_ACCURACY_SLOPE, "1 / epsilon"),
        (right, found.horizons, found.by_horizon, 1, PREDICTED_HORIZON_SLOPE, "1 / (1 - discount)"),
    ]
    for axis, x, samples, which, predicted, label in panels:
        for (name, counts), (colour, marker, line) in zip(samples.items(), styles, strict=True):
            slope = slopes[name][which]
            text = f"{name}: slope {slope:.1f}" if np.isfinite(slope) else f"{name}: budget too small"
            size = 9 if marker == "s" else 5  # the open squares surround the points they coincide with
            face = "none" if marker == "s" else colour
            axis.loglog(x, counts, marker=marker, linestyle=line, color=colour, markersize=size, mfc=face, label=text)
        reference = next(iter(samples.values()))
        anchor = reference[np.isfinite(reference)]
        start = 0.4 * anchor[0] if anchor.size else 1.0
        axis.loglog(x, start * (x / x[0]) ** predicted, ":", color=GREY, label=f"upper bound's slope: {predicted:.0f}")
        axis.set(xlabel=label, ylabel="samples per state and action")
        axis.set_xticks(x, [f"{value:.2g}" for value in x], fontsize=8)
        axis.set_xticks([], minor=True)
        axis.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    left.set_title(f"Accuracy, at discount {found.discount:g}", fontsize=11)
    right.set_title(f"Horizon, at epsilon {found.epsilon:g}", fontsize=11)
    figure.suptitle("Samples to an epsilon-optimal policy (ladder MDPs, generative model)", fontsize=12)
    return figure
