"""Studies: one per figure of the paper. A study on a suite expands to a list of runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from implicitq import configs
from implicitq.configs import Config
from implicitq.runs.layout import run_name
from implicitq.runs.settings import SCALE, ForeignConfig, RunConfig
from implicitq.sweeps.suites import Suite, action_kind
from implicitq.types import InputError
from implicitq.validation import nearest

UNIQUE = " unique"  # ends the label of a line with unique parameters


@dataclass(frozen=True)
class Variant:
    """One line of a figure: an algorithm with some of its hyperparameters set."""

    algorithm: str
    values: Mapping[str, Any] = field(default_factory=dict)
    parameters: Literal["best", "unique"] = "best"  # with the paper's exceptions for some tasks, or without

    @property
    def label(self) -> str:
        """What tables and legends call it."""
        words = " ".join([self.algorithm, *(f"{name}={_word(value)}" for name, value in self.values.items())])
        return words + UNIQUE if self.parameters == "unique" else words


@dataclass(frozen=True)
class Study:
    name: str
    summary: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    algorithm: str
    env: str
    seed: int
    folder: str  # below the sweep's folder; equal runs of several lines and studies share it
    overrides: Mapping[str, Any]  # of the algorithm's config on the task with the paper's preset

    def config(self) -> Config:
        return configs.resolve(self.algorithm, self.env, seed=self.seed, **self.overrides)


@dataclass(frozen=True)
class Plan:
    """All runs of a study on a suite, and what was left out of it."""

    study: str
    suite: str
    runs: tuple[PlannedRun, ...]
    lines: Mapping[str, tuple[str, ...]]  # label -> folders of its runs
    left_out: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]]  # task -> what the suite sets there for all lines

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.env for run in self.runs))


SAC = Variant("sac")  # in every study, since scores are relative to it
ENTROPY_WEIGHTS = (0.001, 0.01, 0.1)
LEARNING_RATES = (3e-4, 3e-5)
BINS = (3, 5, 7, 11, 15)
_ALPHA = 0.9
_SHARED = {  # SAC can take these ingredients of iq-auto too
    name: configs.ALGORITHMS["iq-auto"].values[name]
    for name in ("n_step", "batch_size", "actor_average", "learning_rate_decay")
}
_WITHOUT: tuple[Mapping[str, Any], ...] = (  # of iq-auto: each ingredient taken away, or in another form
    {"members": 1, "calibration": None, "bound_values": False},
    {"calibration": None, "bound_values": False},
    {"bound_values": False},
    {"log_policy": "density", "n_step_target": "soft", "bound_values": False},
    {"log_policy": "probability", "n_step_target": "soft", "bound_values": False},
    {"logits": "cosines"},
    {"softmax": "plain"},
    {"softmax": "scaled"},
    {"entropy_states": "replay"},
    {"temperature": 0.01},
    {"batch_norm": False, "target_update": 0.005},
    {"n_step": 5},
    {"n_step": 1},
    {"batch_size": 128},
    {"alpha": 0.9},
    {"learning_rate_decay": None},
    {"learning_rate": 3e-4, "learning_rate_decay": None},
    {"adam_b1": 0.9},
    {"temperature_learning_rate": None},
    {"actor_average": None},
    {"warmup": "policy"},
)


def _both(*algorithms: str) -> tuple[Variant, ...]:
    return tuple(Variant(name, {}, which) for which in ("best", "unique") for name in algorithms)


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "main",
            "IQ and M-IQ beside SAC, with the best parameters of each task, and with unique ones for all tasks",
            _both("iq", "miq", "sac"),
        ),
        Study(
            "ablation",
            "without a target value (PCL, Trust-PCL), and with Gaussian policies",
            (
                *_both("iq", "miq", "pcl", "trust-pcl", "iq-gaussian", "miq-gaussian"),
                Variant("trust-pcl", {"temperature": 1e-4}),  # the other reading of the paper
                SAC,
            ),
        ),
        Study(
            "learning-rate",
            "IQ, M-IQ and SAC at learning rates 3e-4 and 3e-5",
            tuple(Variant(name, {"learning_rate": r}) for name in ("iq", "miq", "sac") for r in LEARNING_RATES),
        ),
        Study(
            "temperature",
            "IQ (alpha 0) and M-IQ (alpha 0.9) at entropy weights 0.001, 0.01 and 0.1",
            (
                *(Variant("iq", {"temperature": weight}) for weight in ENTROPY_WEIGHTS),
                *(Variant("miq", {"temperature": round(weight / (1 - _ALPHA), 12)}) for weight in ENTROPY_WEIGHTS),
                SAC,
            ),
        ),
        Study(
            "sac-temperature",
            "SAC with fixed temperatures beside the learnt one",
            (SAC, *(Variant("sac", {"temperature": weight}) for weight in (*ENTROPY_WEIGHTS, 1.0))),
        ),
        Study(
            "bins",
            "IQ and M-IQ with 3 to 15 bins per action dimension",
            (*(Variant(name, {"bins": bins}) for name in ("iq", "miq") for bins in BINS), SAC),
        ),
        Study(
            "policies",
            "IQ with every class of policies: factored bins, autoregressive, flow, normal",
            (
                Variant("iq"),
                *(Variant("iq", {"policy": name}) for name in ("autoregressive", "flow")),
                Variant("iq-gaussian"),
                SAC,
            ),
        ),
        Study(
            "adaptive-ablation",
            "iq-auto, and iq-auto without each ingredient, beside M-IQ, SAC, and SAC with the ingredients it can take",
            (
                *(Variant("iq-auto", values) for values in ({}, *_WITHOUT)),
                Variant("miq"),
                SAC,
                Variant("sac", _SHARED),
            ),
        ),
        Study(
            "target-update",
            "IQ, M-IQ and SAC with lambda 0.05 and 0.005, with and without normalised observations",
            tuple(
                Variant(name, {"target_update": rate, "normalize_observations": normalize})
                for name in ("iq", "miq", "sac")
                for rate in (0.05, 0.005)
                for normalize in (False, True)
            ),
        ),
        Study(
            "adaptive",
            "iq-auto and miq-auto, its form with one network, beside SAC and M-IQ",
            (Variant("iq-auto"), Variant("miq-auto"), SAC, Variant("miq")),
        ),
        Study("all", "every algorithm, with best parameters", tuple(map(Variant, configs.ALGORITHMS))),
    )
}


def study_of(name: str) -> Study:
    if name not in STUDIES:
        raise InputError(f"unknown study {name!r}{nearest(name, STUDIES)}")
    return STUDIES[name]


def expand(study: Study, suite: Suite, seeds: int, steps: int | None = None) -> Plan:
    """The runs of a study: seed by seed, so that a sweep stopped half-way has something of everything."""
    if seeds < 1:
        raise InputError(f"seeds must be a whole number of at least 1, got {seeds}")
    _check_settings(suite)
    budget = {} if steps is None else {"steps": steps}
    chosen: list[tuple[str, str, PlannedRun]] = []  # the line, what the run itself is called, the run
    left_out: list[str] = []
    for task in suite.tasks:
        kind = action_kind(task, suite.settings_on(task).get("action_bound"))
        for variant in study.variants:
            if suite.algorithms is not None and variant.algorithm not in suite.algorithms:
                continue
            run = _planned(variant, task, {**suite.settings_on(task), **budget})
            accepted = ("Box",) if "bins" in variant.values else run.config().accepted_actions
            if kind in accepted:
                chosen.append((variant.label, label_of(run.config(), suite.settings_on(task)), run))
            else:
                acts = " and ".join(accepted)
                left_out.append(f"{variant.label} on {task}: it is for {acts} actions, the task has {kind}")
    if not chosen:
        raise InputError(f"no run is left of study {study.name!r} on suite {suite.name!r}: {'; '.join(left_out)}")
    runs: dict[str, PlannedRun] = {}
    lines: dict[str, list[str]] = {}
    for seed in range(seeds):
        for label, own, unseeded in chosen:
            run = dataclasses.replace(unseeded, seed=seed, folder=run_name(unseeded.env, own, seed))
            there = runs.setdefault(run.folder, run)
            if there is not run and there.config() != run.config():
                raise InputError(f"two different runs would have the folder {run.folder}: the second is {label}")
            lines.setdefault(label, []).append(run.folder)
    ends = {label: tuple(folders) for label, folders in lines.items()}
    settings = {task: suite.settings_on(task) for task in suite.tasks}
    return Plan(study.name, suite.name, tuple(runs.values()), ends, tuple(left_out), settings)


def label_of(config: RunConfig, settings: Mapping[str, Any] | None = None) -> str:
    """What sets a run apart from the algorithm's best parameters on its task, given what a suite sets for all lines."""
    if isinstance(config, ForeignConfig):
        return config.algorithm
    best = configs.resolve(config.algorithm, config.env, **_accepted(config.algorithm, settings or {}))
    left_out = {"seed", "preset", *SCALE}
    apart = {name: value for name, value in vars(config).items() if value != getattr(best, name)}
    return Variant(config.algorithm, {name: value for name, value in apart.items() if name not in left_out}).label


