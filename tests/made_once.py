"""What is the same for every agent with the same settings is made once in a process of the tests.

An agent traces and lowers a dozen functions when it begins, and draws its curve when it ends; most tests make agents
that differ in nothing of this. Bits are as without: a function is shared only where the config, the spaces and the
device are equal, and a picture only where all its numbers are.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Hashable
from typing import Any

from implicitq import learner
from implicitq.runs import curve

_OF_THE_LOOP = {  # no learner looks at these; what it has to know of the task is in the spec
    *("env", "steps", "min_replay", "replay_size"),
    *("eval_every", "eval_episodes", "checkpoint_every", "log_every"),
}
_KEPT = 150  # functions; each holds some megabytes of compiled code
_settings: contextvars.ContextVar[Hashable] = contextvars.ContextVar("settings", default=None)


def share() -> None:
    """For all tests of this process."""
    _share_functions()
    _share_curves()


def _share_functions() -> None:
    made: dict[Hashable, Callable[..., Any]] = {}
    begin, compiled = learner.Learner.__init__, learner._jit

    def init(self: Any, algorithm: Any, spec: Any, config: Any, device: Any = None) -> None:
        ours = type(algorithm).__module__.startswith("implicitq.algorithms.")  # a test may bring one of its own
        values = {k: v for k, v in vars(config).items() if k not in _OF_THE_LOOP}
        token = _settings.set((type(algorithm), tuple(values.items()), spec, device) if ours else None)
        try:
            begin(self, algorithm, spec, config, device)
        finally:
            _settings.reset(token)

    def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        settings = _settings.get()
        if settings is None:
            return compiled(function, **options)
        inner = inspect.unwrap(function)
        key = (settings, inner.__code__, inner is function, tuple(options.items()))
        made[key] = made.pop(key, None) or compiled(function, **options)  # the newest last
        if len(made) > _KEPT:
            del made[next(iter(made))]
        return made[key]

    learner.Learner.__init__, learner._jit = init, jit  # type: ignore[method-assign]


def _share_curves() -> None:
    made: dict[Hashable, bytes] = {}
    draw = curve.learning_curve

    def learning_curve(title: str, evaluations: Any, metrics: Any) -> bytes:
        columns = tuple((name, column.tobytes()) for name, column in metrics.items())
        key = (title, tuple(evaluations), columns)
        if key not in made:
            made[key] = draw(title, evaluations, metrics)
        return made[key]

    curve.learning_curve = learning_curve
