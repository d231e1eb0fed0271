"""A finite MDP as a Gymnasium environment; imported on demand, so that the theory needs no Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from implicitq.theory.mdp import FiniteMDP


class MDPEnvironment(gymnasium.Env[Any, Any]):
    """Steps through the MDP; the observation is the number of the state."""

    metadata = {"render_modes": []}  # noqa: RUF012 - the name and type are Gymnasium's

    def __init__(self, mdp: FiniteMDP, start: np.ndarray, horizon: int) -> None:
        self.mdp, self.start, self.horizon = mdp, start, horizon
        self.observation_space = gymnasium.spaces.Discrete(mdp.states)
        self.action_space = gymnasium.spaces.Discrete(mdp.actions)
        self._cumulative_start = np.cumsum(start)
        self._state, self._steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._steps = self._draw(self._cumulative_start), 0
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action must be an integer from 0 to {self.mdp.actions - 1}, got {action!r}.")
        row = self._state * self.mdp.actions + int(action)
        reward = float(self.mdp.r[self._state, int(action)])
        rows = self.mdp.csr
        first, last = rows.indptr[row], rows.indptr[row + 1]
        self._state = int(rows.indices[first + self._draw(np.cumsum(rows.data[first:last]))])
        self._steps += 1
        return self._state, reward, False, self._steps >= self.horizon, {}

    def _draw(self, cumulative: np.ndarray) -> int:
        point = self.np_random.random() * cumulative[-1]
        return int(np.searchsorted(cumulative, point, side="right"))
