"""Stock RLlib and Conduit, given the same steps, draws and weights: the same parameters to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.algorithms.tqc import TQCConfig
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.utils import update_priorities_in_episode_replay_buffer

import conduit.rllib

STEPS = "num_env_steps_sampled_lifetime"


def dqn(**training: Any) -> Any:
    return (
        DQNConfig()
        .environment("CartPole-v1")
        .debugging(seed=3)
        .training(target_network_update_freq=100, num_steps_sampled_before_learning_starts=0, **training)
    )


def sac(kind: Any = SACConfig, **training: Any) -> Any:
    return (
        kind()
        .environment("Pendulum-v1")
        .debugging(seed=3)
        .training(target_network_update_freq=100, num_steps_sampled_before_learning_starts=0, **training)
    )


def learners(config: Any, n: int) -> Any:
    """Learners in processes of their own, small: two cores are enough for Ray."""
    return config.learners(num_learners=n, num_cpus_per_learner=0)


UNIFORM = {"type": "EpisodeReplayBuffer", "capacity": 10_000}
RAINBOW = {"num_atoms": 51, "v_min": -10.0, "v_max": 10.0, "noisy": True}


class Twins:
    """A stock algorithm and one through Conduit, with the same parameters and the same experience."""

    def __init__(self, make: Any, steps: int, envs: int = 1) -> None:
        self.stock = make().env_runners(num_envs_per_env_runner=envs).build_algo()
        self.ours = conduit.rllib.attach(make().env_runners(num_envs_per_env_runner=envs)).build_algo()
        self.groups = [algo.learner_group for algo in (self.stock, self.ours)]
        self.groups[1].set_state(self.groups[0].get_state())
        self.sampled = 0
        self.keys: dict[tuple[str, int], int] = {}
        self._collect(steps)

    def _collect(self, steps: int) -> None:
        order: list[tuple[str, int] | None] = []
        lengths: dict[str, int] = {}
        for _ in range(steps // 4):
            episodes = self.stock.env_runner.sample(num_timesteps=4, random_actions=True)
            self.stock.local_replay_buffer.add(episodes)
            self.ours.local_replay_buffer.add(episodes)
            for episode in episodes:
                start = lengths.get(episode.id_, 0)
                lengths[episode.id_] = start + len(episode)
                order += [(episode.id_, start + t) for t in range(len(episode))]
                if episode.is_terminated or episode.is_truncated:
                    order.append(None)
        self.sampled = steps
        writer = self.ours.local_replay_buffer._writer
        order += [None] * len(writer._chains)
        writer.cut()  # stock can draw an ongoing episode's last step; a table waits for the step after it
        keys = np.concatenate([block.keys for block in self.ours.local_replay_buffer.table.blocks()])
        assert len(keys) == len(order)
        self.keys = {name: int(key) for name, key in zip(order, keys, strict=True) if name is not None}

    def draw(self, n: int) -> tuple[list[Any], Any]:
        """Stock's batch, and the same rows, weights and steps as ours."""
        buffer, config = self.stock.local_replay_buffer, self.stock.config
        episodes = buffer.sample(
            num_items=n, n_step=config.n_step, gamma=config.gamma, beta=config.replay_buffer_config.get("beta"),
            batch_length_T=0, lookback=0, min_batch_length_T=0, sample_episodes=True,
        )  # fmt: skip
        if isinstance(
            buffer, PrioritizedEpisodeReplayBuffer
        ):  # episodes of the prioritized buffer have names of their own
            triples = [buffer._indices[buffer._tree_idx_to_sample_idx[i]] for i in buffer._last_sampled_indices]
            names = [(buffer.episodes[e - buffer._num_episodes_evicted].id_, t) for e, t, _ in triples]
        else:
            names = [(episode.id_, episode.t_started) for episode in episodes]
        replay = self.ours.local_replay_buffer
        batch = replay.table.rows(np.array([self.keys[name] for name in names], np.uint64))
        batch.weights[:] = [episode.extra_model_outputs["weights"][0] for episode in episodes]
        steps = np.array([episode.extra_model_outputs["n_step"][0] for episode in episodes])
        return episodes, replay._shares(batch, None if isinstance(config.n_step, int) else steps)

    def update(self, algo: Any, episodes: list[Any]) -> Any:
        torch.manual_seed(self.sampled)
        results = algo.learner_group.update(episodes=episodes, timesteps={STEPS: self.sampled})
        found = [e for result in results for e in result["default_policy"].pop("td_error").peek()]
        errors = np.concatenate([np.atleast_1d(np.asarray(e)) for e in found])
        update_priorities_in_episode_replay_buffer(
            replay_buffer=algo.local_replay_buffer, td_errors={"default_policy": {"td_error": errors}}
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
        assert a.tobytes() == b.tobytes(), f"{path}: differs by up to {np.abs(a - b).max()}"


def exact(make: Any, *, batch: int, updates: int = 10, envs: int = 1) -> None:
    """Ten updates of both on the same draws; batches, TD errors, parameters and optimizer state compared."""
    twins = Twins(make, 400, envs)
    try:
        before = twins.state(0)["rl_module"]["default_policy"]
        before = {k: v.copy() for k, v in before.items()}
        replay = twins.ours.local_replay_buffer
        for i in range(updates):
            episodes, drawn = twins.draw(batch)
            keys = replay._keys
            if i == 0 and twins.groups[0].is_local:
                stock = twins.groups[0]._learner
                whole = stock._learner_connector(
                    rl_module=stock.module, batch={}, episodes=list(episodes), shared_data={}, metrics=None
                )["default_policy"]
                same({k: whole[k] for k in sorted(whole)}, dict(sorted(drawn[0].columns().items())), "batch")
            twins.sampled += 20
            errors = twins.update(twins.stock, episodes)
            same(errors, twins.update(twins.ours, drawn), "td_errors")
            if hasattr(replay.address.sampler, "alpha"):  # the last of a row that is there twice counts
                latest = dict(zip(keys.tolist(), np.maximum(errors, 1e-12).astype(np.float32).tolist(), strict=True))
                assert replay.table.priorities(list(latest)).tolist() == list(latest.values()), "priorities"
            one, other = twins.state(0), twins.state(1)
            same(one["rl_module"], other["rl_module"], f"update {i}: parameters")
            same(one["optimizer"], other["optimizer"], f"update {i}: optimizer")
        after = twins.state(0)["rl_module"]["default_policy"]
        assert any((before[k] != after[k]).any() for k in before), "nothing was learnt"
    finally:
        twins.stop()


SCENARIOS = {
    "dqn": lambda: exact(lambda: dqn(double_q=True, dueling=True, n_step=1), batch=32),
    "dqn_n_step_3": lambda: exact(lambda: dqn(double_q=True, dueling=True, n_step=3), batch=32),
    "dqn_vector_env": lambda: exact(lambda: dqn(n_step=2), batch=32, envs=3),
    "dqn_uniform": lambda: exact(lambda: dqn(replay_buffer_config=UNIFORM, double_q=False, dueling=False), batch=64),
    "dqn_rainbow": lambda: exact(lambda: dqn(n_step=3, **RAINBOW), batch=32),
    "dqn_n_step_range": lambda: exact(lambda: dqn(n_step=(1, 4), gamma=0.9), batch=32),
    "sac": lambda: exact(lambda: sac(tau=0.01), batch=256),
    "sac_n_step_3": lambda: exact(lambda: sac(n_step=3), batch=64),
    "sac_n_step_range": lambda: exact(lambda: sac(n_step=(2, 5)), batch=64),
    "sac_uniform": lambda: exact(lambda: sac(replay_buffer_config=UNIFORM), batch=64),
    "sac_twin_q": lambda: exact(lambda: sac(twin_q=False, target_entropy=-2.0), batch=64),
    "tqc": lambda: exact(lambda: sac(TQCConfig), batch=64),
    "tqc_n_step_3": lambda: exact(lambda: sac(TQCConfig, n_step=3, n_critics=3), batch=64),
}

LEARNERS = {
    "dqn_learners": lambda: exact(lambda: learners(dqn(n_step=2), 2), batch=64, updates=3),
    "sac_learners": lambda: exact(lambda: learners(sac(n_step=(1, 3)), 1), batch=64, updates=3),
}
