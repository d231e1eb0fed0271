"""Stop early, keep the best policy, and do something of your own while a run goes on."""

import implicitq
from implicitq import callbacks
from implicitq.events import Event, Measured


class EntropyWatch:
    """Stops the run when the policy has become deterministic; a listener is an object with on_event."""

    def __init__(self, least: float) -> None:
        self.least = least

    def on_event(self, event: Event) -> bool | None:
        if isinstance(event, Measured):
            entropy = event.values["entropy_per_dimension"]
            print(f"step {event.step:,}: {entropy:.2f} nats")
            return not entropy < self.least  # False stops the run, after a checkpoint
        return None


if __name__ == "__main__":
    with implicitq.make("miq", "CartPole-v1", seed=0, eval_every=500) as agent:
        agent.learn(
            10_000,
            callback=[
                callbacks.stop_at(return_=300),
                callbacks.keep_best("best.policy"),
                callbacks.every(2_000, lambda event: print(f"step {event.step:,} is done")),
            ],
            listeners=[EntropyWatch(least=0.001)],
        )
        print(f"stopped at step {agent.step:,}")
    print(f"the best policy: {implicitq.load('best.policy').evaluate(episodes=20).mean:.0f}")
