"""What the integration does beside the numbers: keeps, restores, survives, refuses, leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray
import torch
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.cql import CQLConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import FlattenObservations
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import conduit
import conduit.gc
import conduit.rllib
from conduit.rllib.delivery import Nothing
from conduit.rllib.ingest import Address
from conduit.rllib.pong import FRAMES, Pong
from conduit.rllib.replay import Delivering, Replay
from conduit.samplers import Uniform
from conduit.table import Table
from conduit_store.arrow import to_numpy
from conduit_transport import names
from tests.integration.rllib.exact import SEVERAL, agents, dqn, recurrent


def short(config: Any, steps: int = 100, **replay: Any) -> Any:
    """Iterations of `steps` env steps, learning after 200."""
    config.reporting(min_sample_timesteps_per_iteration=steps, min_time_s_per_iteration=0)
    config.training(num_steps_sampled_before_learning_starts=200)
    config.replay_buffer_config.update(replay)
    return config


def stores() -> set[str]:
    return set(names.list_names())


def live() -> set[str]:
    """Stores that somebody holds. The name of one whose last holder was killed is for `conduit gc` to remove."""
    return stores() - set(conduit.gc.collect(dry_run=True))


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def trains() -> None:
    """Every step arrives, learning happens, the result says so, and nothing stays."""
    before = stores()
    algo = conduit.rllib.attach(short(dqn(n_step=3))).build_algo()
    assert len(stores() - before) == 1
    for _ in range(3):
        algo.train()
    result: Any = algo.train()
    replay = algo.local_replay_buffer
    stored = result["replay_buffer"]["num_env_steps_added_lifetime"]
    assert stored == len(replay) == result["num_env_steps_sampled_lifetime"] >= 400
    assert result["replay_buffer"]["num_env_steps_sampled_lifetime"] >= 32 * 40
    assert result["learners"]["default_policy"]["qf_loss"] > 0
    assert replay.table.info().updated == result["replay_buffer"]["num_env_steps_sampled_lifetime"]
    replay.table.verify()
    algo.stop()
    assert stores() == before
    algo.stop()


def several_agents_train() -> None:
    """Each module's steps are in a table of its own; the algorithm's checkpoint holds them all."""
    config = short(agents(dqn(n_step=2, store_buffer_in_checkpoints=True, replay_buffer_config=SEVERAL)))
    algo = conduit.rllib.attach(config, host_memory="256MiB").build_algo()
    for _ in range(3):
        algo.train()
    result: Any = algo.train()
    replay = algo.local_replay_buffer
    assert sorted(replay.modules) == ["one", "two"]
    assert sorted(replay.store.tables()) == ["replay-one", "replay-two"]
    assert len(replay) == sum(len(own) for own in replay.modules.values()) > 400
    assert result["replay_buffer"]["num_env_steps_added_lifetime"] == result["num_env_steps_sampled_lifetime"] >= 400
    for name, own in replay.modules.items():
        own.table.verify()
        assert own.table.info().updated == result["replay_buffer"][name]["num_env_steps_sampled_lifetime"] >= 32 * 40
    stored = {name: len(own) for name, own in replay.modules.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = algo.save_to_path(Path(folder) / "a")
        algo.stop()
        again = type(algo).from_checkpoint(path)
    assert {name: len(own) for name, own in again.local_replay_buffer.modules.items()} == stored
    again.train()
    again.stop()


def recurrent_trains() -> None:
    """Sequences of a recurrent module: as many as RLlib would draw, none as short as the burn-in; learnt from."""
    config = short(recurrent(burn_in_len=2, train_batch_size_per_learner=40))
    algo = conduit.rllib.attach(config, host_memory="64MiB").build_algo()
    for _ in range(3):
        algo.train()
    result: Any = algo.train()
    replay = algo.local_replay_buffer
    assert len(replay) == result["num_env_steps_sampled_lifetime"] >= 400
    assert result["learners"]["default_policy"]["qf_loss"] > 0
    for _ in range(20):
        (delivery,) = replay.sample(40, n_step=1, batch_length_T=5)
        lengths = delivery.columns()["seq_lens"].numpy()
        counted = np.cumsum(lengths + 1)
        assert counted[-1] >= 40 > counted[-2]
        assert lengths.min() > 2
    with pytest.raises(conduit.ConfigError, match="sequences of 5 steps"):
        replay.sample(40, n_step=1, batch_length_T=7)
    assert sorted(replay.table.schema.names)[:3] == ["action", "extra/state_out/c", "extra/state_out/h"]
    replay.table.verify()
    algo.stop()


def pong() -> None:
    """Images of a real environment: a frame a step is stored, of a byte a pixel, and stacks come out as they were."""
    config = DQNConfig().environment(Pong).debugging(seed=1).env_runners(rollout_fragment_length=4)
    config.training(num_steps_sampled_before_learning_starts=60, train_batch_size_per_learner=8)
    config.training(replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 2_000})
    config.rl_module(model_config={"conv_filters": [[4, 8, 8], [8, 4, 4]], "head_fcnet_hiddens": [8]})
    config.reporting(min_sample_timesteps_per_iteration=64, min_time_s_per_iteration=0)
    algo = conduit.rllib.attach(config, host_memory="64MiB", frames=FRAMES).build_algo()
    seen: list[Any] = []
    write = algo.env_runner._conduit_writer.write
    algo.env_runner._conduit_writer.write = lambda episodes: (
        seen.extend(obs for e in episodes for obs in e.to_numpy().get_observations(slice(0, len(e)))) or write(episodes)
    )
    result: Any = algo.train()
    assert result["learners"]["default_policy"]["qf_loss"] > 0
    replay = algo.local_replay_buffer
    columns = replay.sample(8)[0].columns()
    known = {obs.tobytes() for obs in seen}
    assert len(known) > 50
    assert all(obs.numpy().tobytes() in known for obs in columns["obs"])
    assert columns["obs"].dtype == columns["new_obs"].dtype == torch.float32
    metrics = replay.store.metrics().tables["replay"]
    assert metrics.data_bytes + metrics.index_bytes < 8_192 * 2_000
    algo.stop()


def frames_are_checked() -> None:
    """Observations that are no stacks, of other numbers or of another begin are refused by name."""
    frames = conduit.rllib.Frames(3, scale=1 / 128, offset=-1.0)
    random = np.random.default_rng(1)
    levels = random.integers(0, 256, (6, 5, 5)).astype(np.float32)
    images = [image / np.float32(128) - np.float32(1) for image in levels]
    images = [images[0], images[0], *images]
    stacks = np.stack([np.stack(images[i : i + 3], axis=-1) for i in range(6)])
    assert frames.newest(stacks, begins=True).dtype == np.uint8
    assert np.array_equal(frames.newest(stacks[2:], begins=False) / 128 - 1, stacks[2:, ..., -1])
    for given, begins, word in (
        (stacks[2:], True, "over and over"),
        (stacks[::2], False, "moved on by one"),
        (stacks[..., :2], False, "no last axis of 3"),
        (stacks + np.float32(1e-3), False, "no byte"),
    ):
        with pytest.raises(conduit.ConfigError, match=word):
            frames.newest(given, begins=begins)
    with pytest.raises(conduit.ConfigError, match="without replay"):
        conduit.rllib.attach(PPOConfig().environment("CartPole-v1"), frames=frames)


def evicts() -> None:
    """A small replay stays small, late priorities do no harm."""
    algo = conduit.rllib.attach(short(dqn(), steps=60, capacity=150)).build_algo()
    for _ in range(5):
        algo.train()
    replay = algo.local_replay_buffer
    assert len(replay) == 150
    batch = replay.sample(32)
    replay.add(algo.env_runner.sample(num_timesteps=300, random_actions=True))
    replay.update_priorities(np.ones(32, np.float32))
    assert replay.table.info().stale_updates >= len(batch[0])
    algo.stop()


def rows_of(table: Table) -> dict[str, Any]:
    """Keys, links, flags and columns of all rows, final observations too."""
    keys = np.concatenate([block.keys for block in table.blocks()])
    live, flags, following, steps = table._native.links(keys, len(keys))
    found: dict[str, Any] = {"keys": keys, "live": live, "following": following, "steps": steps}
    found["flags"] = np.frombuffer(flags, np.uint8) & 15
    for name in table.schema.names:
        found[name] = np.concatenate([to_numpy(name, block.to_arrow()[name]) for block in table.blocks()])
    return found


def checkpoints() -> None:
    """An algorithm comes back with its replay: rows, priorities, links, counts."""
    config = conduit.rllib.attach(short(dqn(n_step=3, store_buffer_in_checkpoints=True)))
    algo = config.build_algo()
    for _ in range(3):
        algo.train()
    with tempfile.TemporaryDirectory() as folder:
        path = algo.save_to_path(Path(folder) / "a")
        table = algo.local_replay_buffer.table
        kept, priorities = rows_of(table), table.priorities(rows_of(table)["keys"])
        del table
        algo.stop()
        again = type(algo).from_checkpoint(path)
    replay = again.local_replay_buffer
    found = rows_of(replay.table)
    for name, values in kept.items():
        assert np.array_equal(np.asarray(values), np.asarray(found[name])), name
    now = replay.table.priorities(found["keys"])
    known = ~np.isnan(priorities)  # those of running episodes, which are over now, have become known
    assert np.array_equal(priorities[known], now[known])
    stored = len(replay)
    assert replay.report()["num_env_steps_added_lifetime"] == stored >= 300
    replay.table.verify()
    for _ in range(2):
        again.train()
    assert len(replay) >= stored + 200
    again.stop()


def checkpoints_without_replay() -> None:
    """As in RLlib, the buffer is saved only where the config says so; what is restored without it learns again."""
    algo = conduit.rllib.attach(short(dqn())).build_algo()
    for _ in range(3):  # beyond the steps that RLlib collects before it learns
        algo.train()
    with tempfile.TemporaryDirectory() as folder:
        path = algo.save_to_path(Path(folder) / "a")
        algo.stop()
        again = type(algo).from_checkpoint(path)
    replay = again.local_replay_buffer
    assert len(replay) == 0
    sampled: list[Any] = []
    draw = replay.sample
    replay.sample = lambda *given, **named: sampled.append(draw(*given, **named)) or sampled[-1]
    result: Any = again.train()
    assert len(replay) == result["replay_buffer"]["num_env_steps_added_lifetime"] >= 100
    kinds = [type(share).__name__ for shares in sampled for share in shares]
    learnt = kinds.count("Delivery")
    assert kinds == ["Nothing"] * (len(kinds) - learnt) + ["Delivery"] * learnt, kinds
    assert learnt < len(kinds), "a step was drawn before its successor was there"
    assert replay.table.info().updated == 32 * learnt > 0
    assert result["learners"]["default_policy"]["num_module_steps_trained"] == 32 * learnt
    again.stop()


def waits_for_steps_in_vain() -> None:
    """Training steps go without a batch for so long, and then it is an error; what was restored counts as nothing."""
    with replaying(timeout=0.05) as replay:
        episode = SingleAgentEpisode(observations=[np.zeros(2, np.float32)], len_lookback_buffer=0)
        episode.add_env_step(np.ones(2, np.float32), np.int64(0), 1.0)
        replay.add(episode)  # its successor is not there
        (share,) = replay.sample(8)
        assert isinstance(share, Nothing)
        assert len(share) == 1
        assert not share.env_steps()
        time.sleep(0.06)
        with pytest.raises(conduit.SampleTimeout, match="1 rows are there"):
            replay.sample(8)
        replay.set_state(replay.get_state())
        assert isinstance(replay.sample(8)[0], Nothing)


class Keys(gym.Env):  # type: ignore[type-arg]
    """Dict observations, tuple-free, episodes of 7 steps."""

    observation_space = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,)), "b": gym.spaces.Discrete(3)})
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self.t = 0

    def _obs(self) -> Any:
        return {"a": np.full(2, self.t / 10, np.float32), "b": self.t % 3}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), 1.0, False, self.t == 7, {}


def flattened_observations() -> None:
    """What a connector of the env runner writes into its episodes is what is stored."""
    config = short(DQNConfig().environment(Keys).debugging(seed=1))
    config.env_runners(env_to_module_connector=lambda env=None, spaces=None, device=None: FlattenObservations())
    algo = conduit.rllib.attach(config).build_algo()
    for _ in range(3):
        algo.train()
    batch = algo.local_replay_buffer.table.sample(64)
    assert batch["obs"].shape == (64, 5)
    assert np.allclose(batch["next_obs"][:, 0] - batch["obs"][:, 0], 0.1)
    ends = np.isclose(batch["next_obs"][:, 0], 0.7)
    assert np.array_equal(batch["truncated"], ends)
    algo.stop()


@contextmanager
def replaying(n_step: int = 1, gamma: float = 0.99, timeout: float = 5.0) -> Iterator[Replay]:
    """A replay without an algorithm."""
    store = conduit.Store.create(f"replay-{os.getpid()}", "64MiB")
    address = Address(store.name, str(names.runtime_dir()), 100, Uniform(), n_step, gamma, 2, 5.0, 0)
    replay = Replay(store, address, Delivering(0, None, timeout), saved=False)
    try:
        yield replay
    finally:
        replay.close()


def nested_observations() -> None:
    """Dict observations that no connector flattens arrive at the module as RLlib would give them."""
    with replaying(n_step=2, gamma=0.9) as replay:
        _nested(replay)


def _nested(replay: Replay) -> None:
    env = Keys()
    episode = SingleAgentEpisode(observation_space=env.observation_space, action_space=env.action_space)
    episode.add_env_reset(observation=env.reset()[0])
    for step in range(7):
        obs, reward, terminated, truncated, _ = env.step(0)
        episode.add_env_step(obs, np.int64(step % 2), reward, terminated=terminated, truncated=truncated)
        if step == 3:
            replay.add(episode)
            episode = episode.cut()
    replay.add(episode.to_numpy())
    columns = replay.sample(64)[0].columns()
    t = (columns["obs"]["a"][:, 0] * 10).round()
    after = (t + 2).clamp(max=7)
    assert columns["obs"]["b"].tolist() == (t % 3).tolist()
    assert np.allclose(columns["new_obs"]["a"][:, 1] * 10, after)
    assert columns["new_obs"]["b"].tolist() == (after % 3).tolist()
    assert columns["actions"].tolist() == (t % 2).tolist()
    assert np.array_equal(columns["truncateds"], after == 7)
    assert sorted(set(t.tolist())) == list(range(7))


def stops_within_episodes() -> None:
    """An env runner that goes ends its episodes where they are: every step that it has written is drawn."""
    algo = conduit.rllib.attach(short(dqn(n_step=3))).build_algo()
    algo.train()
    table = algo.local_replay_buffer.table
    runner: Any = algo.env_runner
    runner.sample(num_timesteps=3, random_actions=True)
    before = table.info()
    assert before.ready_rows < before.rows
    runner.conduit_disconnect()
    after = table.info()
    assert after.ready_rows == after.rows == before.rows
    algo.stop()


def evaluates() -> None:
    """Evaluation goes past the store."""
    config = short(dqn()).evaluation(evaluation_interval=1, evaluation_duration=2, evaluation_num_env_runners=0)
    algo = conduit.rllib.attach(config).build_algo()
    result = algo.train()
    assert result["evaluation"]["env_runners"]["num_episodes"] == 2
    assert len(algo.local_replay_buffer) == result["num_env_steps_sampled_lifetime"] >= 100
    algo.stop()


def callbacks() -> None:
    """The user's callbacks run, attaching twice attaches once."""
    seen: list[str] = []
    config = short(dqn()).callbacks(
        on_algorithm_init=lambda **_: seen.append("init"), on_train_result=[lambda **_: seen.append("result")]
    )
    conduit.rllib.attach(conduit.rllib.attach(config))
    before = stores()
    algo = config.build_algo()
    assert len(stores() - before) == 1
    algo.train()
    assert seen == ["init", "result"]
    algo.stop()


