"""Stock RLlib and Conduit, given the same steps, draws and weights: the same parameters to the bit."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.algorithms.tqc import TQCConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole, MultiAgentPendulum
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.utils import update_priorities_in_episode_replay_buffer

import conduit.rllib
from conduit.rllib import Frames
from conduit.rllib.agents import AgentsReplay
from conduit.rllib.delivery import Deliveries, Delivery, begin
from conduit.rllib.sequences import sequences

STEPS = "num_env_steps_sampled_lifetime"
SMALL = {"capacity": 2_000}  # RLlib's trees of a million leaves take longer to make than all else here


def dqn(**training: Any) -> Any:
    return (
        DQNConfig()
        .environment("CartPole-v1")
        .debugging(seed=3)
        .training(replay_buffer_config=SMALL)
        .training(target_network_update_freq=100, num_steps_sampled_before_learning_starts=0, **training)
    )


def sac(kind: Any = SACConfig, width: int = 32, **training: Any) -> Any:
    return (
        kind()
        .environment("Pendulum-v1")
        .rl_module(model_config={"fcnet_hiddens": [width, width]})
        .debugging(seed=3)
        .training(replay_buffer_config=SMALL)
        .training(target_network_update_freq=100, num_steps_sampled_before_learning_starts=0, **training)
    )


def agents(config: Any, env: Any = MultiAgentCartPole) -> Any:
    """Three agents, two modules."""
    config.environment(env, env_config={"num_agents": 3})
    return config.multi_agent(
        policies={"one", "two"}, policy_mapping_fn=lambda agent, episode, **_: "one" if agent == 0 else "two"
    )


SEVERAL = {"type": "MultiAgentPrioritizedEpisodeReplayBuffer", "capacity": 2_000, "alpha": 0.6, "beta": 0.4}


def learners(config: Any, n: int) -> Any:
    """Learners in processes of their own, small: two cores are enough for Ray."""
    return config.learners(num_learners=n, num_cpus_per_learner=0)


LSTM = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5, "fcnet_hiddens": [16]}


def recurrent(**training: Any) -> Any:
    return dqn(n_step=1, replay_buffer_config=UNIFORM, **training).rl_module(model_config=LSTM)


class Levels(gym.Env):  # type: ignore[type-arg]
    """Stacks of three images, each of a few bytes as byte / 128 - 1; episodes of 17 steps."""

    observation_space = gym.spaces.Box(-1, 1, (10, 10, 3), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self.random = np.random.default_rng(7)
        self.frames: list[Any] = []

    def _seen(self) -> Any:
        image = self.random.integers(0, 256, (10, 10))
        self.frames = [*self.frames[1:], image] if self.frames else [image] * 3
        return (np.stack(self.frames, axis=-1) / 128 - 1).astype(np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t, self.frames = 0, []
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._seen(), float(self.t % 3), self.t == 17, False, {}


def stacks(env: Any, **training: Any) -> Any:
    model = {"conv_filters": [[4, 4, 2], [8, 5, 1]], "fcnet_hiddens": [8], "head_fcnet_hiddens": [8]}
    return dqn(**training).environment(env).rl_module(model_config=model)


UNIFORM = {"type": "EpisodeReplayBuffer", "capacity": 2_000}
RAINBOW = {"num_atoms": 51, "v_min": -10.0, "v_max": 10.0, "noisy": True}


class Twins:
    """A stock algorithm and one through Conduit, with the same parameters and the same experience."""

    def __init__(self, make: Any, steps: int, envs: int = 1, **attached: Any) -> None:
        self.stock = make().env_runners(num_envs_per_env_runner=envs).build_algo()
        self.ours = conduit.rllib.attach(make().env_runners(num_envs_per_env_runner=envs), **attached).build_algo()
        self.groups = [algo.learner_group for algo in (self.stock, self.ours)]
        self.groups[1].set_state(self.groups[0].get_state())
        self.sampled = 0
        self.keys: dict[tuple[str, int], int] = {}  # of a step of an agent's episode
        ours = self.ours.local_replay_buffer
        self.several = isinstance(ours, AgentsReplay)
        self.length = 0 if self.several else ours.address.max_seq_len  # of sequences, for recurrent modules
        self._collect(steps)
        self.replays: dict[str, Any] = ours.modules if self.several else {"default_policy": ours}

    def _collect(self, steps: int) -> None:
        orders: dict[str, list[tuple[str, int] | None]] = defaultdict(list)
        lengths: dict[str, int] = {}
        for _ in range(steps // 4):
            episodes = self.stock.env_runner.sample(num_timesteps=4, random_actions=not self.length)
            self.stock.local_replay_buffer.add(episodes)
            self.ours.local_replay_buffer.add(episodes)
            for episode in (own for whole in episodes for own in getattr(whole, "agent_episodes", {0: whole}).values()):
                order = orders[episode.module_id or "default_policy"]
                start = lengths.get(episode.id_, 0)
                lengths[episode.id_] = start + len(episode)
                order += [(episode.id_, start + t) for t in range(len(episode))]
                if episode.is_terminated or episode.is_truncated:
                    order.append(None)
        self.sampled = steps
        replay = self.ours.local_replay_buffer
        for module, order in orders.items():
            writer = replay._writer.modules[module] if self.several else replay._writer
            order += [None] * len(writer._chains)
            writer.cut()  # stock can draw an ongoing episode's last step; a table waits for the step after it
            table = (replay.modules[module] if self.several else replay).table
            keys = np.concatenate([block.keys for block in table.blocks()])
            assert len(keys) == len(order)
            self.keys |= {name: int(key) for name, key in zip(order, keys, strict=True) if name is not None}

    def draw(self, n: int) -> tuple[list[Any], Any]:
        """Stock's batch, and the same rows, weights and steps as ours."""
        buffer, config = self.stock.local_replay_buffer, self.stock.config
        episodes = buffer.sample(
            num_items=n, n_step=config.n_step, gamma=config.gamma, beta=config.replay_buffer_config.get("beta"),
            batch_length_T=self.length, lookback=int(self.length > 0), min_batch_length_T=config.burn_in_len
            if self.length else 0, sample_episodes=True,
        )  # fmt: skip
        if self.length:
            if config.num_learners:  # RLlib sends the longest first
                episodes = sorted(episodes, key=len, reverse=True)
            keys = [self.keys[episode.id_, episode.t_started] for episode in episodes]
            rows = self.replays["default_policy"].table.rows(np.array(keys, np.uint64))
            of = max(1, config.num_learners)
            return episodes, [Delivery(sequences(rows), parts=(i, of)) for i in range(of)]
        if isinstance(buffer, PrioritizedEpisodeReplayBuffer) and not self.several:
            # episodes of this buffer have names of their own
            triples = [buffer._indices[buffer._tree_idx_to_sample_idx[i]] for i in buffer._last_sampled_indices]
            names = [(buffer.episodes[e - buffer._num_episodes_evicted].id_, t) for e, t, _ in triples]
        else:
            names = [(episode.id_, episode.t_started) for episode in episodes]
        made: dict[str, list[Delivery]] = {}
        for module in dict.fromkeys(episode.module_id or "default_policy" for episode in episodes):
            replay = self.replays[module]
            own = [i for i, episode in enumerate(episodes) if (episode.module_id or "default_policy") == module]
            if self.several:  # RLlib's connectors put the rows of each agent's episode together
                seen = [(episodes[i].multi_agent_episode_id, episodes[i].agent_id) for i in own]
                places = {name: place for place, name in enumerate(dict.fromkeys(seen))}
                own = [own[i] for i in sorted(range(len(own)), key=lambda i: places[seen[i]])]
            batch = replay.table.rows(np.array([self.keys[names[i]] for i in own], np.uint64))
            batch.weights[:] = [episodes[i].extra_model_outputs["weights"][0] for i in own]
            steps = np.array([episodes[i].extra_model_outputs["n_step"][0] for i in own])
            made[module] = replay._shares(replay._prepared(batch), None if isinstance(config.n_step, int) else steps)
        if not self.several:
            return episodes, made["default_policy"]
        return episodes, [Deliveries(dict(zip(made, of, strict=True))) for of in zip(*made.values(), strict=True)]

    def update(self, algo: Any, episodes: list[Any]) -> Any:
        torch.manual_seed(self.sampled)
        results = algo.learner_group.update(episodes=episodes, timesteps={STEPS: self.sampled})
        errors = {}
        for module in self.replays:
            found = [e for result in results for e in result[module].pop("td_error").peek()]
            errors[module] = np.concatenate([np.atleast_1d(np.asarray(e)) for e in found])
        update_priorities_in_episode_replay_buffer(
            replay_buffer=algo.local_replay_buffer,
            td_errors={module: {"td_error": found} for module, found in errors.items()},
        )
        return errors

    def state(self, side: int) -> Any:
        return self.groups[side].get_state(components=["learner/rl_module", "learner/optimizer"])["learner"]

    def stop(self) -> None:
        self.stock.stop()
        self.ours.stop()


