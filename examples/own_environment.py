"""An environment of your own: keep a room at 20 degrees. A class, a time limit, and a function that makes it."""

import gymnasium
import numpy as np

import implicitq


class Room(gymnasium.Env):
    """Heat or cool a room that follows the weather outside; the reward is how close it is to 20 degrees."""

    observation_space = gymnasium.spaces.Box(-50, 80, (2,), np.float32)  # inside, outside
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)  # cool with all power ... heat with all power

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # all that is random comes from self.np_random: then runs resume exactly
        self.inside, self.outside = self.np_random.uniform(10, 30), self.np_random.uniform(-5, 35)
        return self._observation(), {}

    def step(self, action):
        self.outside += self.np_random.normal(0, 0.3)
        self.inside += 0.1 * (self.outside - self.inside) + 2.5 * float(action[0])
        reward = 1 - abs(self.inside - 20) / 10
        return self._observation(), reward, False, False, {}  # it never terminates: the time limit cuts it

    def _observation(self):
        return np.array([self.inside, self.outside], np.float32)


def make_room() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Room(), 100)


if __name__ == "__main__":
    settings = {"hidden": (64, 64), "min_replay": 1_000, "normalize_observations": True}
    with implicitq.make("miq", make_room, seed=0, **settings) as agent:
        print(f"before: {agent.evaluate().mean:.1f} of at most 100")
        agent.learn(6_000, progress=True)
        print(f"after: {agent.evaluate().mean:.1f}")
        for inside in (12.0, 20.0, 28.0):
            action, _ = agent.predict(np.array([inside, 15.0], np.float32), deterministic=True)
            print(f"{inside:.0f} degrees inside, 15 outside: heat with {action[0]:+.2f}")
