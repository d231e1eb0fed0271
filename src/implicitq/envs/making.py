"""Making Gymnasium environments: from an id, an object or a function, with errors that help."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import logging
import os
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium as gym

from implicitq.envs import spaces
from implicitq.types import InputError
from implicitq.validation import brief, check_env_id, module_of, nearest

EnvironmentSource = str | gym.Env | Callable[[], gym.Env]

_OBJECT = "object:"
_GLFW_WITHOUT_SCREEN = 65550  # the number of its warning


class _Package(NamedTuple):
    """Registers tasks when the last of its modules is imported."""

    modules: tuple[str, ...]
    needed: tuple[str, ...]  # packages
    extra: str  # of ours, which has them


# Tasks that we know the packages of, by the prefix of their ids: no id can choose another module by these.
_PACKAGES = {
    "AdroitHand": _Package(("gymnasium_robotics",), ("gymnasium_robotics",), "adroit"),
    # Rewards corrected.
    "implicitq/AdroitHand": _Package(("implicitq.envs.adroit",), ("gymnasium_robotics",), "adroit"),
    "dm_control/": _Package(("dm_control.mujoco", "shimmy"), ("shimmy", "dm_control"), "dm-control"),
}


class EnvironmentFailed(InputError):
    """An environment raised, died, hung or gave what it must not; made anew, it may work again."""


class EnvironmentMaker:
    """Makes equal environments from an id, an environment object or a function."""

    def __init__(
        self, source: EnvironmentSource, original_first: bool = True, action_bound: float | None = None
    ) -> None:
        """An object is given out itself first, then copies of it; only copies if not `original_first`.

        With `action_bound`, actions that have no bounds of their own get these.
        """
        if not isinstance(source, str | gym.Env) and not callable(source):
            raise InputError(f"env must be an id, a gymnasium.Env or a function that makes one, got {source!r}")
        self._source = source
        self._give_original = original_first
        self._action_bound = action_bound

    def __call__(self, **arguments: Any) -> gym.Env:
        """`arguments` go to `gymnasium.make`; only what has an id takes any."""
        try:
            return spaces.with_bounded_actions(self._made(**arguments), self._action_bound)
        except InputError:
            raise
        except Exception as error:
            name = self._source if isinstance(self._source, str) else "the environment"
            raise InputError(f"{name} cannot be made: {_told(error)}") from error

    def _made(self, **arguments: Any) -> gym.Env:
        if isinstance(self._source, str) or (arguments and not is_object(self.name)):
            return _make(self.name, **arguments)
        if not isinstance(self._source, gym.Env):
            made = self._source()
            if not isinstance(made, gym.Env):
                raise InputError(f"the env function must return a gymnasium.Env, got {type(made).__name__}")
            if _origin(made) is not None:
                raise InputError(
                    "the env function returned an environment that is in use already, perhaps in another wrapper; it "
                    "must make a new one in every call"
                )
            _note_use(made, "function")
            return made
        if self._give_original and _origin(self._source) != "function":
            self._give_original = False
            _note_use(self._source, "object")
            return self._source
        return _duplicate(self._source)

    def makes(self, source: EnvironmentSource) -> bool:
        """Whether `source` is what it makes environments from."""
        return self._source is source or (isinstance(source, str) and self._source == source)

    def shares_with(self, source: EnvironmentSource) -> bool:
        """Whether both are objects around the same environment, with other wrappers."""
        own = self._source
        return isinstance(own, gym.Env) and isinstance(source, gym.Env) and own.unwrapped is source.unwrapped

    def of_copies(self) -> EnvironmentMaker:
        """A maker of the same environments that never gives out the original object."""
        return EnvironmentMaker(self._source, original_first=False, action_bound=self._action_bound)

    def with_action_bound(self, bound: float | None) -> EnvironmentMaker:
        """A maker of the same environments, with bounds for actions that have none."""
        return self if bound is None else EnvironmentMaker(self._source, self._give_original, bound)

    @property
    def name(self) -> str:
        """The id, if there is one; a run can only be resumed by the command line if there is."""
        if isinstance(self._source, str):
            return self._source
        known = getattr(self._source, "spec", None)
        if known is None:
            return f"{_OBJECT}{getattr(self._source, '__name__', type(self._source).__name__)}"
        # With other wrappers or arguments than its id stands for, the id alone would bring back something else.
        plain = copy.deepcopy(known)
        plain.kwargs.pop("render_mode", None)
        return known.id if gym.registry.get(known.id) == plain else f"{_OBJECT}{known.id}"


def is_object(name: str) -> bool:
    """Whether a name stands for an environment object, which only the user can bring back."""
    return name.startswith(_OBJECT)


@contextmanager
def failures_named(doing: str, name: str = "the environment") -> Iterator[None]:
    """Say what the environment was doing when it failed, and where; the error itself is the cause."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"{name} failed in {doing}: {_told(error)}") from error


