"""One frozen config per algorithm, with its checks. Comments are the help texts of the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from implicitq.configs.preset_files import ACCEPTED, FILE
from implicitq.types import ActionKind, InputError
from implicitq.validation import check_types, require

HIDDEN: Any = "no flag"
"""Marks fields that are no flags. `commands.parsing` puts the mark of its parser here, so that configs need none."""
FLAG: Any = dict
"""Makes marks that say more of a flag than its comment can; that of the parser is put here too."""

_ALL: tuple[ActionKind, ...] = ("Box", "Discrete", "MultiDiscrete")


MOST_STEPS = 2 * 10**9  # random numbers are counted by step in 32 bits


@dataclass(frozen=True)
class Config:
    """Settings of all algorithms. Comments are the help texts of the command line; the paper's symbol comes first."""

    algorithm: Annotated[str, HIDDEN] = ""
    env: str = "Pendulum-v1"  # Gymnasium id of the task.
    steps: int = 1_000_000  # Environment steps to train for.
    seed: int = 0  # Fixes all randomness: networks, exploration, replay, episodes.
    preset: Annotated[str, FLAG(metavar="paper|none|FILE")] = "paper"
    """Per-task settings. paper: our table of known tasks; none: the algorithm's defaults for every task;
    or the path of a preset file (.toml or .json), which config.json notes as file."""
    discount: float = 0.99  # gamma: weight of a reward that comes one step later.
    target_update: float = 0.005  # lambda: target <- (1 - lambda) target + lambda online, after every update.
    learning_rate: float = 3e-4  # Step size of Adam.
    learning_rate_decay: int | None = None
    """After k updates, all learning rates are divided by sqrt(1 + k / this). None: they are constant."""
    batch_size: int = 256  # |B_t|: transitions per update.
    replay_size: int = 1_000_000  # |B|: rows of the FIFO replay, over all environments.
    min_replay: int = 10_000  # Steps collected before the first update.
    warmup: Literal["policy", "uniform"] = "policy"
    """How to act before the first update. policy: the untrained policy; uniform: uniformly random actions."""
    hidden: tuple[int, ...] = (512, 512)  # Units of each hidden layer.
    torso: Literal["auto", "mlp", "cnn"] = "auto"  # cnn: convolutions first, for images; auto: cnn for images only.
    n_step: int = 1  # Rewards summed before bootstrapping.
    actor_average: float | None = None
    """Evaluate and save an exponential moving average of the weights with this step size; None: the current weights."""
    normalize_observations: bool = False  # Scale features to mean 0 and variance 1; not for images.
    updates_per_step: int = 1  # Updates after every environment step.
    action_bound: float | None = None
    """Bounds for Box actions that declare none: [-bound, bound]. None: such tasks are refused."""
    num_envs: int = 1  # Environments stepped side by side; updates per environment step stay the same.
    vectorization: Literal["sync", "async"] = "sync"  # sync: all in this process; async: one process per environment.
    on_env_error: Literal["stop", "restart"] = "stop"  # If a training environment fails: end the run, or make it again.
    env_timeout: float | None = None  # Most seconds for a call of an environment, with async; None: no limit.
    eval_every: int = 10_000  # Steps between evaluations.
    eval_episodes: int = 10  # Episodes per evaluation, with the deterministic policy.
    checkpoint_every: int = 10_000  # Steps between checkpoints.
    log_every: int = 1_000  # Steps between rows of metrics.csv.

    @property
    def accepted_actions(self) -> tuple[ActionKind, ...]:
        """Kinds of action spaces that the algorithm can act in."""
        return _ALL

    @property
    def fixed_temperature(self) -> float:
        """0 where it is learnt, or there is none."""
        given = getattr(self, "temperature", 0.0)
        return 0.0 if given == "auto" else float(given)

    def __post_init__(self) -> None:
        check_types(self)
        require(self, "preset", self.preset in ("paper", "none", FILE), ACCEPTED)
        for name in ("replay_size", "min_replay", "eval_every", "checkpoint_every", "log_every"):
            require(self, name, getattr(self, name) >= 1, "a whole number of at least 1")
        bounds = {"steps": MOST_STEPS, "batch_size": 10**6, "eval_episodes": 10**5, "n_step": 10**4, "num_envs": 10**4}
        bounds["updates_per_step"] = 10**3
        for name, most in bounds.items():
            require(self, name, 1 <= getattr(self, name) <= most, f"a whole number from 1 to {most}")
        require(self, "seed", 0 <= self.seed < 2**32, "a whole number from 0 to 4294967295")
        require(self, "discount", 0 <= self.discount < 1, "a number in [0, 1)")
        require(self, "target_update", 0 < self.target_update <= 1, "a number in (0, 1]")
        require(self, "learning_rate", 0 < self.learning_rate < math.inf, "a positive number")
        decay = self.learning_rate_decay
        require(self, "learning_rate_decay", decay is None or 1 <= decay < 2**31, "a whole number from 1, or None")
        average = self.actor_average
        require(self, "actor_average", average is None or 0 < average <= 1, "a number in (0, 1] or None")
        good = len(self.hidden) <= 64 and all(units >= 1 for units in self.hidden)
        require(self, "hidden", good, "at most 64 positive layer sizes")
        bound = self.action_bound
        require(self, "action_bound", bound is None or 0 < bound < 1e30, "a positive number up to 1e30 or None")
        timeout = self.env_timeout
        require(self, "env_timeout", timeout is None or 0 < timeout < math.inf, "a positive number of seconds or None")
        if timeout is not None and self.vectorization != "async":
            raise InputError(
                f"env_timeout must be None with vectorization {self.vectorization!r}, got {timeout!r}: only an "
                "environment in a process of its own (vectorization 'async') can be left behind when it hangs"
            )
        rows = self.replay_size // self.num_envs
        require(
            self,
            "replay_size",
            self.min_replay <= self.replay_size and rows >= self.n_step + 2,
            f"at least min_replay ({self.min_replay}) and n_step + 2 rows for each of num_envs ({self.num_envs})",
        )


