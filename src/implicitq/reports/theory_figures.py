"""The figures of a study. Matplotlib is imported when a figure is drawn, never before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from implicitq.theory.complexity import PREDICTED_ACCURACY_SLOPE, PREDICTED_HORIZON_SLOPE, Complexity
from implicitq.theory.solve import optimum
from implicitq.theory.study import Study

# Okabe and Ito's palette: distinguishable without colour vision
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"
FLOOR = 1e-17  # zero differences are drawn here on logarithmic axes
_LABELLED = 8  # actions with a number of their own
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


def draw_parametrization(result: Study) -> Any:
    """Fig. 1 of the paper: from a policy and a value to an implicit Q-value, with the exact numbers of one state."""
    temperature = (1.0 - result.plan.alpha) * result.plan.temperature or result.plan.temperature
    best = optimum(result.mdp, temperature)
    state = _telling_state(best.policy)
    value, policy, q = float(best.value[state]), best.policy[state], best.q[state]
    figure, (left, middle, right) = _canvas(3)
    figure.set_size_inches(12.4, 4.2)
    _draw_networks(left)
    actions = np.arange(len(policy))
    middle.axhline(value, color=ORANGE, linewidth=2)
    middle.text(-0.55, value, f"V = {value:.3f}", va="bottom", ha="left", color=RED, fontsize=9)
    middle.vlines(actions, q, value, color=BLUE, linewidth=5, alpha=0.45)
    middle.plot(actions, q, "o", color=GREEN, markersize=7)
    for action in actions[:_LABELLED]:
        drop = temperature * np.log(policy[action])
        middle.annotate(
            f"{drop:+.3f}", (action, q[action]), xytext=(8, -4), textcoords="offset points", fontsize=8, color=BLUE
        )
    middle.set(xlabel="action a", ylabel="unit of returns", xticks=actions, xlim=(-0.6, len(policy) - 0.2))
    middle.margins(y=0.12)
    middle.set_title("Q (dots) = V (line) + temperature ln pi (bars)", fontsize=11)
    right.bar(actions, policy, color=BLUE, alpha=0.45, width=0.5, label="policy pi(a|s)")
    back = np.exp((q - q.max()) / temperature)
    right.plot(actions, back / back.sum(), "o", color=GREEN, markersize=7, label="softmax of Q / temperature")
    right.set(xlabel="action a", xticks=actions, ylim=(0, 1.05 * max(1.0, float(policy.max()))))
    right.set_title("and back again, exactly", fontsize=11)
    right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    figure.suptitle(
        f"An implicit Q-value: state {state} of {result.name} at its optimum, regularised at temperature "
        f"{temperature:.3g}",
        fontsize=12,
    )
    return figure


def _telling_state(policy: np.ndarray) -> int:
    """The state [S] whose policy [S, A] is nearest to half-way between certain and uniform."""
    entropy = -(policy * np.log(np.maximum(policy, 1e-300))).sum(axis=1)
    return int(np.abs(entropy - 0.5 * np.log(policy.shape[1])).argmin())


def _draw_networks(axis: Any) -> None:
    """The state goes into both networks; their outputs, one of them scaled, add up to Q."""
    axis.set(xlim=(0, 10), ylim=(0, 10))
    axis.axis("off")
    boxes = {
        "state s": (1.2, 5.0, "#eeeeee"),
        "policy network\nln pi(a|s)": (5.0, 7.6, "#cfe3f0"),
        "value network\nV(s)": (5.0, 2.4, "#fbe6c4"),
        "Q(s, a)": (8.8, 5.0, "#cdeadf"),
    }
    for text, (x, y, colour) in boxes.items():
        look = {"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": GREY}
        axis.text(x, y, text, ha="center", va="center", fontsize=10, bbox=look, zorder=3)
    arrow = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.4}
    for start, end in (
        ((2.0, 5.5), (3.4, 7.1)),
        ((2.0, 4.5), (3.4, 2.9)),
        ((6.6, 7.1), (8.1, 5.7)),
        ((6.6, 2.9), (8.1, 4.3)),
    ):
        axis.annotate("", end, start, arrowprops=arrow)
    axis.text(7.8, 6.9, "times\ntemperature", fontsize=9, ha="left", va="center", color=GREY)
    axis.text(7.8, 3.1, "plus", fontsize=9, ha="left", va="center", color=GREY)
    axis.set_title("Two networks, and no third for Q", fontsize=11)


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
    figure.suptitle(
        f"Theorem 2 on {result.name}: temperature {result.plan.temperature:g}, noise {result.plan.noise:g}",
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
        f"Zero-mean noise {result.plan.noise:g} on {result.name}\n"
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