def refuses() -> None:
    """What is not covered is named at once."""
    cases = [
        (BCConfig().environment("CartPole-v1"), "BC"),
        (CQLConfig().environment("Pendulum-v1"), "input_"),
        (CQLConfig().offline_data(input_=["a", "b"]), "several paths"),
        (CQLConfig().offline_data(input_="a").training(n_step=3), "n_step=3"),
        (dqn().offline_data(input_="a"), "offline data"),
        (dqn(store_buffer_in_checkpoints=True).learners(num_learners=1), "num_learners=1"),
        (dqn().env_runners(create_local_env_runner=False, num_env_runners=1), "create_local_env_runner"),
        (dqn().rl_module(model_config={"use_lstm": True}), "prioritized replay with a recurrent"),
        (dqn(n_step=2).rl_module(model_config={"use_lstm": True}), "n_step=2"),
        (dqn(replay_buffer_config={"type": "MultiAgentEpisodeReplayBuffer", "capacity": 10}), "MultiAgent"),
        (dqn().learners(learner_connector=lambda *_: []), "learner connector"),
        (3, "int"),
    ]
    for config, word in cases:
        with pytest.raises(conduit.ConfigError, match=re.escape(word)):
            conduit.rllib.attach(config)
    late = conduit.rllib.attach(dqn())
    late.learners(learner_class=late.get_default_learner_class())
    before = stores()
    with pytest.raises(conduit.ConfigError, match=re.escape("call attach() last")):
        late.build_algo()
    assert stores() == before


