"""The theory of implicit Q-values on finite MDPs: IQ-DP, MD-VI, error propagation. NumPy and SciPy in float64."""

from implicitq.theory.bounds import Equivalence, ErrorBound, policy_gap, regularised_q, theorem_1, theorem_2
from implicitq.theory.errors import Adversary, GaussianNoise, GivenErrors, SampledTransitions
from implicitq.theory.library import as_gymnasium, by_name, chain, forest, from_gymnasium, garnet, grid_world
from implicitq.theory.mdp import FiniteMDP
from implicitq.theory.schemes import (
    advantage_learning,
    iq_dp,
    md_vi,
    q_learning,
    soft_value_iteration,
    speedy_q_learning,
    value_iteration,
)
from implicitq.theory.solve import Iteration, Optimum, evaluate, iterate_to_optimum, optimum
from implicitq.theory.trace import Trace

__all__ = [
    "Adversary",
    "Equivalence",
    "ErrorBound",
    "FiniteMDP",
    "GaussianNoise",
    "GivenErrors",
    "Iteration",
    "Optimum",
    "SampledTransitions",
    "Trace",
    "advantage_learning",
    "as_gymnasium",
    "by_name",
    "chain",
    "evaluate",
    "forest",
    "from_gymnasium",
    "garnet",
    "grid_world",
    "iq_dp",
    "iterate_to_optimum",
    "md_vi",
    "optimum",
    "policy_gap",
    "q_learning",
    "regularised_q",
    "soft_value_iteration",
    "speedy_q_learning",
    "theorem_1",
    "theorem_2",
    "value_iteration",
]
