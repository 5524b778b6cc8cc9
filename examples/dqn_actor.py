"""An actor of the DQN example: plays CartPole-v1 and writes every step into a Conduit table.

    python examples/dqn_actor.py STORE [--index 0] [--envs 8] [--seed 1]

`dqn.py` starts two of these. Any other process that knows the store's name may join while training runs.
An actor imports NumPy and gymnasium, never torch: its policy is three matrix products.

Prints a JSON object a line: {"ready": pid}, then one for each finished episode with the time spent so far.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise

import gymnasium as gym
import numpy as np
import numpy.typing as npt

import conduit

ENV = "CartPole-v1"
HIDDEN = (128, 128)  # widths of the policy's hidden layers, the same for actors and learner
OVER = -1  # as `step_limit` of the control row: training is over
VECTOR_STEPS_A_READ = 4  # how often an actor that plays looks at the control row
PAUSE_S = 0.001  # how often one that waits does

FloatArray = npt.NDArray[np.float32]


class Policy:
    """A multi-layer perceptron over one flat vector, laid out as torch's `parameters_to_vector` does."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.widths = widths
        self._layers: list[tuple[FloatArray, FloatArray]] = []

    def load(self, parameters: FloatArray) -> None:
        """Take float32 `parameters`, shape (count,): for each layer its weight (out, in), then its bias."""
        self._layers, start = [], 0
        for inputs, outputs in pairwise(self.widths):
            end = start + inputs * outputs
            weight = parameters[start:end].reshape(outputs, inputs)
            self._layers.append((weight.T, parameters[end : end + outputs]))
            start = end + outputs

    def __call__(self, obs: FloatArray) -> npt.NDArray[np.int64]:
        """The greedy action of each row of `obs`, shape (n, inputs)."""
        values = obs
        for weight, bias in self._layers[:-1]:
            values = np.maximum(values @ weight + bias, 0)
        weight, bias = self._layers[-1]
        best: npt.NDArray[np.int64] = np.argmax(values @ weight + bias, axis=1)
        return best


@dataclass
class Spent:
    """Where an actor's time went."""

    play_s: float = 0.0  # policy and environment
    ingest_s: float = 0.0  # writer.append
    control_s: float = 0.0  # reading the control row
    paused_s: float = 0.0  # told to wait for the learner
    appends: int = 0


class Actor:
    """Some environments, the policy that plays them, and the tables that they are connected to."""

    def __init__(self, store: conduit.Store, index: int, num_envs: int, seed: int) -> None:
        self.index, self.num_envs = index, num_envs
        self.replay, self.control = store.table("replay"), store.table("control")
        self.envs = gym.make_vec(ENV, num_envs=num_envs, vectorization_mode="sync")
        env_seed, explore_seed = np.random.SeedSequence((seed, index)).spawn(2)
        self.env_seed = int(env_seed.generate_state(1)[0])
        self.rng = np.random.default_rng(explore_seed)
        observations, actions = self.envs.single_observation_space, self.envs.single_action_space
        assert isinstance(observations, gym.spaces.Box)
        assert isinstance(actions, gym.spaces.Discrete)
        self.num_actions = int(actions.n)
        self.policy = Policy((observations.shape[0], *HIDDEN, self.num_actions))
        self.spent = Spent()
        self.policy_version, self.epsilon = -1, 1.0
        self.returns = np.zeros(num_envs)  # of the running episodes
        self.resetting = np.zeros(num_envs, bool)  # these spend their next step on a reset
        # Env steps, to hold against the control row's `step_limit`; one that joins late need not catch up.
        self.steps = int(self.control.sample(1)["steps"][0])

    def run(self, parent: int) -> None:
        """Play until the learner says that training is over, or the process `parent` has died."""
        obs, _ = self.envs.reset(seed=self.env_seed)
        with self.replay.writer(num_envs=self.num_envs) as writer:
            while (step_limit := self.read_control()) != OVER and os.getppid() == parent:
                if self.steps >= step_limit:
                    started = time.perf_counter()
                    time.sleep(PAUSE_S)
                    self.spent.paused_s += time.perf_counter() - started
                    continue
                for _ in range(VECTOR_STEPS_A_READ):
                    obs = self.step(writer, obs)
        self.say({"spent": asdict(self.spent)})

    def step(self, writer: conduit.VectorWriter, obs: FloatArray) -> FloatArray:
        """Step every environment and append the steps; gives the next observations.

        After an episode's last step gymnasium spends one call on the reset ("next_step" autoreset). The
        writer knows: of that row it keeps the observation, as the last one of the old episode, and no more.
        """
        started = time.perf_counter()
        explore = self.rng.random(self.num_envs) < self.epsilon
        action = np.where(explore, self.rng.integers(self.num_actions, size=self.num_envs), self.policy(obs))
        next_obs: FloatArray
        next_obs, reward, terminated, truncated, _ = self.envs.step(action)
        stepped = time.perf_counter()
        writer.append(
            obs=obs,
            action=action,
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
        )
        self.spent.play_s += stepped - started
        self.spent.ingest_s += time.perf_counter() - stepped
        self.spent.appends += 1

        self.steps += self.num_envs - int(self.resetting.sum())
        self.resetting = terminated | truncated
        self.returns += reward
        for env in np.flatnonzero(self.resetting):
            self.say({"return": float(self.returns[env]), "spent": asdict(self.spent)})
            self.returns[env] = 0.0
        return next_obs

    def read_control(self) -> int:
        """Take newer weights, if any, and return the step limit. The table has one row: any sample is it."""
        started = time.perf_counter()
        row = self.control.sample(1, timeout=30.0)
        if int(row["policy_version"][0]) != self.policy_version:
            self.policy.load(row["parameters"][0])
            self.policy_version, self.epsilon = int(row["policy_version"][0]), float(row["epsilon"][0])
        self.spent.control_s += time.perf_counter() - started
        return int(row["step_limit"][0])

    def say(self, record: dict[str, object]) -> None:
        """Tell whoever reads stdout, unbuffered."""
        os.write(1, json.dumps({"actor": self.index, **record}).encode() + b"\n")


def main(argv: list[str]) -> int:
    """Attach to the store named on the command line and play."""
    parser = argparse.ArgumentParser(prog="dqn_actor", description="Play CartPole-v1 into a Conduit store.")
    parser.add_argument("store", help="name of the store that dqn.py created")
    parser.add_argument("--index", type=int, default=0, help="number of this actor, part of its seed")
    parser.add_argument("--envs", type=int, default=8, help="environments to play at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end with this process")
    args = parser.parse_args(argv)
    try:
        with conduit.Store.attach(args.store) as store:
            actor = Actor(store, args.index, args.envs, args.seed)
            actor.say({"ready": os.getpid()})
            actor.run(args.parent)
    except conduit.ConduitError as error:
        print(f"actor {args.index}: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