def remote_runners() -> None:
    """Two env runners write by themselves; one that is killed loses its last step, and its successor goes on."""
    before = stores()
    config = short(dqn(n_step=2)).env_runners(num_env_runners=2, num_envs_per_env_runner=2)
    config.fault_tolerance(restart_failed_env_runners=True)
    algo = conduit.rllib.attach(config).build_algo()
    for _ in range(3):
        algo.train()
    replay = algo.local_replay_buffer
    kept = len(replay)
    assert kept == replay.report()["num_env_steps_added_lifetime"] >= 300
    victim = algo.env_runner_group._worker_manager.actors()[1]
    pid: Any = ray.get(victim.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    until(lambda: _recovered(algo, pid), 90)
    for _ in range(3):
        algo.train()
    replay.table.verify()
    assert len(replay) > kept
    writers = algo.env_runner_group.foreach_env_runner(
        lambda runner: runner._conduit_writer._native is not None, local_env_runner=False
    )
    assert writers == [True, True]
    algo.stop()
    until(lambda: live() <= before, 30)
    conduit.gc.collect()


def _recovered(algo: Any, old: int) -> bool:
    algo.train()
    pids = algo.env_runner_group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)
    return len(pids) == 2 and old not in pids


CRASH = """
import os, sys
sys.path.insert(0, {root!r})
import ray
from tests.integration.rllib.behaviour import conduit, dqn, short
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
algo = conduit.rllib.attach(short(dqn()).env_runners(num_env_runners=1)).build_algo()
algo.train()
runner = algo.env_runner_group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)[0]
print(algo.local_replay_buffer.address.store, runner, flush=True)
sys.stdin.read()
"""


