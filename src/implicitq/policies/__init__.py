"""Policy classes, one file each."""

from implicitq.policies.gaussian import Gaussian, GaussianPolicy
from implicitq.policies.multicategorical import Multicategorical, MulticategoricalPolicy, bin_centres
from implicitq.policies.tanh_gaussian import TanhGaussian, TanhGaussianPolicy

__all__ = [
    "Gaussian",
    "GaussianPolicy",
    "Multicategorical",
    "MulticategoricalPolicy",
    "TanhGaussian",
    "TanhGaussianPolicy",
    "bin_centres",
]
