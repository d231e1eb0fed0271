"""Train an agent, evaluate it, save it, and use what was saved. Takes about a minute."""

import gymnasium

import implicitq

if __name__ == "__main__":
    with implicitq.make("miq", "CartPole-v1", seed=0) as agent:
        agent.learn(10_000, progress=True)
        print(f"mean return of 20 episodes: {agent.evaluate(episodes=20).mean:.0f}")
        agent.save("cartpole.policy")

    policy = implicitq.load("cartpole.policy")
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=1)
    total, done = 0.0, False
    while not done:
        action, _ = policy.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, done = total + float(reward), terminated or truncated
    print(f"one episode with the loaded policy: {total:.0f}")
