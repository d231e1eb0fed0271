"""One MDP put through the whole theory: both theorems, averaging of errors, limits, the fixed point; and its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from implicitq.theory.bounds import Equivalence, ErrorBound, policy_gap, theorem_1, theorem_2, value_bound
from implicitq.theory.errors import GaussianNoise
from implicitq.theory.mdp import FiniteMDP, check_alpha, check_count, check_number, check_temperature
from implicitq.theory.schemes import advantage_learning, iq_dp, value_iteration
from implicitq.theory.solve import optimum

LIMIT_TEMPERATURES = tuple(10.0**-exponent for exponent in range(7))

Verdict = Literal["holds", "fails", "measured", "not reached"]


class Row(NamedTuple):
    """One line of the table of a study: a quantity, its value, what to hold it against, and how that ends."""

    mdp: str
    part: str
    quantity: str
    value: float
    reference: float | None
    meaning: str  # of the reference
    verdict: Verdict
    sentence: str  # for a reader without the paper


@dataclass(frozen=True)
class StudyPlan:
    """What to run on an MDP."""

    alpha: float = 0.9
    temperature: float = 1.0  # tau
    iterations: int = 300
    noise: float = 0.1  # standard deviation of the injected errors, in the unit of rewards
    seeds: int = 10

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_temperature(self.temperature)
        check_count("iterations", self.iterations, least=2)
        check_number("noise", self.noise, "a finite number >= 0", lambda x: x >= 0)
        check_count("seeds", self.seeds, least=1)

    @property
    def bound_seeds(self) -> int:
        """Every policy of the record is evaluated by a linear solve for Theorem 2, so a few seeds must do."""
        return min(self.seeds, 3)

    def quick(self) -> StudyPlan:
        """A small version that takes a few seconds."""
        return replace(self, iterations=min(self.iterations, 60), seeds=min(self.seeds, 4))


@dataclass(frozen=True, eq=False)
class Averaging:
    """Mean gap over seeds at recorded iterations, per scheme, under i.i.d. zero-mean noise."""

    iterations: np.ndarray  # [K]
    gaps: dict[str, np.ndarray]  # [K, B] each

    def crossover(self, winner: str, loser: str) -> int | None:
        """The first recorded k from which on `winner` is never behind in the mean, and ahead once."""
        lead = self.gaps[loser].mean(1) - self.gaps[winner].mean(1)
        behind = np.flatnonzero(lead < 0)
        first = behind[-1] + 1 if behind.size else 0
        return int(self.iterations[first]) if (lead[first:] > 1e-9).any() else None


@dataclass(frozen=True, eq=False)
class Limits:
    """max |V - V_limit| over all iterations, as the temperature goes to zero."""

    temperatures: np.ndarray  # [T]
    to_value_iteration: np.ndarray  # [T] alpha = 0
    to_advantage_learning: np.ndarray  # [T] the plan's alpha
    fixed_point: np.ndarray  # [K + 1] |V_k - V_*| at the plan's alpha and temperature, regularised optimum


@dataclass(frozen=True, eq=False)
class Study:
    name: str
    mdp: FiniteMDP
    plan: StudyPlan
    equivalence: Equivalence
    bounds: dict[float, ErrorBound]  # by alpha
    averaging: Averaging
    limits: Limits


PARTS = 4  # how often `study` reports


def study(name: str, mdp: FiniteMDP, plan: StudyPlan, *, report: Callable[[str], None] = lambda text: None) -> Study:
    """Runs everything on one MDP; `report` is called with the name of each part before it starts."""
    report(f"{name}: Theorem 1")
    noise = GaussianNoise(plan.noise)
    equivalence = theorem_1(
        mdp, alpha=plan.alpha, temperature=plan.temperature, iterations=plan.iterations, errors=noise
    )
    report(f"{name}: Theorem 2")
    bounds = {
        alpha: theorem_2(
            mdp,
            iq_dp(
                mdp,
                alpha=alpha,
                temperature=plan.temperature,
                iterations=plan.iterations,
                errors=noise,
                seeds=plan.bound_seeds,
            ),
        )
        for alpha in sorted({plan.alpha, 1.0})
    }
    report(f"{name}: averaging of errors")
    averaging = averaging_of(mdp, plan)
    report(f"{name}: limits")
    return Study(name, mdp, plan, equivalence, bounds, averaging, limits_of(mdp, plan))


def averaging_of(mdp: FiniteMDP, plan: StudyPlan) -> Averaging:
    """Gaps of IQ-DP at several alpha and of value iteration under the same noise.

    Each gap is taken in the MDP that the scheme optimises: regularised at (1 - alpha) temperature, plain for
    value iteration and alpha = 1.
    """
    iterations = 10 * plan.iterations
    rows = np.unique(np.geomspace(1, iterations, 25).astype(int))
    settings = {
        "iterations": iterations,
        "errors": GaussianNoise(plan.noise),
        "seeds": plan.seeds,
        "keep": rows.tolist(),
    }
    gaps = {"value iteration": policy_gap(mdp, value_iteration(mdp, **settings).log_policies)}
    for alpha in sorted({0.0, plan.alpha, 0.99, 1.0}):
        trace = iq_dp(mdp, alpha=alpha, temperature=plan.temperature, **settings)
        gaps[f"IQ-DP, alpha = {alpha:g}"] = policy_gap(
            mdp, trace.log_policies, temperature=(1.0 - alpha) * plan.temperature
        )
    return Averaging(rows, gaps)


def limits_of(mdp: FiniteMDP, plan: StudyPlan) -> Limits:
    """Distances to value iteration (alpha = 0), to advantage learning, and to the regularised optimum."""
    plain = value_iteration(mdp, iterations=plan.iterations).values
    advantage = advantage_learning(mdp, alpha=plan.alpha, iterations=plan.iterations).values

    def distance(alpha: float, temperature: float, limit: np.ndarray) -> float:
        trace = iq_dp(mdp, alpha=alpha, temperature=temperature, iterations=plan.iterations)
        return float(np.abs(trace.values - limit).max())

    goal = optimum(mdp, (1.0 - plan.alpha) * plan.temperature).value
    trace = iq_dp(mdp, alpha=plan.alpha, temperature=plan.temperature, iterations=plan.iterations)
    return Limits(
        np.array(LIMIT_TEMPERATURES),
        np.array([distance(0.0, temperature, plain) for temperature in LIMIT_TEMPERATURES]),
        np.array([distance(plan.alpha, temperature, advantage) for temperature in LIMIT_TEMPERATURES]),
        np.abs(trace.values - goal).max(axis=1),
    )


def checked(mdp: str, part: str, quantity: str, value: float, most: float, sentence: str) -> Row:
    """A value that theory keeps at or below `most`."""
    return Row(mdp, part, quantity, value, most, "at most", "holds" if value <= most else "fails", sentence)


def measured(mdp: str, part: str, quantity: str, value: float, sentence: str, reference: float | None = None) -> Row:
    """A value that theory says nothing exact about; `reference` stands beside it. NaN is what was not reached."""
    reached = value == value  # NaN differs from itself
    meaning = "" if reference is None else "the bound's"
    return Row(mdp, part, quantity, value, reference, meaning, "measured" if reached else "not reached", sentence)


def table(result: Study) -> list[Row]:
    """The numbers of a study worth a line."""
    return [*_equivalence_rows(result), *_bound_rows(result), *_noise_rows(result), *_limit_rows(result)]


def _equivalence_rows(result: Study) -> list[Row]:
    sides = result.equivalence
    allowance = float(sides.allowance.max())
    return [
        checked(
            result.name,
            "Theorem 1",
            f"largest difference of {what}",
            float(difference.max()),
            allowance,
            f"IQ-DP and mirror descent, computed in different ways under the same noise, have the same {what} at all "
            f"{result.plan.iterations} iterations, up to rounding.",
        )
        for what, difference in (
            ("policies", sides.policy_difference),
            ("values", sides.value_difference),
            ("Q-values", sides.q_difference),
        )
    ]


def _bound_rows(result: Study) -> list[Row]:
    rows = []
    for alpha, bound in result.bounds.items():
        worst = float((bound.gap / (bound.bound + _rounding(result.mdp))).max())
        sentence = (
            f"Where it came closest, the policy lost {100 * worst:.2g} % of what the theorem allows: the bound covers "
            "the worst MDP and the worst errors of this size."
        )
        rows.append(checked(result.name, "Theorem 2", f"largest gap / bound, alpha = {alpha:g}", worst, 1.0, sentence))
    return rows


def _noise_rows(result: Study) -> list[Row]:
    name, averaging = result.name, result.averaging
    last = int(averaging.iterations[-1])
    rows = []
    for scheme, gap in averaging.gaps.items():
        floor = "averages it out" if scheme.endswith("alpha = 1") else "is left with an error that does not fade"
        sentence = f"What its policy still loses after {last} iterations of noise; in theory it {floor}."
        if result.plan.noise == 0:
            sentence = f"What its policy still loses after {last} iterations without noise."
        rows.append(measured(name, "Noise", f"final gap, {scheme}", float(gap[-1].mean()), sentence))
    crossover = averaging.crossover("IQ-DP, alpha = 1", "value iteration")
    if crossover is None:
        value = float("nan")
        sentence = f"A dash: up to iteration {last}, alpha = 1 was not ahead of value iteration for good."
    else:
        value = float(crossover)
        sentence = "From there on, averaging all errors (alpha = 1) is never behind value iteration."
    return [*rows, measured(name, "Noise", "alpha = 1 ahead from iteration", value, sentence)]


def _rounding(mdp: FiniteMDP) -> float:
    """How far values may be apart by rounding alone."""
    return 1e-12 * max(1.0, mdp.reward_bound / (1.0 - mdp.discount))


def _limit_rows(result: Study) -> list[Row]:
    name, limits, plan, mdp = result.name, result.limits, result.plan, result.mdp
    first, last = limits.temperatures[0], limits.temperatures[-1]
    rounding = _rounding(mdp)
    soft = last * float(np.log(mdp.actions)) / (1.0 - mdp.discount)
    rows = [
        checked(
            name,
            "Limits",
            f"to value iteration, temperature {last:g}",
            float(limits.to_value_iteration[-1]),
            soft + rounding,
            "With alpha = 0 and next to no temperature, IQ-DP is value iteration; at most temperature ln(actions) / "
            "(1 - discount) lies between them.",
        ),
        checked(
            name,
            "Limits",
            f"to advantage learning, temperature {last:g}",
            float(limits.to_advantage_learning[-1]),
            float(limits.to_advantage_learning[0]) / 1_000 + rounding,
            f"With alpha = {plan.alpha:g} it is advantage learning. The distance vanishes with the temperature: asked "
            f"for is a thousandth of that at temperature {first:g}.",
        ),
    ]
    quantity, distance = f"to the optimum, iteration {plan.iterations}", float(limits.fixed_point[-1])
    if plan.alpha == 1:
        sentence = (
            "With alpha = 1 the values themselves need not converge, only the policies; no bound is held against it."
        )
        return [*rows, measured(name, "Limits", quantity, distance, sentence)]
    bound = value_bound(mdp, alpha=plan.alpha, temperature=plan.temperature, iterations=plan.iterations)[-1]
    sentence = (
        f"Without noise, values converge to the optimum regularised at {(1 - plan.alpha) * plan.temperature:.3g}; the "
        "bound shrinks geometrically, as fast as the discount and alpha let it."
    )
    return [*rows, checked(name, "Limits", quantity, distance, float(bound) + rounding, sentence)]