@dataclass(frozen=True)
class PolicyEntry:
    """A class of policies for implicit algorithms; `module` has `build(config, spec, key)`.

    What not every class can do is said here: settings that need it are refused for the others.
    """

    module: str
    actions: tuple[ActionKind, ...] = _ALL
    density: bool = False  # ln pi is the logarithm of a density, which has no upper bound
    binned: bool = False  # `Box` actions are bins: it has `nearby`, and ln pi of a bin or per unit of action
    cosines: bool = False  # it can give F as a sum of cosines over the bins
    scales: bool = False  # it has the scaled form, softmax(F / temperature)
    rescales: bool = False  # it has `rescaled`, for the steady form
    factored: bool = False
    """It can be a member of an ensemble: a `NetworkPolicy` whose network is one of `network_for`, since one with an
    output more, the value, takes its place; `distribution` gets the other outputs alone and gives what has `pool`, a
    pytree of arrays [B, ...] only."""


POLICIES: dict[str, PolicyEntry] = {
    "multicategorical": PolicyEntry(
        "implicitq.policies.multicategorical", binned=True, cosines=True, scales=True, rescales=True, factored=True
    ),
    "gaussian": PolicyEntry("implicitq.policies.gaussian", ("Box",), density=True, scales=True, factored=True),
    "autoregressive": PolicyEntry("implicitq.policies.autoregressive", binned=True, scales=True),
    "flow": PolicyEntry("implicitq.policies.flow", ("Box",), density=True),
}


def policies_told() -> str:
    """The classes by what actions they are for, as the help has it."""
    told: dict[tuple[ActionKind, ...], list[str]] = {}
    for name, entry in POLICIES.items():
        told.setdefault(entry.actions, []).append(name)
    only = {kinds: "" if kinds == _ALL else f"{' and '.join(kinds)} only: " for kinds in told}
    return "; ".join(only[kinds] + ", ".join(names) for kinds, names in told.items()) + "."


class Weights(NamedTuple):
    """The KL weight is alpha * temperature, the entropy weight (1 - alpha) * temperature."""

    temperature: Any  # a number; where it is learnt, an array inside the compiled update
    alpha: Any