def _planned(variant: Variant, task: str, settings: Mapping[str, Any]) -> PlannedRun:
    """A run of the variant with seed 0, and no folder yet."""
    algorithm = variant.algorithm
    shared = _accepted(algorithm, settings)
    best = configs.resolve(algorithm, task, **shared)
    if variant.parameters == "best":
        wanted = configs.resolve(algorithm, task, **{**shared, **variant.values})
    else:
        # The size of a task (networks, steps) is the same for all algorithms and stays; only exceptions go.
        size = configs.preset_values("", task)
        wanted = configs.resolve(algorithm, task, "none", **{**size, **shared, **variant.values})
    apart = {name: value for name, value in vars(wanted).items() if value != getattr(best, name) and name != "preset"}
    return PlannedRun(algorithm, task, 0, "", {**shared, **apart})


def _accepted(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a suite that the algorithm has."""
    return {name: value for name, value in settings.items() if name in _fields(configs.entry_of(algorithm).config)}


def _check_settings(suite: Suite) -> None:
    known = {name for entry in configs.ALGORITHMS.values() for name in _fields(entry.config)}
    for task in suite.tasks:
        for name in suite.settings_on(task):
            if name not in known:
                raise InputError(f"no algorithm has a hyperparameter {name!r}{nearest(name, known)}")


def _fields(config: type[Config]) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


def _word(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "-".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
