"""Policy classes, one file each."""

from implicitq.policies.multicategorical import Multicategorical, MulticategoricalPolicy, bin_centres

__all__ = ["Multicategorical", "MulticategoricalPolicy", "bin_centres"]
