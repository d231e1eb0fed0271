"""Samples to an epsilon-optimal policy with a generative model (the remark at the end of App. A.4).

The theory gives upper bounds: O(S A / (epsilon^2 (1 - gamma)^4)) for IQ-DP at alpha = 1 and for Speedy
Q-learning. What is measured here is a slope on one family of MDPs, to be looked at beside the predicted one;
no bound says that it must be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from implicitq.theory.bounds import policy_gap
from implicitq.theory.errors import SampledTransitions
from implicitq.theory.mdp import FiniteMDP, check_count
from implicitq.theory.schemes import iq_dp, q_learning, speedy_q_learning
from implicitq.theory.study import Row, measured
from implicitq.theory.trace import Trace

PREDICTED_ACCURACY_SLOPE = 2.0  # samples ~ (1 / epsilon)^2
PREDICTED_HORIZON_SLOPE = 4.0  # samples ~ (1 / (1 - gamma))^4

SCHEMES: dict[str, Callable[..., Trace]] = {
    "IQ-DP, alpha = 1": lambda mdp, **settings: iq_dp(mdp, alpha=1.0, temperature=0.1, **settings),
    "Speedy Q-learning": speedy_q_learning,
    "Q-learning, rate k^-0.51": lambda mdp, **settings: q_learning(mdp, exponent=0.51, **settings),
    "Q-learning, rate 1/k": lambda mdp, **settings: q_learning(mdp, exponent=1.0, **settings),
}

BOUNDED = ("IQ-DP, alpha = 1", "Speedy Q-learning")  # those that the upper bound is about
_LEAST_POINTS = 3  # of a slope


def ladder(discount: float, losses: Sequence[float] | np.ndarray) -> FiniteMDP:
    """A hard family in the manner of Azar et al. (2013): a two-armed state per loss, and an absorbing end.

    In state i every step pays 1 and the state is kept with probability p (action 0) or p_i (action 1),
    otherwise the end is reached, which pays nothing. p = (4 gamma - 1) / (3 gamma) makes next values as noisy
    as they can be; p_i is such that action 0 for ever is worth losses[i] less than action 1 for ever. Telling
    them apart takes of the order of 1 / losses[i]^2 samples, so losses on many scales show the dependence on
    epsilon in a single run.
    """
    if not 0.25 < discount < 1.0:
        raise ValueError(f"discount of the ladder must lie in (0.25, 1), got {discount!r}.")
    stay = (4.0 * discount - 1.0) / (3.0 * discount)
    value = 1.0 / (1.0 - discount * stay)  # of action 0 for ever: 3 / (4 (1 - gamma))
    levels = len(losses)
    P, r = np.zeros((levels + 1, 2, levels + 1)), np.zeros((levels + 1, 2))
    P[-1, :, -1] = 1.0
    for state, loss in enumerate(losses):
        better = (1.0 - 1.0 / (value + loss)) / discount  # 1 / (1 - gamma p_i) = value + loss
        if not 0 < loss <= value / 3:
            raise ValueError(
                f"loss of state {state} must lie in (0, {value / 3:.4g}] at discount {discount}, got {loss}."
            )
        P[state, :, state] = stay, better
        P[state, :, -1] = 1.0 - stay, 1.0 - better
        r[state] = 1.0
    return FiniteMDP(P, r, discount)


@dataclass(frozen=True, eq=False)
class Curve:
    """The policy's gap max |Q_* - Q_pi| along a run: mean over seeds at each recorded iteration."""

    iterations: np.ndarray  # [K]
    gap: np.ndarray  # [K]

    def first_within(self, epsilon: float) -> float:
        """The first recorded k from which on the mean gap stays <= epsilon; NaN if there is none."""
        above = np.flatnonzero(self.gap > epsilon)
        first = above[-1] + 1 if above.size else 0
        return float(self.iterations[first]) if first < len(self.iterations) else float("nan")


def gap_curve(mdp: FiniteMDP, scheme: Callable[..., Trace], *, iterations: int, seeds: int, points: int = 60) -> Curve:
    """Runs `scheme` with one sample per state, action and iteration; evaluates its policies exactly."""
    iterations = check_count("iterations", iterations, least=1)
    rows = np.unique(np.geomspace(1, iterations, points).astype(int))
    trace = scheme(mdp, iterations=iterations, errors=SampledTransitions(1), seeds=seeds, keep=rows.tolist())
    return Curve(rows, policy_gap(mdp, trace.log_policies).mean(axis=1))