def same(one: Any, other: Any, path: str = "") -> None:
    """Nested states that are equal to the bit, with equal dtypes."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), f"{path}: {sorted(map(str, one))} and {sorted(map(str, other))}"
        for key, value in one.items():
            same(value, other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{path}/{i}")
    elif isinstance(one, (np.ndarray, torch.Tensor)):
        a, b = np.asarray(one), np.asarray(other)
        assert a.dtype == b.dtype, f"{path}: {a.dtype} and {b.dtype}"
        assert a.shape == b.shape, f"{path}: {a.shape} and {b.shape}"
        assert a.tobytes() == b.tobytes(), f"{path}: differs at {np.argwhere(a != b)[:5].tolist()}"


def differ(one: Any, other: Any) -> bool:
    try:
        same(one, other)
    except AssertionError:
        return True
    return False


def exact(make: Any, *, batch: int, updates: int = 10, envs: int = 1, **attached: Any) -> None:
    """Ten updates of both on the same draws; batches, TD errors, parameters and optimizer state compared."""
    twins = Twins(make, 240, envs, **attached)
    try:
        before = copy.deepcopy(twins.state(0)["rl_module"])
        for i in range(updates):
            episodes, drawn = twins.draw(batch)
            keys = {module: replay._keys for module, replay in twins.replays.items()}
            if i == 0 and twins.groups[0].is_local:
                stock = twins.groups[0]._learner
                whole = stock._learner_connector(
                    rl_module=stock.module, batch={}, episodes=list(episodes), shared_data={}, metrics=None
                )
                ours = drawn[0].training_data("default_policy").batch.policy_batches
                for module in twins.replays:
                    begin(ours[module], stock.module[module])
                    if twins.several:  # RLlib forgets that an episode was truncated where it was terminated as well
                        ours[module]["truncateds"] = ours[module]["truncateds"] & ~ours[module]["terminateds"]
                    same(dict(sorted(whole[module].items())), dict(sorted(ours[module].items())), f"batch {module}")
            twins.sampled += 20
            errors = twins.update(twins.stock, episodes)
            same(errors, twins.update(twins.ours, drawn), "td_errors")
            for module, replay in twins.replays.items():
                if hasattr(replay.address.sampler, "alpha"):  # the last of a row that is there twice counts
                    priorities = np.maximum(errors[module], 1e-12).astype(np.float32)
                    latest = dict(zip(keys[module].tolist(), priorities.tolist(), strict=True))
                    assert replay.table.priorities(list(latest)).tolist() == list(latest.values()), "priorities"
            one, other = twins.state(0), twins.state(1)
            same(one["rl_module"], other["rl_module"], f"update {i}: parameters")
            same(one["optimizer"], other["optimizer"], f"update {i}: optimizer")
        assert differ(before, twins.state(0)["rl_module"]), "nothing was learnt"
    finally:
        twins.stop()


SCENARIOS = {
    "dqn": lambda: exact(lambda: dqn(double_q=True, dueling=True, n_step=1), batch=32),
    "dqn_n_step_3": lambda: exact(lambda: dqn(double_q=True, dueling=True, n_step=3), batch=32),
    "dqn_vector_env": lambda: exact(lambda: dqn(n_step=2), batch=32, envs=3),
    "dqn_uniform": lambda: exact(lambda: dqn(replay_buffer_config=UNIFORM, double_q=False, dueling=False), batch=64),
    "dqn_rainbow": lambda: exact(lambda: dqn(n_step=3, **RAINBOW), batch=32),
    "dqn_n_step_range": lambda: exact(lambda: dqn(n_step=(1, 4), gamma=0.9), batch=32),
    "dqn_lstm": lambda: exact(lambda: recurrent(double_q=True, dueling=True), batch=64),
    "dqn_lstm_burn_in": lambda: exact(lambda: recurrent(double_q=False, burn_in_len=2), batch=64),
    "dqn_frames": lambda: exact(lambda: stacks(Levels), batch=32, frames=Frames(3, scale=1 / 128, offset=-1)),
    "dqn_frames_raw": lambda: exact(lambda: stacks(Levels, n_step=3), batch=32, updates=5, frames=Frames(3)),
    "dqn_agents": lambda: exact(lambda: agents(dqn(n_step=3, replay_buffer_config=SEVERAL)), batch=32),
    "sac_agents": lambda: exact(
        lambda: agents(sac(replay_buffer_config=SEVERAL), MultiAgentPendulum), batch=32, updates=5
    ),
    "sac": lambda: exact(lambda: sac(width=256, tau=0.01), batch=256, updates=5),
    "sac_n_step_3": lambda: exact(lambda: sac(n_step=3), batch=64),
    "sac_n_step_range": lambda: exact(lambda: sac(n_step=(2, 5)), batch=64),
    "sac_uniform": lambda: exact(lambda: sac(replay_buffer_config=UNIFORM), batch=64),
    "sac_twin_q": lambda: exact(lambda: sac(twin_q=False, target_entropy=-2.0), batch=64),
    "tqc": lambda: exact(lambda: sac(TQCConfig), batch=64),
    "tqc_n_step_3": lambda: exact(lambda: sac(TQCConfig, n_step=3, n_critics=3), batch=64),
}

LEARNERS = {
    "dqn_learners": lambda: exact(lambda: learners(dqn(n_step=2), 2), batch=64, updates=3),
    "dqn_lstm_learners": lambda: exact(lambda: learners(recurrent(), 1), batch=64, updates=3),
    "sac_learners": lambda: exact(lambda: learners(sac(n_step=(1, 3)), 1), batch=64, updates=3),
}
