"""The replay: a FIFO ring of rows per environment that stores every observation once.

A row is (observation, action, reward, flag); the next observation of a row is the observation of the row after it.
The last observation of an episode gets a row of its own that is never sampled as a start, and so does the newest
observation, whose action is not known yet. `replay_size` counts rows. Where environments give action masks, a row also
has that of its observation, a bit for every choice.

Shapes: E environments, C rows per ring, B batch, O observation features, D action dimensions, N categories.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from implicitq.types import Array, InputError, LaterSteps, Transition, Visited

_FLOAT = np.dtype(np.float32)

_OPEN = 0  # newest observation of a ring, or a row never written
_STEP = 1  # an action was taken here and the episode went on, or was cut by a time limit
_TERMINAL_STEP = 2  # an action was taken here and the episode terminated
_LAST = 3  # last observation of an episode: no action

_SCATTER = 2654435761  # 2^32 over the golden ratio: multiples of it look random in their upper bits
_PATIENCE = 100  # draws after which a part of a batch takes rows of another

_LATELY = 8_192  # steps that count as the latest ones, over all environments
_VISITED = 64  # how many of their states a batch shows


class Episode(NamedTuple):
    """An episode of L steps, with its last observation, at which no action was taken."""

    observations: Array  # [L + 1, O]
    actions: Array  # [L + 1, D], as they are stored; the last means nothing
    rewards: Array  # [L]
    terminated: bool  # and not cut by a time limit
    masks: Array | None = None  # [L + 1, D, N], where the environment gives action masks


class Replay:
    def __init__(
        self,
        *,
        rows: int,
        num_envs: int,
        observation_size: int,
        action_dimensions: int,
        action_dtype: np.dtype,
        generator: np.random.Generator,
        discount: float,
        n_step: int = 1,
        later_steps: bool = False,
        mask_shape: tuple[int, int] | None = None,
        observation_dtype: np.dtype = _FLOAT,
        parts: int = 1,
        visited: bool = False,
    ) -> None:
        """Samples are n-step returns; `later_steps`: with the observations and actions of steps 1 to n - 1; `visited`:
        with states of the latest steps.

        Batches have `parts` equal parts, one after the other, and every row belongs to one part for good.
        """
        self._capacity = rows // num_envs  # C
        total = self._capacity * num_envs
        self._observations = np.zeros((total, observation_size), observation_dtype)
        self._actions = np.zeros((total, action_dimensions), action_dtype)
        self._rewards = np.zeros(total, np.float32)
        self._flags = np.zeros(total, np.uint8)
        self._masks: Array | None = None  # as bits; made when the first one comes
        self._mask_shape = mask_shape
        self._base = np.arange(num_envs) * self._capacity
        self._written = np.zeros(num_envs, np.int64)  # rows completed since the start, per ring
        self._generator = generator
        self._n_step, self._later_steps, self._parts, self._visits = n_step, later_steps, parts, visited
        self._powers = np.multiply.accumulate(np.full(n_step, discount, np.float32))  # of the discount, from the first

    @staticmethod
    def row_bytes(
        observation_size: int,
        action_dimensions: int,
        action_dtype: np.dtype,
        mask_shape: tuple[int, int] | None = None,
        observation_dtype: np.dtype = _FLOAT,
    ) -> int:
        """Memory of one row: observation, action, reward, flag, and the action mask if there is one."""
        mask = 0 if mask_shape is None else _mask_bytes(mask_shape)
        return observation_dtype.itemsize * observation_size + action_dtype.itemsize * action_dimensions + 4 + 1 + mask

    @property
    def nbytes(self) -> int:
        """Memory of a full replay."""
        return sum(column.nbytes for column in self._columns().values())

    @property
    def written(self) -> Array:
        """Rows completed since the start, per environment: [E]."""
        return self._written.copy()

    def begin(self, which: Array, observations: Array, masks: Array | None = None) -> None:
        """First observation of a new episode in the environments of the mask `which` [E]; [E, O], [E, D, N]."""
        rows = self._open_rows()[which]
        self._observations[rows] = observations[which]
        if masks is not None:
            self._write_masks(rows, masks[which])
        self._flags[rows] = _OPEN

    def add(
        self,
        actions: Array,
        rewards: Array,
        terminated: Array,
        truncated: Array,
        next_observations: Array,
        next_masks: Array | None = None,
    ) -> None:
        """One step of every environment: [E, D], [E], [E], [E], [E, O], [E, D, N]. Ended episodes need `begin` next."""
        rows = self._open_rows()
        self._actions[rows] = actions
        self._rewards[rows] = rewards
        self._flags[rows] = np.where(terminated, _TERMINAL_STEP, _STEP)
        self._written += 1
        rows = self._open_rows()
        self._observations[rows] = next_observations
        if next_masks is not None:
            self._write_masks(rows, next_masks)
        ended = terminated | truncated
        self._flags[rows] = np.where(ended, _LAST, _OPEN)
        self._written += ended

    def sample(self, batch_size: int) -> Transition[Array]:
        """A uniform batch of transitions, with n-step returns that stop at the end of the episode."""
        start = self._draw(batch_size)
        if self._n_step == 1:
            row, reward, weight, weights = start, self._rewards[start], self._powers[0], None
        else:
            reward, weights, count = self._returns(start)
            row, weight = self._ahead(start, count), self._powers[count]
        last = self._ahead(row, 1)
        return Transition(
            observation=self._observations.take(start, axis=0),
            action=self._actions.take(start, axis=0),
            reward=reward,
            discount=np.where(self._flags[row] == _TERMINAL_STEP, np.float32(0), weight),
            next_observation=self._observations.take(last, axis=0),
            later_weight=None if weights is None else weights.sum(axis=0),
            later_steps=None if weights is None or not self._later_steps else self._steps(start, weights),
            mask=self._read_masks(start),
            next_mask=self._read_masks(last),
            visited=self._visited() if self._visits else None,
        )

    def _visited(self) -> Visited[Array]:
        """States of the latest steps of all rings, or of as many rings as there is room for.

        Which they are follows from what was written: nothing is drawn. They are evenly spaced, over what there is
        as long as that is less.
        """
        rings = np.arange(0, len(self._base), math.ceil(len(self._base) / _VISITED))
        of_each = _VISITED // len(rings)
        held = np.minimum(self._written[rings], self._capacity - 1)
        reach = np.clip(held - 1, 1, _LATELY // _VISITED * of_each)  # in rows
        age = 1 + np.arange(of_each)[:, None] * reach // of_each  # [of_each, rings]

        def rows(age: Array) -> Array:
            return self._base[rings] + (self._written[rings] - age) % self._capacity

        lasts = self._flags[rows(age)] == _LAST  # no action is taken there, and their masks mean nothing
        chosen = rows(age + lasts).ravel()
        return Visited(self._observations[chosen], self._read_masks(chosen))

    def _returns(self, start: Array) -> tuple[Array, Array, Array]:
        """n-step returns of rewards [B], the weights of steps 1 to n - 1 in them [n - 1, B], and how many count [B].

        Steps after the end of an episode have weight zero.
        """
        path = self._ahead(start, np.arange(self._n_step)[:, None])  # [n, B]
        flags = self._flags[path]
        taken = (flags[1:] == _STEP) | (flags[1:] == _TERMINAL_STEP)
        goes_on = np.logical_and.accumulate((flags[:-1] == _STEP) & taken, axis=0)
        weights = np.where(goes_on, self._powers[:-1, None], np.float32(0))
        rewards = self._rewards[path]
        rewards[1:] *= weights
        return rewards.sum(axis=0), weights, goes_on.sum(axis=0)

    def _steps(self, start: Array, weights: Array) -> LaterSteps[Array]:
        """Steps 1 to n - 1; in place of those that do not count, the last one that does."""
        count = np.cumsum(weights > 0, axis=0)  # [n - 1, B]
        chosen = self._ahead(start, count).T  # [B, n - 1]
        return LaterSteps(self._observations[chosen], self._actions[chosen], weights.T, self._read_masks(chosen))

    def largest_reward(self) -> float:
        """The largest absolute reward of all rows."""
        return float(np.abs(self._rewards).max())

    def episodes(self, since: Array) -> tuple[list[Episode], Array]:
        """Whole episodes among the rows counted from `since` [E], and from where to look for the next ones: [E].

        An episode whose beginning has left the ring is passed over.
        """
        found, following = [], np.array(since)
        for ring, (start, oldest, written) in enumerate(zip(since, self.oldest, self._written, strict=True)):
            first = max(start, oldest)
            rows = self._base[ring] + np.arange(first, written) % self._capacity
            begin, whole = 0, start >= oldest
            for end in np.flatnonzero(self._flags[rows] == _LAST):
                if whole and end > begin:
                    found.append(self._episode(rows[begin : end + 1]))
                begin, whole = end + 1, True
            if begin:
                following[ring] = first + begin
        return found, following

    def _episode(self, rows: Array) -> Episode:
        terminated = bool(self._flags[rows[-2]] == _TERMINAL_STEP)
        taken = self._actions[rows], self._rewards[rows[:-1]]
        return Episode(self._observations[rows], *taken, terminated, self._read_masks(rows))

    @property
    def most_rows(self) -> int:
        """Completed rows that the ring of an environment can hold, beside the newest observation."""
        return self._capacity - 1

    @property
    def oldest(self) -> Array:
        """Count of the oldest row still held, per environment: [E]."""
        return np.maximum(0, self._written - self.most_rows)

    def rows(self, first: Array, until: Array) -> dict[str, Array]:
        """Completed rows counted from `first` to `until` [E], environment after environment."""
        positions = self._positions(first, until)
        return {name: column[positions] for name, column in self._columns().items()}

    def clear(self) -> None:
        """Forget all rows."""
        self._flags[:] = _OPEN
        self._written[:] = 0

    def restore_rows(self, arrays: dict[str, Array], first: Array, until: Array) -> None:
        """Put back what `rows` gave, oldest first."""
        positions = self._positions(first, until)
        if "masks" in arrays and self._masks is None:
            self._make_masks()
        for name, column in self._columns().items():
            found = arrays.get(name)
            if found is None or found.shape != (len(positions), *column.shape[1:]) or found.dtype != column.dtype:
                came = f"no {name}" if found is None else f"{name} of {found.dtype}{list(found.shape)}"
                raise InputError(
                    f"a replay segment has {came}, expected {column.dtype}{[len(positions), *column.shape[1:]]}"
                )
            column[positions] = found
        self._written = np.array(until, np.int64)

    def append_rows(self, arrays: dict[str, Array], counts: Array) -> None:
        """Put rows of `rows` behind those that are here, `counts` [E] of them, under whatever number comes next."""
        self.restore_rows(arrays, self._written, self._written + counts)

    def end_at_gap(self) -> None:
        """Close the newest episodes as a time limit would, at their last observation: what came next is lost."""
        begun = self._written > 0
        self._flags[(self._base + (self._written - 1) % self._capacity)[begun]] = _LAST

    def state(self) -> dict[str, Any]:
        """The generator, as plain data; rows travel in segments."""
        return {"written": self._written.tolist(), "generator": self._generator.bit_generator.state}

    def restore_state(self, state: dict[str, Any], open_observations: Array, open_masks: Array | None = None) -> None:
        """Inverse of `state`, once all rows are back; open_observations [E, O], open_masks [E, D, N]."""
        if self._written.tolist() != state["written"]:
            raise InputError(f"the replay has {self._written.tolist()} rows, expected {state['written']}")
        self._generator.bit_generator.state = state["generator"]
        self.begin(np.ones(len(self._base), bool), open_observations, open_masks)

    def end_open_episodes(self, which: Array) -> None:
        """Close the current episodes of the mask `which` [E] as a time limit would, without a further step."""
        self._flags[self._open_rows()[which]] = _LAST
        self._written += which

    def _columns(self) -> dict[str, Array]:
        return {
            "observations": self._observations,
            "actions": self._actions,
            "rewards": self._rewards,
            "flags": self._flags,
            **({} if self._masks is None else {"masks": self._masks}),
        }

    def _make_masks(self) -> None:
        if self._mask_shape is None:
            raise InputError("there are action masks, but the actions are continuous")
        self._masks = np.zeros((len(self._flags), _mask_bytes(self._mask_shape)), np.uint8)

    def _write_masks(self, rows: Array, masks: Array) -> None:
        if self._masks is None:
            self._make_masks()
        assert self._masks is not None
        self._masks[rows] = np.packbits(masks.reshape(len(rows), -1), axis=-1)

    def _read_masks(self, rows: Array) -> Array | None:
        """[...] -> [..., D, N]."""
        if self._masks is None or self._mask_shape is None:
            return None
        bits = np.unpackbits(self._masks[rows], axis=-1, count=math.prod(self._mask_shape))
        return bits.view(bool).reshape(*rows.shape, *self._mask_shape)

    def _open_rows(self) -> Array:
        return self._base + self._written % self._capacity

    def _positions(self, first: Array, until: Array) -> Array:
        return np.concatenate(
            [
                base + np.arange(start, stop) % self._capacity
                for base, start, stop in zip(self._base, first, until, strict=True)
            ]
        )

    def _ahead(self, rows: Array, steps: Array | int) -> Array:
        """The rows `steps` further on, in the same rings."""
        end = self._capacity if len(self._base) == 1 else (rows // self._capacity + 1) * self._capacity
        there = rows + steps
        return np.where(there < end, there, there - self._capacity)

    def _draw(self, batch_size: int) -> Array:
        """Rows with an action, uniformly: draw from all rows, draw again where there was none.

        A part of a batch draws from the rows of its own. Where there are hardly any, it takes what there is.
        """
        filled = min(int(self._written.max()), self._capacity)
        owner = np.repeat(np.arange(self._parts), batch_size // self._parts)  # the rest is left out
        rows, attempts = self._draw_any(owner, filled), 0
        while (wrong := self._without_action(rows)).size:
            attempts += 1
            rows[wrong] = self._draw_any((owner[wrong] + attempts // _PATIENCE) % self._parts, filled)
        return rows

    def _without_action(self, rows: Array) -> Array:
        """Where in `rows` no action was taken."""
        flags = self._flags[rows]
        return np.flatnonzero((flags != _STEP) & (flags != _TERMINAL_STEP))

    def _draw_any(self, owner: Array, filled: int) -> Array:
        """A row for each entry of `owner`, uniformly over the rows of that part.

        Of every P neighbouring rows, with P parts, each part has one. Which it is turns from one such block to the
        next, in a way that looks random.
        """
        parts = self._parts
        blocks = -(-filled // parts)
        drawn = self._generator.integers(len(self._base) * blocks, size=len(owner))
        ring, block = (0, drawn) if len(self._base) == 1 else np.divmod(drawn, blocks)
        base = self._base[ring]
        if parts == 1:
            return base + block
        turn = ((block + base) * _SCATTER & 0xFFFFFFFF) >> 16
        position = block * parts + (owner + turn) % parts
        if blocks * parts <= self._capacity:
            return base + position
        # The last block does not fit; the open row has no action and is refused.
        return np.where(position < self._capacity, base + position, self._open_rows()[ring])


def _mask_bytes(shape: tuple[int, int]) -> int:
    return -(-math.prod(shape) // 8)
