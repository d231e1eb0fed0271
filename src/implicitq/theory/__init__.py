"""The theory of implicit Q-values on finite MDPs: IQ-DP, MD-VI, error propagation. NumPy and SciPy in float64."""

from implicitq.theory.errors import Adversary, GaussianNoise, GivenErrors, SampledTransitions
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
