"""DQN on CartPole-v1 with Conduit: two actor processes write, one learner samples, weights travel back.

    python examples/dqn.py            or, once Conduit is installed:  conduit demo

The learner is plain PyTorch: double DQN with n-step returns and prioritized replay. What Conduit does is
everything between `writer.append(...)` in `dqn_actor.py` and `replay.sample(...).torch()` below:

    actor 0 --append--> [ table `replay`  ] --sample--> learner
    actor 1 --append--> [ 50,000 steps    ] <--update_priorities--
       ^--sample------- [ table `control` ] <--extend-- (one row: newest weights, epsilon, step limit)

Seeds fix the networks, the environments and the draws; how the processes interleave is up to the machine.
Exit status: 0 solved, 1 budget spent without solving, 2 an error, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from dqn_actor import ENV, HIDDEN, OVER, FloatArray
from dqn_support.record import Clock, Run
from dqn_support.report import Progress, write_report
from dqn_support.team import ActorFailed, StopRequest, Team
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

import conduit

WAIT_S = 0.0005  # between two looks at whether the actors have brought enough


@dataclass(frozen=True)
class Settings:
    """What a run is made of. Env steps are counted over all actors."""

    steps: int = 200_000  # the budget: give up after so many
    seed: int = 1
    actors: int = 2
    envs_per_actor: int = 8
    target: float = 400.0  # solved when the mean return of the last 20 episodes reaches it
    out: Path = field(default_factory=lambda: Path("runs"))
    gamma: float = 0.99
    n_step: int = 3
    batch_size: int = 128
    learning_rate: float = 1e-3
    target_rate: float = 0.01  # how far the target network moves towards the online one in each update
    replay_size: int = 50_000
    warm_up_steps: int = 1_000
    steps_per_update: int = 4
    lead_steps: int = 256  # the actors wait when they are further ahead of the learner than this
    updates_per_round: int = 8  # between two publications of the weights
    epsilon_end: float = 0.02
    epsilon_steps: int = 15_000  # over which epsilon falls from 1 to `epsilon_end`


class DoubleDQN:
    """The networks and the rule that improves them; knows nothing of where its batches come from."""

    def __init__(self, inputs: int, actions: int, settings: Settings) -> None:
        self.settings = settings
        self.online, self.target = (self._network(inputs, actions) for _ in range(2))
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=settings.learning_rate, fused=True)

    @staticmethod
    def _network(inputs: int, actions: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for wide, narrow in pairwise((inputs, *HIDDEN, actions)):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def learn(self, batch: dict[str, Tensor]) -> Tensor:
        """One update from a batch of n rows; gives the rows' absolute TD errors, float32 (n,).

        `batch["reward"]` is the n-step return, `batch["discount"]` gamma^m, 0 where the episode terminated.
        """
        values = self.online(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
        with torch.no_grad():
            best = self.online(batch["next_obs"]).argmax(1, keepdim=True)
            bootstrap = self.target(batch["next_obs"]).gather(1, best)[:, 0]
            goal = batch["reward"] + batch["discount"] * bootstrap
        loss = (batch["weights"] * smooth_l1_loss(values, goal, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.online.parameters(), strict=True):
                old.lerp_(new, self.settings.target_rate)
        errors: Tensor = (goal - values.detach()).abs()
        return errors

    def parameters(self) -> FloatArray:
        """All weights as one float32 vector, copied."""
        vector: FloatArray = nn.utils.parameters_to_vector(self.online.parameters()).detach().numpy()
        return vector


class Learner:
    """Samples, learns, corrects priorities and publishes weights, a little with each `round()`."""

    def __init__(self, store: conduit.Store, settings: Settings, clock: Clock) -> None:
        env = gym.make(ENV)
        assert isinstance(env.observation_space, gym.spaces.Box)
        assert isinstance(env.action_space, gym.spaces.Discrete)
        torch.manual_seed(settings.seed)
        self.dqn = DoubleDQN(env.observation_space.shape[0], int(env.action_space.n), settings)
        self.store, self.settings, self.clock = store, settings, clock
        self.steps = self.updates = self.policy_version = 0
        self.replay = store.create_table(
            "replay",
            schema=conduit.Schema.from_spaces(env.observation_space, env.action_space),
            max_size=settings.replay_size,
            sampler=conduit.samplers.Prioritized(alpha=0.6, beta=0.4, eps=1e-3),
            window=conduit.windows.NStep(settings.n_step, gamma=settings.gamma),
            limiter=conduit.limiters.MinSize(settings.warm_up_steps),
            seed=settings.seed,
        )
        self.control = store.create_table(
            "control", schema=conduit.Schema.from_example(self._control_row()), max_size=1
        )
        self.publish()

    @property
    def steps_needed(self) -> int:
        """Env steps, over all actors, that the updates so far call for."""
        return self.settings.warm_up_steps + self.updates * self.settings.steps_per_update

    def round(self) -> None:
        """Learn a little and publish the weights, or, with too little experience for that, wait a little."""
        self.steps = self.store.metrics().tables["replay"].appended
        if self.steps < self.steps_needed:
            with self.clock("wait"):
                time.sleep(WAIT_S)
            return
        for _ in range(self.settings.updates_per_round):
            with self.clock("sample"):
                sampled = self.replay.sample(self.settings.batch_size, timeout=5.0)
                batch = sampled.torch()
            with self.clock("learn"):
                errors = self.dqn.learn(batch)
            with self.clock("priorities"):
                self.replay.update_priorities(sampled.keys, errors.numpy())
            self.updates += 1
        self.publish()

    def publish(self, *, over: bool = False) -> None:
        """Replace the control row: the table keeps one row, so the newest pushes the older out."""
        with self.clock("publish"):
            self.policy_version += 1
            row = self._control_row()
            if over:
                row["step_limit"] = np.array(OVER)
            self.control.extend({name: value[None] for name, value in row.items()})

    def _control_row(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of one row. Its steps are those of one actor, which may go on up to the limit."""
        settings = self.settings
        progress = min(1.0, self.updates * settings.steps_per_update / settings.epsilon_steps)
        step_limit = (self.steps_needed + settings.lead_steps) // settings.actors
        return {
            "parameters": self.dqn.parameters(),
            "policy_version": np.array(self.policy_version),
            "epsilon": np.array(1.0 + (settings.epsilon_end - 1.0) * progress),
            "steps": np.array(self.steps // settings.actors),
            "step_limit": np.array(step_limit),
        }


def train(settings: Settings, stop: StopRequest) -> Run:
    """Train until solved, the budget is spent or `stop` is set; ends the actors and the store."""
    run, clock = Run(settings.seed, settings.target, settings.steps), Clock()
    with conduit.Store.create(f"dqn-{os.getpid()}", host_memory="64MiB") as store:
        learner = Learner(store, settings, clock)
        team = Team(store.name, settings.actors, settings.envs_per_actor, settings.seed)
        with team, Progress(run, store.name) as progress:
            clock.start()
            while not (stop.requested or run.solved or run.steps >= settings.steps):
                learner.round()
                run.record(team.news(), clock.elapsed, learner.steps, learner.updates)
                progress.show()
            clock.stop()
            learner.publish(over=True)
        run.finish(clock, store.metrics().tables["replay"], team.spent, interrupted=stop.requested)
    return run


def main(argv: list[str]) -> int:
    """Read the command line, train, report."""
    defaults = Settings()
    parser = argparse.ArgumentParser(prog="dqn", description="Solve CartPole-v1 with Conduit.")
    for name, kind, what in (
        ("steps", int, "env steps to give up after"),
        ("seed", int, "seed of networks, environments and draws"),
        ("actors", int, "actor processes"),
        ("out", Path, "folder for the plot"),
    ):
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{what} ({default})")
    args = parser.parse_args(argv)
    settings = Settings(**vars(args))
    torch.set_num_threads(1)  # the networks are small: more threads only take the actors' cores
    with StopRequest() as stop:
        try:
            run = train(settings, stop)
        except (ActorFailed, conduit.ConduitError) as error:
            print(f"dqn: {error}", file=sys.stderr)
            return 2
    try:
        write_report(run, settings.out)
    except KeyboardInterrupt:  # a second Ctrl-C: the actors and the store are gone already
        return 130
    return run.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