def weights(temperature: float | None, alpha: float | None, kl: float | None, entropy: float | None) -> Weights:
    """Temperature and alpha, from two of the four; InputError if these say too little or contradict each other.

    temperature = kl + entropy and alpha = kl / temperature.
    """
    if temperature is None:
        if kl is None or entropy is None:
            raise InputError("temperature must be a positive number or 'auto', unless both kl and entropy are given")
        temperature = kl + entropy
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature must be a positive number or 'auto', got {temperature!r}")
    for name, weight in (("kl", kl), ("entropy", entropy)):
        if weight is not None and weight > temperature:
            raise InputError(f"{name} must be at most the temperature, {temperature}, got {weight!r}")
    if kl is not None:
        implied = kl / temperature
    elif entropy is not None:
        implied = 1 - entropy / temperature
    elif alpha is not None:
        implied = alpha
    else:
        raise InputError("alpha must be a number in [0, 1], unless kl or entropy is given")
    found = Weights(temperature, implied)
    for name, given, wanted in (
        ("alpha", alpha, implied),
        ("kl", kl, implied * temperature),
        ("entropy", entropy, (1 - implied) * temperature),
    ):
        if given is not None and not math.isclose(given, wanted, rel_tol=1e-6, abs_tol=1e-12):
            said = {"temperature": temperature, "alpha": alpha, "kl": kl, "entropy": entropy}
            listed = ", ".join(f"{name} {value}" for name, value in said.items() if value is not None)
            raise InputError(
                f"{name} must be {wanted:g} beside the others, got {listed}; give two of them: "
                "temperature = kl + entropy and alpha = kl / temperature"
            )
    return found