def crash() -> None:
    """A driver that is killed takes its env runners and its memory with it."""
    root = str(Path(__file__).resolve().parents[3])
    with subprocess.Popen(
        [sys.executable, "-c", CRASH.format(root=root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        name, pid = "", ""
        for line in driver.stdout:
            if line.startswith("rllib-"):
                name, pid = line.split()
                break
        assert name, "the driver said nothing"
        driver.kill()
    until(lambda: not os.path.exists(f"/proc/{pid}"), 60)
    with pytest.raises(conduit.StoreNotFound):
        conduit.Store.attach(name, timeout=5.0)
    assert name in conduit.gc.collect()


def tune_trials(config: Any, name: str) -> list[Any]:
    """Two trials of one config, of the algorithm `name`, that are there at the same time; what each said last.

    Each has a store of its own, and nothing stays of either.
    """
    from ray import tune

    before = stores()
    with tempfile.TemporaryDirectory() as folder:

        def meet(*, algorithm: Any, **_: Any) -> None:
            """Neither goes on from its first iteration before the other has come so far."""
            source = algorithm.local_replay_buffer or algorithm.conduit_rollouts
            (Path(folder) / f"{os.getpid()}.here").write_text(source.store.name, encoding="ascii")
            until(lambda: len(list(Path(folder).glob("*.here"))) == 2, 90)

        config = conduit.rllib.attach(config.callbacks(on_train_result=meet), host_memory="64MiB")
        config.training(lr=tune.grid_search([1e-3, 1e-4]))
        grid = tune.Tuner(
            name,
            param_space=config,
            run_config=tune.RunConfig(stop={"training_iteration": 2}, storage_path=folder, verbose=0),
        ).fit()
        assert not grid.errors, grid.errors
        named = {path.read_text(encoding="ascii") for path in Path(folder).glob("*.here")}
    assert len(named) == 2, "one store for both trials"
    until(lambda: live() <= before, 30)
    conduit.gc.collect()
    return [found.metrics for found in grid]


def tune_dqn() -> None:
    """Trials side by side: each fills its own replay."""
    for found in tune_trials(short(dqn()), "DQN"):
        assert found["replay_buffer"]["num_env_steps_stored"] == found["num_env_steps_sampled_lifetime"] >= 200


SCENARIOS = {
    f.__name__: f
    for f in (trains, several_agents_train, recurrent_trains, pong, frames_are_checked, evicts,
              checkpoints, checkpoints_without_replay, waits_for_steps_in_vain,
              flattened_observations, nested_observations, stops_within_episodes, evaluates, callbacks, refuses,
              remote_runners, tune_dqn,
              crash)
}  # fmt: skip