def screenless() -> bool:
    """Whether this is Linux without a screen, as on a server: no window can open."""
    return sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


_Origin = Literal["function", "object"]  # what an environment came from
_used: dict[int, tuple[weakref.ref[gym.Env], _Origin]] = {}  # environments in use, without wrappers, by their id


def _origin(env: gym.Env) -> _Origin | None:
    """Where the environment inside the wrappers came from before; None if it is a new one.

    Two that are one inside would play each other's episodes.
    """
    known, origin = _used.get(id(env.unwrapped), (None, None))
    return origin if known is not None and known() is env.unwrapped else None


def _note_use(env: gym.Env, origin: _Origin) -> None:
    _used[id(env.unwrapped)] = weakref.ref(env.unwrapped), origin


def _told(error: Exception) -> str:
    """What was raised, and where."""
    if isinstance(error, SyntaxError):  # it tells the place itself
        return f"{type(error).__name__}: {error}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"


def _make(name: str, **arguments: Any) -> gym.Env:
    """`gymnasium.make` with errors that help."""
    check_env_id(name)
    for prefix, package in _PACKAGES.items():
        if name.startswith(prefix):
            _import_package(name, package)
    module = module_of(name)
    if module is not None:
        _import_module(name, module)
    entry = gym.registry.get(name)
    if "AdroitHand" in name or (entry is not None and "mujoco" in str(entry.entry_point)):
        _log_mujoco_warnings()
    try:
        return gym.make(name, **arguments)
    except gym.error.DependencyNotInstalled as error:
        raise InputError(f"{name} needs a package that is missing: {error}") from None
    except (
        gym.error.UnregisteredEnv,
        gym.error.DeprecatedEnv,
        gym.error.Error,
        ModuleNotFoundError,
    ) as error:
        known = sorted(gym.registry)
        if name in known:
            raise InputError(f"{name} cannot be made: {error}") from None
        raise InputError(f"unknown environment {brief(name)}{_guess(name, known)}") from None


def _import_package(name: str, package: _Package) -> None:
    missing = [needed for needed in package.needed if importlib.util.find_spec(needed) is None]
    if missing:
        raise InputError(
            f"{name} needs the package {missing[0]}; install it with: pip install 'implicitq[{package.extra}]'"
        )
    if all(module in sys.modules for module in package.modules):
        return
    with warnings.catch_warnings():
        # Without a screen GLFW warns. dm_control takes that for success; an error makes it go on to EGL or OSMesa.
        warnings.filterwarnings("error", rf"\({_GLFW_WITHOUT_SCREEN}\)")
        for module in package.modules:
            importlib.import_module(module)


def _import_module(name: str, module: str) -> None:
    """The module of `module:Id`, which Gymnasium would import too, but without telling its errors apart."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        absent = error.name or module
        if module == absent or module.startswith(f"{absent}."):
            raise InputError(
                f"{brief(name)} names the module {brief(module)}, but there is no module {brief(absent)}; it must be "
                "installed, or on PYTHONPATH, or in the folder where the command is given if you name it there "
                "yourself (--env, --tasks)"
            ) from None
        raise InputError(
            f"the module {brief(module)} of {brief(name)} needs the package {absent}, which is missing"
        ) from None


def _log_mujoco_warnings() -> None:
    """By Python's logging: MuJoCo prints them once per environment, and to a file in the working folder."""
    try:
        import mujoco
    except ImportError:
        return
    # The stubs of MuJoCo lack these two.
    if mujoco.get_mju_user_warning() is None:  # pyright: ignore[reportAttributeAccessIssue]
        mujoco.set_mju_user_warning(_log_mujoco_warning)  # pyright: ignore[reportAttributeAccessIssue]


def _log_mujoco_warning(message: str) -> None:
    # Deprecations are about model files, which are not the user's. (An exception here would end the process.)
    level = logging.DEBUG if "deprecated" in message else logging.WARNING
    logging.getLogger("implicitq.mujoco").log(level, "MuJoCo: %s", message)


def _guess(name: str, known: list[str]) -> str:
    module = module_of(name)
    prefix = "" if module is None else f"{module}:"
    hint = nearest(name.removeprefix(prefix), known, prefix).split(" known: ")[0]
    return hint if len(hint) > 1 else f"; gymnasium knows {len(known)}, such as HalfCheetah-v5 and CartPole-v1"


def _duplicate(env: gym.Env) -> gym.Env:
    try:
        return copy.deepcopy(env)
    except Exception:
        pass
    try:
        if env.spec is not None:
            return gym.make(env.spec)
    except Exception:
        pass
    raise InputError(
        f"{env} can neither be copied nor made again from its spec, and more than one is needed (evaluation has "
        "environments of its own); give a function that makes the environment instead of the object"
    )