@dataclass(frozen=True)
class ImplicitConfig(Config):
    """Algorithms with an implicit Q-value, Q = temperature * ln pi + V, and one squared loss."""

    temperature: float | Literal["auto"] | None = 0.01  # tau: weight of KL and entropy together. auto: learnt.
    alpha: float | None = 0.0  # Share of the KL in the temperature: 0 is IQ, 0.9 is M-IQ; the entropy has the rest.
    kl: float | None = None  # KL weight, alpha * temperature: give it instead of alpha.
    entropy: float | None = None  # Entropy weight, (1 - alpha) * temperature: give it instead of alpha.
    entropy_target: float | None = None
    """Target entropy in nats per action dimension, for temperature auto and log_policy centred.
    None: 0.3 ln(number of choices), plus ln(bin width) with log_policy density; -1 for policy gaussian or flow."""
    entropy_states: Literal["replay", "visited"] = "replay"
    """For temperature auto: where it holds the entropy. replay: on average over the states of a batch;
    visited: over states of the last 8,192 steps, where the policy is now."""
    initial_temperature: float = 0.1  # For temperature auto: where it starts.
    max_temperature: float | None = 10.0  # For auto: the highest temperature, in units of reward; None: no bound.
    policy: Annotated[str, FLAG(help=policies_told())] = "multicategorical"
    bins: int = 11  # n: values per dimension of a Box action space, for policies that choose among bins.
    logits: Literal["bins", "cosines"] = "bins"
    """Network outputs for a Box dimension. bins: one logit per bin;
    cosines: coefficients of cosines over the bins, so that neighbouring bins learn together (multicategorical only)."""
    softmax: Literal["plain", "steady", "scaled"] = "plain"
    """Policy from the logits F and the temperature T. plain: softmax(F); scaled: softmax(F / T);
    steady: softmax(F), and when a learnt T moves, the last layer is rescaled to keep T F, so differences of Q stay."""
    munchausen_clip: float | None = None  # Clip temperature * ln pi in the target to [-clip, 0]. None: no clipping.
    n_step_target: Literal["plain", "path", "soft"] = "plain"
    """Entropy and KL terms at steps 1 to n - 1 of an n-step target. plain: none, rewards only;
    path: those of the actions taken, from ln pi; soft: their mean at the target entropy (temperature auto only)."""
    log_policy: Literal["probability", "density", "centred"] = "probability"
    """The ln pi in Q = T ln pi + V. probability: ln of a bin's probability; density: that less ln(bin width);
    centred: ln pi plus the target entropy, which is zero on average for a policy with that entropy."""
    batch_norm: bool = False  # Batch normalisation in both networks, and no target networks (target_update is unused).
    exploration: float = 0.0
    """Probability, per Box dimension, that an action collected for training moves to a neighbouring bin."""
    adam_b1: float = 0.9  # beta_1 of Adam: decay rate of its mean of gradients.
    temperature_learning_rate: float | None = None  # For temperature auto: step size of ln T; None: learning_rate.

    @property
    def accepted_actions(self) -> tuple[ActionKind, ...]:
        return POLICIES[self.policy].actions

    @property
    def weights(self) -> Weights:
        """Temperature and alpha, where the temperature is fixed."""
        assert self.temperature != "auto"
        return weights(self.temperature, self.alpha, self.kl, self.entropy)

    @property
    def fixed_temperature(self) -> float:
        return 0.0 if self.temperature == "auto" else float(self.weights.temperature)

    @property
    def has_kl(self) -> bool:
        """Whether there is any KL regularisation, so that a target policy is needed."""
        if self.temperature == "auto":
            return self.entropy is not None or bool(self.kl) or bool(self.alpha)
        return self.weights.alpha > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "policy", self.policy in POLICIES, " or ".join(map(repr, POLICIES)))
        entry = POLICIES[self.policy]
        known = {"plain": True, "steady": entry.rescales, "scaled": entry.scales}
        forms = " or ".join(repr(form) for form, has in known.items() if has)
        require(self, "softmax", known[self.softmax], f"{forms} with policy {self.policy!r}")
        require(self, "logits", self.logits == "bins" or entry.cosines, f"'bins' with policy {self.policy!r}")
        require(self, "exploration", 0 <= self.exploration <= 1, "a number in [0, 1]")
        binned = self.exploration == 0 or entry.binned
        require(self, "exploration", binned, f"0 with policy {self.policy!r}, which has no bins")
        dense = self.log_policy != "density" or entry.binned or entry.density
        require(self, "log_policy", dense, f"'probability' or 'centred' with policy {self.policy!r}")
        for name in ("kl", "entropy"):
            weight = getattr(self, name)
            require(self, name, weight is None or 0 <= weight < math.inf, "a number of at least 0, or None")
        require(self, "alpha", self.alpha is None or 0 <= self.alpha <= 1, "a number in [0, 1]")
        if self.temperature == "auto":
            self._check_auto()
        else:
            require(self, "n_step_target", self.n_step_target != "soft", "'plain' or 'path' with a fixed temperature")
            weights(self.temperature, self.alpha, self.kl, self.entropy)
        require(self, "bins", 2 <= self.bins <= 65_536, "a whole number from 2 to 65536")
        few = self.logits == "bins" or self.bins <= 1_000
        require(self, "bins", few, "at most 1000 with logits 'cosines', of which there is one for every bin")
        _require_clip(self)
        positive = entry.density or self.log_policy != "probability"
        bounded = self.munchausen_clip is None or not positive
        require(self, "munchausen_clip", bounded, "None where ln pi is not that of a probability, and may be positive")
        require(self, "adam_b1", 0 <= self.adam_b1 < 1, "a number in [0, 1)")
        _require_temperature_rate(self)

    def _check_auto(self) -> None:
        require(self, "initial_temperature", 0 < self.initial_temperature < math.inf, "a positive number")
        most = math.inf if self.max_temperature is None else self.max_temperature
        least = f"at least initial_temperature ({self.initial_temperature})"
        require(self, "max_temperature", most >= self.initial_temperature, f"{least}, or None")
        given = {name: getattr(self, name) for name in ("alpha", "kl", "entropy") if getattr(self, name) is not None}
        if len(given) != 1:
            came = ", ".join(f"{name} {value}" for name, value in given.items()) or "none of them"
            raise InputError(f"a learnt temperature needs one of alpha, kl and entropy, to adapt the rest; got {came}")
        finite = self.entropy_target is None or math.isfinite(self.entropy_target)
        require(self, "entropy_target", finite, "a finite number or None")