def fitted_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Slope of the least-squares line through the finite (ln x, ln y); NaN with too few of them."""
    good = np.isfinite(y) & (y > 0)
    return float(np.polyfit(np.log(x[good]), np.log(y[good]), 1)[0]) if good.sum() >= _LEAST_POINTS else float("nan")


@dataclass(frozen=True, eq=False)
class Complexity:
    """Samples per (s, a) to reach a gap, per scheme, against 1 / epsilon and against 1 / (1 - gamma)."""

    epsilons: np.ndarray  # [E]
    discount: float  # of the epsilon sweep
    by_epsilon: dict[str, np.ndarray]  # [E] each
    horizons: np.ndarray  # [H] 1 / (1 - gamma)
    epsilon: float  # of the horizon sweep
    by_horizon: dict[str, np.ndarray]  # [H] each
    seeds: int = 0  # of every run

    def slopes(self) -> dict[str, tuple[float, float]]:
        """(slope against 1 / epsilon, slope against 1 / (1 - gamma)) of each scheme."""
        return {
            name: (
                fitted_slope(1.0 / self.epsilons, self.by_epsilon[name]),
                fitted_slope(self.horizons, self.by_horizon[name]),
            )
            for name in self.by_epsilon
        }

    def table(self) -> list[Row]:
        """The fitted slopes, beside those of the upper bound where there is one."""
        rows = []
        for name, (accuracy, horizon) in self.slopes().items():
            for variable, slope, predicted, counts in (
                ("1/epsilon", accuracy, PREDICTED_ACCURACY_SLOPE, self.by_epsilon[name]),
                ("1/(1-discount)", horizon, PREDICTED_HORIZON_SLOPE, self.by_horizon[name]),
            ):
                bound = predicted if name in BOUNDED else None
                sentence = _slope_sentence(slope, bound, counts)
                rows.append(measured("ladder", "Samples", f"slope in {variable}, {name}", slope, sentence, bound))
        return rows


def _slope_sentence(slope: float, bound: float | None, counts: np.ndarray) -> str:
    reached = int(np.isfinite(counts).sum())
    if np.isnan(slope):
        return (
            f"A dash: only {reached} of {len(counts)} goals were reached within the budget of iterations, and a slope "
            f"takes {_LEAST_POINTS}."
        )
    if bound is None:
        return f"Fitted to {reached} of {len(counts)} goals; the paper's bound is not about this scheme."
    if slope <= bound:
        return f"Fitted to {reached} of {len(counts)} goals; the need for samples grows no faster than the bound does."
    return (
        f"Fitted to {reached} of {len(counts)} goals. Steeper than the bound, and no violation of it: a bound limits "
        "how many samples are needed, not how fast that number grows while it is still far below."
    )


@dataclass(frozen=True)
class ComplexityPlan:
    """How much to run; the defaults take about two minutes on one core."""

    discount: float = 0.8  # of the epsilon sweep
    epsilons: tuple[float, ...] = (0.28, 0.24, 0.2, 0.17, 0.14, 0.1, 0.07, 0.05, 0.035)
    horizons: tuple[float, ...] = (3.0, 4.5, 6.5, 10.0, 14.0)  # 1 / (1 - gamma)
    epsilon: float = 0.15  # of the horizon sweep
    iterations: int = 40_000  # at the longest horizon; half as many at short ones
    seeds: int = 20

    @property
    def parts(self) -> int:
        """How often `sample_complexity` reports."""
        return len(SCHEMES) * (1 + len(self.horizons))


FULL_PLAN = ComplexityPlan()
QUICK_PLAN = ComplexityPlan(epsilons=(0.2, 0.16, 0.13, 0.1), horizons=(3.0, 4.0, 5.5), iterations=3_000, seeds=8)


def sample_complexity(
    plan: ComplexityPlan = FULL_PLAN,
    *,
    report: Callable[[str], None] = lambda text: None,
) -> Complexity:
    """Runs every scheme on ladders; `report` is called with the name of each run before it starts."""
    longest = max(plan.horizons)
    by_epsilon: dict[str, np.ndarray] = {}
    by_horizon: dict[str, np.ndarray] = {}
    for name, scheme in SCHEMES.items():
        report(f"{name}, discount {plan.discount:.3g}")
        curve = _ladder_curve(scheme, plan.discount, min(plan.epsilons), plan.iterations, plan.seeds)
        by_epsilon[name] = np.array([curve.first_within(epsilon) for epsilon in plan.epsilons])
        samples = []
        for horizon in plan.horizons:
            discount = 1.0 - 1.0 / horizon
            report(f"{name}, discount {discount:.3g}")
            iterations = max(plan.iterations // 2, int(plan.iterations * (horizon / longest) ** 3))
            curve = _ladder_curve(scheme, discount, plan.epsilon, iterations, plan.seeds)
            samples.append(curve.first_within(plan.epsilon))
        by_horizon[name] = np.array(samples)
    return Complexity(
        np.array(plan.epsilons),
        plan.discount,
        by_epsilon,
        np.array(plan.horizons),
        plan.epsilon,
        by_horizon,
        plan.seeds,
    )


def _ladder_curve(scheme: Callable[..., Trace], discount: float, epsilon: float, iterations: int, seeds: int) -> Curve:
    """The gap on a ladder whose losses reach from 0.6 to just below epsilon."""
    losses = np.geomspace(0.6, 0.8 * epsilon, 20)
    return gap_curve(ladder(discount, losses), scheme, iterations=iterations, seeds=seeds)
