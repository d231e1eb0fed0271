"""The model card of a policy: what it is, how it was made, what it scores. Markdown with metadata that the Hub reads.

Texts that come from a run folder go into the metadata as JSON strings, which YAML reads as they are, and into the page
as code, where nothing in them is markup.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from implicitq import configs
from implicitq.configs import Config
from implicitq.types import Evaluation
from implicitq.validation import printable

_PACKAGES = ("implicitq", "python", "jax", "equinox", "optax", "numpy", "gymnasium", "mujoco")
_LONGEST = 100  # characters of a text that somebody else wrote


@dataclass(frozen=True)
class Facts:
    """What a card tells."""

    config: Config
    step: int  # environment steps that the policy was trained for
    best: bool  # it is the policy of the run's best evaluation
    evaluations: Sequence[Evaluation]  # of the run, oldest first
    fresh: Evaluation | None = None  # of the policy, in episodes that the run has not seen
    fresh_seed: int = 0
    versions: Mapping[str, Any] = field(default_factory=dict)
    branches: Sequence[str] = ()  # where the run went on with other settings, in words
    from_object: bool = False  # the environment was an object of Python
    repo: str | None = None  # where the policy lies on the Hub
    pictures: Sequence[str] = ()  # files beside the card to show
    no_film: bool = False  # one was wanted, and could not be made


def card(facts: Facts) -> str:
    """The whole card."""
    config = facts.config
    parts = [
        _metadata(facts),
        f"# {config.algorithm} on {_code(config.env)}",
        _opening(facts),
        "## Results",
        _results(facts),
        *(f"![{name}]({name})" for name in facts.pictures),
        *(["There is no film: none could be made where this was shared."] if facts.no_film else []),
        "## Use it",
        _usage(facts),
        "Loading it runs no code and imports nothing that it names: the file is safetensors with a JSON header, "
        "and is checked before it acts.",
        "## How it was made",
        _making(facts),
    ]
    return "\n\n".join(parts) + "\n"


def _opening(facts: Facts) -> str:
    kept = ", and kept because its evaluation was the best of the run" if facts.best else ""
    summary = configs.entry_of(facts.config.algorithm).summary
    return f"A policy of implicitq ({summary}), trained for {facts.step:,} environment steps{kept}."


def _metadata(facts: Facts) -> str:
    config = facts.config
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "implicitq", config.algorithm, config.env]
    lines = ["---", "library_name: implicitq", "pipeline_tag: reinforcement-learning", "tags:"]
    lines += [f"- {_text(tag)}" for tag in tags]
    shown = facts.fresh or _of_policy(facts)
    if shown is not None:
        task, data = "reinforcement-learning", _text(config.env)
        lines += ["model-index:", f"- name: {_text(config.algorithm)}", "  results:", "  - task:"]
        lines += [
            f"      type: {task}",
            f"      name: {task}",
            "    dataset:",
            f"      name: {data}",
            f"      type: {data}",
        ]
        lines += ["    metrics:", "    - type: mean_reward", "      name: mean_reward"]
        lines += [f"      value: {_text(f'{shown.mean:.2f} +/- {shown.std:.2f}')}", "      verified: false"]
    return "\n".join([*lines, "---"])


def _results(facts: Facts) -> str:
    rows = ["| deterministic policy | mean return | std | episodes | step |", "|---|---:|---:|---:|---:|"]
    if facts.fresh is not None:
        rows.append(_row(f"this policy, in fresh episodes (seed {facts.fresh_seed})", facts.fresh))
    if facts.evaluations:
        best = max(facts.evaluations, key=lambda each: each.mean)
        rows.append(_row("last evaluation of the run", facts.evaluations[-1]))
        count = len(facts.evaluations)
        rows.append(_row(f"best evaluation of the run (the highest of {count}, so it flatters)", best))
    return "\n".join(rows) if len(rows) > 2 else "No evaluation was made."


def _row(name: str, done: Evaluation) -> str:
    return f"| {name} | {done.mean:,.1f} | {done.std:,.1f} | {len(done.returns)} | {done.step:,} |"


def _of_policy(facts: Facts) -> Evaluation | None:
    """The run's evaluation at the step of the policy."""
    return next((each for each in facts.evaluations if each.step == facts.step), None)


def _usage(facts: Facts) -> str:
    source = f"hf://{facts.repo}" if facts.repo else "policy.safetensors"
    extra = "implicitq[hub]" if facts.repo else "implicitq"
    lines = [
        "```python",
        f"# pip install '{extra}'",
        "import implicitq",
        "",
        f"agent = implicitq.load({json.dumps(source)})",
        "action, _ = agent.predict(observation, deterministic=True)",
        "```",
    ]
    if facts.fresh is not None and not facts.from_object:
        named = f"--env {_word(facts.config.env)} " if ":" in facts.config.env else ""
        words = f"implicitq evaluate {source} {named}--episodes {len(facts.fresh.returns)} --seed {facts.fresh_seed}"
        lines += ["", "```sh", words, "```"]
    return "\n".join(lines)


def _making(facts: Facts) -> str:
    config = facts.config
    if facts.from_object:
        parts = ["It was trained from Python, on an environment object. Its settings are in config.json."]
    else:
        parts = [f"```sh\n{printable(configs.train_command(config))}\n```"]
    parts += [f"The run went on {_code(told)}." for told in facts.branches]
    if facts.step < config.steps:
        parts.append(f"This policy is of step {facts.step:,} of that run.")
    known = {name: facts.versions.get(name) for name in _PACKAGES}
    told = ", ".join(f"{name} {_code(str(version))}" for name, version in known.items() if version)
    if told:
        parts.append(f"Versions: {told}.")
    return "\n\n".join(parts)


def _text(text: str) -> str:
    """The text as a YAML string; anything in it is escaped."""
    return json.dumps(_short(text))


def _code(text: str) -> str:
    """As code on the page, in which nothing is markup; a bar would end the cell of a table."""
    return f"`{_short(text).replace('`', chr(39)).replace('|', '/')}`"


def _word(text: str) -> str:
    return shlex.quote(_short(text))


def _short(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1]}…"