@dataclass(frozen=True)
class IQConfig(ImplicitConfig):
    """Implicit Q-values: Q = temperature * ln pi + V, one squared loss (Eq. 2)."""

    members: int = 1
    """Ensemble size: Q is the mean over members, each with a policy and a value of its own. 1: no ensemble.
    Each learns from an equal part of a batch; what is over is not drawn."""
    calibration: float | None = None
    """Step size, every 1,000 steps, of pessimism: the weight of the members' disagreement in targets.
    It rises when values are above the returns that follow, and falls when they are below. None: it stays 1."""
    calibration_decay: int | None = None
    """After k updates, the step size of pessimism is divided by sqrt(1 + k / this). None: it is constant."""
    bound_values: bool = False
    """Clip next-state values in targets to the returns seen in finished episodes, give or take a standard deviation.
    Needs calibration and log_policy centred."""

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.batch_norm and self.n_step_target == "path"
        require(self, "n_step_target", not both, "'plain' or 'soft' with batch_norm")
        require(self, "members", 1 <= self.members <= 100, "a whole number from 1 to 100")
        enough = self.batch_size >= self.members
        require(self, "batch_size", enough, f"at least members ({self.members}): each has its own part of a batch")
        factored = self.members == 1 or POLICIES[self.policy].factored
        require(self, "members", factored, f"1 with policy {self.policy!r}, whose members have no common policy")
        if self.calibration is not None:
            require(self, "calibration", 0 < self.calibration <= 10, "a number above 0 and up to 10, or None")
            require(self, "calibration", self.members > 1, "None with one member, which has nobody to disagree with")
        decay = self.calibration_decay
        require(self, "calibration_decay", decay is None or 1 <= decay < 2**31, "a whole number from 1, or None")
        if self.bound_values:
            require(
                self, "calibration", self.calibration is not None, "a number with bound_values, for finished episodes"
            )
            rewards_alone = self.log_policy == "centred"
            require(
                self, "log_policy", rewards_alone, "'centred' with bound_values: else V holds entropy beside rewards"
            )


@dataclass(frozen=True)
class PCLConfig(ImplicitConfig):
    """Path consistency learning: the loss of IQ in its residual form, without a target value."""

    temperature: float | Literal["auto"] | None = 1e-4  # tau: weight of KL and entropy together. auto: learnt.
    alpha: float | None = 0.0  # Share of the KL in the temperature: 0 is PCL, 0.9 is Trust-PCL.
    batch_norm: Annotated[bool, HIDDEN] = False  # Always False: the residual loss has no such form.

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "batch_norm", not self.batch_norm, "False for a residual loss")


@dataclass(frozen=True)
class SACConfig(Config):
    """Soft actor-critic: tanh-Gaussian policy, two Q-networks, entropy held at a target by the temperature."""

    temperature: float | Literal["auto"] = "auto"  # Entropy weight; auto: learnt, from 1, to hold the entropy target.
    entropy_target: float | None = None  # For auto: target entropy, nats per action dimension; None: -1.
    temperature_learning_rate: float | None = 3e-4  # For temperature auto: step size of ln T; None: learning_rate.

    @property
    def accepted_actions(self) -> tuple[ActionKind, ...]:
        return ("Box",)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = self.temperature == "auto" or 0 < self.temperature < math.inf
        require(self, "temperature", positive, "a positive number or 'auto'")
        finite = self.entropy_target is None or math.isfinite(self.entropy_target)
        require(self, "entropy_target", finite, "a finite number or None")
        _require_temperature_rate(self)


@dataclass(frozen=True)
class DQNConfig(Config):
    """An explicit Q-network for Discrete actions: M-DQN, DQN, and advantage learning."""

    temperature: float = 0.03  # tau: of the softmax policy and the soft maximum; 0: greedy, and the maximum.
    alpha: float = 0.9  # Munchausen weight; 0: none.
    munchausen_clip: float | None = 1.0  # Clip temperature * ln pi in the target to [-clip, 0]. None: no clipping.
    epsilon: float = 0.0  # Probability of a uniformly random action, where actions are sampled.
    target_update: float = 0.05  # lambda: target <- (1 - lambda) target + lambda online, after every update.

    @property
    def accepted_actions(self) -> tuple[ActionKind, ...]:
        return ("Discrete",)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "temperature", 0 <= self.temperature < math.inf, "a number of at least 0")
        require(self, "alpha", 0 <= self.alpha <= 1, "a number in [0, 1]")
        _require_clip(self)
        require(self, "epsilon", 0 <= self.epsilon <= 1, "a number in [0, 1]")


def _require_temperature_rate(config: ImplicitConfig | SACConfig) -> None:
    rate = config.temperature_learning_rate
    require(config, "temperature_learning_rate", rate is None or 0 < rate < math.inf, "a positive number or None")


def _require_clip(config: ImplicitConfig | DQNConfig) -> None:
    clip = config.munchausen_clip
    require(config, "munchausen_clip", clip is None or clip > 0, "a positive number or None")
