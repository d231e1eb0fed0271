"""Legal moves only: take 1 to 3 of 13 stones in turn with a random player; whoever takes the last one wins."""

import gymnasium
import numpy as np

import implicitq

STONES = 13


class Stones(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(STONES + 1)  # stones that are left
    action_space = gymnasium.spaces.Discrete(3)  # take one, two or three

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = STONES
        return self.left, self._info()

    def step(self, action):
        self.left -= action + 1
        if self.left == 0:
            return self.left, 1.0, True, False, self._info()
        self.left -= self.np_random.integers(1, min(3, self.left), endpoint=True)
        lost = self.left == 0
        return int(self.left), -1.0 if lost else 0.0, bool(lost), False, self._info()

    def _info(self):
        return {"action_mask": np.arange(1, 4) <= self.left}  # nobody takes more than there are


if __name__ == "__main__":
    settings = {"hidden": (64, 64), "min_replay": 500, "eval_every": 1_000, "temperature": 0.2}
    with implicitq.make("miq", Stones, seed=0, **settings) as agent:
        agent.learn(4_000, progress=True)
        print(f"mean result of 100 games, 1 is a win: {agent.evaluate(episodes=100).mean:+.2f}")
        for left in range(1, 8):
            mask = np.arange(1, 4) <= left
            action, _ = agent.predict(left, deterministic=True, action_masks=mask)
            print(f"{left} left: take {action + 1}; worth {agent.value(left, action_masks=mask):+.2f}")
