"""Branches: where a run went on with other settings than it had. Needs no JAX.

`branches.json` lists them, oldest first: the step, and every setting that changed as [before, after]. Such a run is not
what its seed and its config alone give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from implicitq import configs
from implicitq.configs import Config
from implicitq.runs.files import read_json
from implicitq.runs.layout import BRANCHES
from implicitq.runs.settings import MAY_CHANGE
from implicitq.types import InputError
from implicitq.validation import brief

_MEANING = ("policy", "bins", "logits", "softmax", "log_policy", "batch_norm", "torso")
"""Settings without which weights mean nothing."""

_FIXED = frozenset(
    {*configs.RESERVED}
    | {"hidden", "normalize_observations", "num_envs", "replay_size", "eval_episodes", "members", "action_bound"}
)
"""Other settings that cannot change: the contents of checkpoints or logs depend on them, or they make it another run.

Not all that shape networks have to be here: arrays that do not fit are refused as well, in words that say less.
"""

_POLICY = "initial policy"  # not a setting: the weights that a run begins with


class Branch(NamedTuple):
    step: int
    changes: Mapping[str, Sequence[Any]]  # setting -> before, after

    def told(self) -> str:
        """Such as: from step 4,000 with learning_rate 0.0003 -> 0.0001."""
        changes = ", ".join(f"{name} {brief(old)} -> {brief(new)}" for name, (old, new) in self.changes.items())
        return f"from step {self.step:,} with {changes}"


def read(folder: Path) -> list[Branch]:
    """The branches of a run folder; none if it has no such file."""
    if not (folder / BRANCHES).is_file():
        return []
    found = read_json(folder / BRANCHES)
    if not isinstance(found, list) or not all(map(_is_entry, found)):
        raise InputError(f"{BRANCHES} must be a list of entries with a step and changes, each before and after")
    return [Branch(entry["step"], entry["changes"]) for entry in found]


def to_file(branches: Sequence[Branch]) -> list[dict[str, Any]]:
    return [{"step": branch.step, "changes": dict(branch.changes)} for branch in branches]


def between(before: Config, after: Config, step: int) -> Branch | None:
    """What changes, if any of it may change what is learnt or measured."""
    old, new = configs.to_json(before), configs.to_json(after)
    changes = {name: [old[name], new[name]] for name in old if old[name] != new[name] and name not in MAY_CHANGE}
    return Branch(step, changes) if changes else None


def begun_with(told: str) -> Branch:
    """The branch of a run that began with the weights of a policy."""
    return Branch(0, {_POLICY: [None, told]})


def taken(branches: Sequence[Branch], config: Config) -> list[Branch]:
    """The branches without a last one that was noted but not begun: the process died before saving its config."""
    values = configs.to_json(config)
    last = branches[-1].changes.items() if branches else ()
    begun = all(values[name] == after for name, (_, after) in last if name in values)
    return list(branches if begun else branches[:-1])


def other_meaning(config: Config, settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings with which weights of `config` would mean something else: what they are there, and in `settings`.

    From plain to steady and back, softmax(F) stays what it is.
    """
    both = {name: (getattr(config, name, None), settings[name]) for name in _MEANING if name in settings}
    apart = {name: pair for name, pair in both.items() if pair[0] != pair[1]}
    return {name: pair for name, pair in apart.items() if name != "softmax" or "scaled" in pair}


def check_changes(config: Config, changes: Mapping[str, Any]) -> None:
    """Refuse settings that no run can change on its way."""
    fixed = sorted(_FIXED & changes.keys() | other_meaning(config, changes).keys())
    temperature = getattr(config, "temperature", None), changes.get("temperature", getattr(config, "temperature", None))
    if temperature[0] != temperature[1] and "auto" in temperature:
        fixed.append("temperature")
    if fixed:
        raise InputError(
            f"{fixed[0]} cannot change in a run that goes on (it is {brief(getattr(config, fixed[0], None))}): begin a "
            "new run"
        )


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == {"step", "changes"}
        and isinstance(entry["step"], int)
        and isinstance(entry["changes"], dict)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in entry["changes"].values())
    )
