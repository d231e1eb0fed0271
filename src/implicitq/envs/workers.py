"""Where an environment lives: in this process, or in a process of its own that may die or hang without harm.

Both are asked first and answer later, so that processes work side by side.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol

import gymnasium as gym
from gymnasium.vector.utils import CloudpickleWrapper

from implicitq.envs.adapter import Adapter
from implicitq.envs.making import EnvironmentFailed, EnvironmentMaker
from implicitq.envs.statistics import State
from implicitq.types import InputError

_NO_MAIN_GUARD = 81  # exit code of a worker that was about to run the user's script once more
_SAFE_PATH = "PYTHONSAFEPATH"
_PATIENCE = 10.0  # seconds for an environment to close and its process to end


class Worker(Protocol):
    observation_space: gym.Space  # both known once it is `ready`
    action_space: gym.Space

    @property
    def statistics(self) -> State:
        """Running statistics of its wrappers, as of its last answer."""
        ...

    def ready(self) -> None:
        """Wait until the environment is made."""
        ...

    def ask(self, call: str, *arguments: Any) -> None:
        """Call a method of the `Adapter`; exactly one `answer` has to follow."""
        ...

    def answer(self) -> Any:
        """What the call returned; `EnvironmentFailed` if the environment raised, died or hung."""
        ...

    def close(self) -> None:
        """Never raises, and can be called again."""
        ...


class InProcess:
    """An environment in this process, which does what it was asked when the answer is wanted."""

    def __init__(self, maker: EnvironmentMaker, name: str) -> None:
        self.adapter = Adapter(maker(), name)
        self.observation_space, self.action_space = self.adapter.observation_space, self.adapter.action_space
        self._open = True

    @property
    def statistics(self) -> State:
        return self.adapter.statistics.read()

    def ready(self) -> None:
        pass

    def ask(self, call: str, *arguments: Any) -> None:
        self._asked = getattr(self.adapter, call), arguments

    def answer(self) -> Any:
        function, arguments = self._asked
        return function(*arguments)

    def close(self) -> None:
        if self._open:
            self._open = False
            self.adapter.close()


class OwnProcess:
    """An environment in a process of its own, started afresh: forking a process that runs JAX threads can hang."""

    def __init__(self, maker: EnvironmentMaker, name: str, timeout: float | None) -> None:
        """`timeout`: the most seconds that a call may take; None: no limit."""
        _refuse_second_run_of_script()
        self._name, self._timeout = name, timeout
        self._statistics: State = {}
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = CloudpickleWrapper(maker), name, theirs
        self._process = context.Process(target=_serve, args=arguments, name=f"implicitq, {name}", daemon=True)
        self._waiting = True  # for an answer; it may never come
        self._open = True
        try:
            with _safe_path():
                self._process.start()
        except Exception as error:
            self._open = False
            self._pipe.close()
            raise InputError(
                f"{name} cannot be sent to a process of its own: {type(error).__name__}: {error}; give an id or a "
                "function that makes it, or use vectorization 'sync'"
            ) from error
        finally:
            theirs.close()

    @property
    def statistics(self) -> State:
        return self._statistics

    def ready(self) -> None:
        self._call, self._deadline = "starting", None  # that Python takes long to start is not the environment's fault
        self.answer()
        self._expect("making")
        self.observation_space, self.action_space = self.answer()

    def ask(self, call: str, *arguments: Any) -> None:
        steps = len(arguments[1]) if call == "reset" else 0  # to repeat, each of which may take as long as any call
        self._expect("repeating the steps of its episode" if steps else call, 1 + steps)
        with suppress(OSError):  # of a dead process; `answer` finds out
            self._pipe.send((call, arguments))

    def answer(self) -> Any:
        try:
            if self._deadline is not None and not self._pipe.poll(max(0.0, self._deadline - time.monotonic())):
                raise EnvironmentFailed(
                    f"{self._name} did not answer within {self._allowed:g} seconds in {self._call} (env_timeout)"
                )
            kind, content, self._statistics = self._pipe.recv()
        except (EOFError, OSError):
            raise self._death() from None
        self._waiting = False
        if kind != "done":
            raise (EnvironmentFailed if kind == "failed" else InputError)(content)
        return content

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if not self._waiting:
            self._ask_to_close()
        self._pipe.close()
        self._process.kill()  # nothing happens to one that has ended
        self._process.join()
        self._process.close()

    def _expect(self, call: str, calls: int = 1) -> None:
        self._call, self._waiting, self._deadline = call, True, None
        if self._timeout is not None:
            self._allowed = self._timeout * calls
            self._deadline = time.monotonic() + self._allowed

    def _ask_to_close(self) -> None:
        try:
            self._pipe.send(("close", ()))
            if self._pipe.poll(_PATIENCE):
                texts = self._pipe.recv()
                self._process.join(_PATIENCE)
            else:
                texts = [f"{self._name} did not close within {_PATIENCE:g} seconds; its process was killed"]
        except (EOFError, OSError):  # it has ended already, as after an environment that could not be made
            return
        for text in texts:
            warnings.warn(text, stacklevel=4)

    def _death(self) -> InputError:
        self._process.join(_PATIENCE)
        code = self._process.exitcode
        if code == _NO_MAIN_GUARD:
            return InputError(
                "with vectorization 'async' every environment has a process of its own, which first runs your script "
                'again: put what the script does below `if __name__ == "__main__":`'
            )
        if code is None:
            how = "closed its connection"
        elif code >= 0:
            how = f"ended with exit code {code}"
        else:
            how = f"was killed by signal {-code} ({_signal_name(-code)})"
        return EnvironmentFailed(f"the process of {self._name} {how} in {self._call}")


@contextmanager
def _safe_path() -> Iterator[None]:
    """Python that starts meanwhile imports nothing from the working folder by itself: it may be that of a stranger.

    A process of `multiprocessing` then takes over the path of this one.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _serve(maker: Callable[[], gym.Env], name: str, pipe: Connection) -> None:
    """The life of a worker process."""
    _leave_group()
    with suppress(EOFError, OSError):  # of the pipe: the run is gone
        pipe.send(("done", None, {}))
        made = _outcome(lambda: Adapter(maker(), name))
        if made[0] != "done":
            pipe.send((*made, {}))
            return
        adapter: Adapter = made[1]
        pipe.send(("done", (adapter.observation_space, adapter.action_space), adapter.statistics.read()))
        while (asked := pipe.recv())[0] != "close":
            call, arguments = asked
            pipe.send((*_outcome(getattr(adapter, call), *arguments), adapter.statistics.read()))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapter.close()
        pipe.send([str(warning.message) for warning in caught])


def _outcome(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Errors travel as their sentences: not every error can."""
    try:
        return "done", function(*arguments)
    except EnvironmentFailed as error:
        return "failed", str(error)
    except InputError as error:
        return "refused", str(error)


def _refuse_second_run_of_script() -> None:
    """A worker first imports the user's script; one without a guard would start workers of its own from there."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_NO_MAIN_GUARD)  # at once, whatever the script would do about an error; the run says the sentence


def _leave_group() -> None:
    """Ctrl-C in a terminal and the SIGTERM of `timeout` go to a whole group of processes; a worker has to live until
    the checkpoint is written."""
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        os.setpgid(0, 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "of no name"
