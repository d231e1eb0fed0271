"""Several seeds of one task, trained in lockstep in one process: one call updates all networks, one acts for all.

For small networks, where a call costs more than its arithmetic, and for accelerators, which one seed does not fill.
Every seed has its own environments, replay and random numbers; only the order of floating-point operations differs
from that of the seed alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from implicitq.events import Event
from implicitq.learner import REQUESTS, Draw, Learner, Request
from implicitq.train import Trainer
from implicitq.types import Array, InputError, Transition

_Actions = tuple[Array, Array]


class StackedLearners:
    """The states of learners that differ in their seeds only, with one more axis in front of every array.

    Updates need the stack; reading or writing the state of one learner needs its parts, the packed arrays of each. One
    is made from the other when needed.
    """

    def __init__(self, learners: Sequence[Learner]) -> None:
        self._learners = learners
        self._parts: list[list[jax.Array]] | None = [learner.packed for learner in learners]
        self._stacked: list[jax.Array] | None = None
        self._update_keys = jnp.stack([learner.key for learner in learners])
        self._act_keys = jnp.stack([learner.newest.key for learner in learners])
        for seat, learner in enumerate(learners):
            learner.join(self, seat, learners[0])

    def take(self, seat: int) -> list[jax.Array]:
        """The packed arrays of one learner."""
        return self._apart()[seat]

    def put(self, seat: int, packed: list[jax.Array]) -> None:
        """Replace the packed arrays of one learner."""
        self._apart()[seat] = packed
        self._stacked = None

    def wait(self) -> None:
        """Wait until the last update is done."""
        jax.block_until_ready(self._together())

    def answer(self, requests: Mapping[int, Request]) -> dict[int, _Actions | None]:
        """Answer the requests, by seat. All are of one kind; learners without a request keep their state."""
        some = next(iter(requests.values()))
        everyone = [requests.get(seat, some) for seat in range(len(self._learners))]
        if isinstance(some, Draw):
            return self._draw(requests, everyone)
        resting = {seat: self.take(seat) for seat in range(len(everyone)) if seat not in requests}
        batch = jax.tree.map(lambda *arrays: np.stack(arrays), *everyone)
        self._stacked = self._learners[0].update_stacked(self._together(), self._update_keys, batch)
        self._parts = None
        for seat, packed in resting.items():
            self.put(seat, packed)
        for seat, request in requests.items():
            assert isinstance(request, Transition)
            self._learners[seat].last = request
        return dict.fromkeys(requests)

    def _draw(self, requests: Mapping[int, Any], everyone: Sequence[Any]) -> dict[int, _Actions | None]:
        compiled, stacked = self._learners[0].newest.compiled, self._together()
        draw = compiled.uniforms if everyone[0].uniform else compiled.explores
        acting = [stacked[slot] for slot in self._learners[0].acting]
        observations, *masks = (
            np.stack(arrays) for arrays in zip(*((each.observation, *each.mask) for each in everyone), strict=True)
        )
        steps = np.array([each.step for each in everyone], np.uint32)
        stored, coordinates = map(np.asarray, draw(acting, self._act_keys, observations, steps, *masks))
        return {seat: (stored[seat], coordinates[seat]) for seat in requests}

    def _apart(self) -> list[list[jax.Array]]:
        if self._parts is None:
            self._parts = parts = _unstack(self._stacked)
            return parts
        return self._parts

    def _together(self) -> list[jax.Array]:
        if self._stacked is None:
            self._stacked = stacked = _stack(self._apart())
            return stacked
        return self._stacked


@jax.jit
def _stack(parts: list[list[jax.Array]]) -> list[jax.Array]:
    return [jnp.stack(arrays) for arrays in zip(*parts, strict=True)]


@jax.jit
def _unstack(stacked: list[jax.Array]) -> list[list[jax.Array]]:
    return [[array[seat] for array in stacked] for seat in range(len(stacked[0]))]


class Together:
    """Trainers in lockstep, whose configs differ in the seed only. There may be just one."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = trainers
        self.failures: dict[int, InputError] = {}  # by the number of the trainer
        self._stack = StackedLearners([trainer.learner for trainer in trainers]) if len(trainers) > 1 else None

    @property
    def step(self) -> int:
        return self.trainers[0].step

    def wait(self) -> None:
        """Wait until the last update is done."""
        if self._stack is None:
            self.trainers[0].learner.wait()
        else:
            self._stack.wait()

    def named(self, number: int, error: InputError) -> InputError:
        """The error of one trainer, with its seed in front if there are several."""
        if len(self.trainers) == 1:
            return error
        told = type(error)(f"seed {self.trainers[number].config.seed}: {error}")
        told.__cause__ = error
        return told

    def raise_failures(self) -> None:
        """Raise the first failure, if there is any."""
        for number, error in self.failures.items():
            raise self.named(number, error)

    def run(self, until: int) -> Iterator[dict[int, Event]]:
        """Train up to the environment step `until`: the events of all trainers, by their numbers; all of one kind.

        A trainer that fails is left out from there on, and noted in `failures`.
        """
        self.failures = {}
        running = {number: trainer.steps(until) for number, trainer in enumerate(self.trainers)}
        answers: dict[int, _Actions | None] = dict.fromkeys(running)
        while items := self._advance(running, answers):
            requests = {number: item for number, item in items.items() if isinstance(item, REQUESTS)}
            events = {number: item for number, item in items.items() if not isinstance(item, REQUESTS)}
            assert not (requests and events), "trainers are out of step"
            if requests:
                answers = self._answer(requests)
            else:
                yield events
                answers = dict.fromkeys(events)

    def _advance(
        self, running: dict[int, Generator[Event | Request, Any, None]], answers: Mapping[int, _Actions | None]
    ) -> dict[int, Event | Request]:
        """The next event or request of every trainer that neither ends nor fails."""
        items = {}
        for number, steps in list(running.items()):
            try:
                items[number] = steps.send(answers[number])
            except StopIteration:
                del running[number]
            except InputError as error:
                self.failures[number] = error
                del running[number]
        return items

    def _answer(self, requests: dict[int, Request]) -> dict[int, _Actions | None]:
        if self._stack is not None:
            return self._stack.answer(requests)
        return {number: self.trainers[number].learner.answer(request) for number, request in requests.items()}
