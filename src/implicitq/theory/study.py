"""One MDP put through the whole theory: both theorems, averaging of errors, limits, the fixed point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from implicitq.theory.bounds import Equivalence, ErrorBound, policy_gap, theorem_1, theorem_2
from implicitq.theory.errors import GaussianNoise
from implicitq.theory.mdp import FiniteMDP, check_alpha, check_count, check_number, check_temperature
from implicitq.theory.schemes import advantage_learning, iq_dp, value_iteration
from implicitq.theory.solve import optimum

LIMIT_TEMPERATURES = tuple(10.0**-exponent for exponent in range(7))
BOUND_SEEDS = 3  # every policy of the record is evaluated by a linear solve, so a few seeds must do


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

    def quick(self) -> StudyPlan:
        """A small version that takes a few seconds."""
        return replace(self, iterations=min(self.iterations, 60), seeds=min(self.seeds, 4))


class Row(NamedTuple):
    """One line of the table: a quantity, its value, and what to hold it against."""

    mdp: str
    part: str
    quantity: str
    value: float
    reference: float | None
    meaning: str  # of the reference


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
                seeds=min(plan.seeds, BOUND_SEEDS),
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


def table(result: Study) -> list[Row]:
    """The numbers of a study worth a line."""
    name, sides, limits, averaging = result.name, result.equivalence, result.limits, result.averaging
    allowance = float(sides.allowance.max())
    rows = [
        Row(name, "Theorem 1", "policy difference", float(sides.policy_difference.max()), allowance, "allowed"),
        Row(name, "Theorem 1", "value difference", float(sides.value_difference.max()), allowance, "allowed"),
        Row(name, "Theorem 1", "Q difference (A.4)", float(sides.q_difference.max()), allowance, "allowed"),
    ]
    for alpha, bound in result.bounds.items():
        worst = float((bound.gap / bound.bound).max())
        rows.append(Row(name, "Theorem 2", f"gap / bound, alpha = {alpha:g}", worst, 1.0, "at most"))
    for scheme, gap in averaging.gaps.items():
        rows.append(Row(name, "Noise", f"final gap, {scheme}", float(gap[-1].mean()), None, ""))
    crossover = averaging.crossover("IQ-DP, alpha = 1", "value iteration")
    rows.append(
        Row(
            name,
            "Noise",
            "alpha = 1 ahead from iteration",
            float("nan") if crossover is None else crossover,
            None,
            "",
        )
    )
    last = f"at temperature {limits.temperatures[-1]:g}"
    rows += [
        Row(name, "Limits", f"to value iteration {last}", float(limits.to_value_iteration[-1]), 0.0, "limit"),
        Row(
            name,
            "Limits",
            f"to advantage learning {last}",
            float(limits.to_advantage_learning[-1]),
            0.0,
            "limit",
        ),
        Row(name, "Limits", "to the regularised optimum", float(limits.fixed_point[-1]), 0.0, "limit"),
    ]
    return rows
