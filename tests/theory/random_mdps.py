"""Random finite MDPs for property tests: sizes, sparsity, discount and rewards vary; every draw is
reproducible.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from implicitq.theory import Adversary, FiniteMDP, GaussianNoise, SampledTransitions

reproducible = settings(deadline=None, derandomize=True, max_examples=60)

alphas = st.one_of(st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.floats(0.0, 1.0))
temperatures = st.floats(-6.0, 1.0).map(lambda exponent: 10.0**exponent)
error_models = st.sampled_from([None, GaussianNoise(0.3), SampledTransitions(1), SampledTransitions(3), Adversary(0.2)])


@st.composite
def mdps(draw, largest_discount=0.97):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    states, actions = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    concentration = draw(st.sampled_from([0.05, 1.0, 10.0]))
    P = rng.dirichlet(np.full(states, concentration), size=(states, actions))
    P = np.where(np.isfinite(P), P, 0.0)
    P[P.sum(-1) == 0] = np.eye(states)[0]
    scale = draw(st.sampled_from([0.0, 0.01, 1.0, 30.0]))
    return FiniteMDP(
        P / P.sum(-1, keepdims=True),
        scale * rng.normal(size=(states, actions)),
        draw(st.floats(0.0, largest_discount)),
    )
