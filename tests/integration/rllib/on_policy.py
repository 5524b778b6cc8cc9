"""PPO, APPO and IMPALA: stock and through Conduit, from the same seeds or the same episodes, to the bit."""

from __future__ import annotations

import copy
import os
import pickle
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import conduit
import conduit.rllib
from conduit.rllib import episodes as opening
from conduit.rllib.rollouts import EpisodeWriter, QueueAddress
from conduit_transport import names as runtime_names
from tests.integration.rllib.behaviour import tune_trials
from tests.integration.rllib.exact import STEPS, agents, differ, same

SMALL = {"fcnet_hiddens": [16]}
LSTM = {"use_lstm": True, "lstm_cell_size": 16, "max_seq_len": 8}
HALF = {"train_batch_size_per_learner": 128, "minibatch_size": 32}  # where a step of RLlib's takes long


def ppo(**training: Any) -> Any:
    settings = {"train_batch_size_per_learner": 256, "minibatch_size": 64, "num_epochs": 2, **training}
    config = PPOConfig().environment("CartPole-v1").debugging(seed=3).training(**settings)
    return config.env_runners(num_env_runners=0).rl_module(model_config=SMALL)


def learnt(config: Any, updates: int) -> tuple[Any, Any, Any]:
    """State before and after so many iterations from the same global seeds, and the last result."""
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - what RLlib shuffles with
    torch.manual_seed(5)
    algo = config.build_algo()
    try:
        before = _state(algo)
        for _ in range(updates - 1):
            algo.train()
        result = algo.train()
        return before, _state(algo), result
    finally:
        algo.stop()


def _state(algo: Any) -> Any:
    state = algo.learner_group.get_state(components=["learner/rl_module", "learner/optimizer"])["learner"]
    return copy.deepcopy({name: state[name] for name in ("rl_module", "optimizer")})


def exact(make: Callable[[], Any], *, updates: int = 3, queues: int = 1) -> None:
    """Parameters and optimizer state after some iterations of both; every episode was opened, once."""
    before, stock, _ = learnt(make(), updates)
    began, ours, result = learnt(conduit.rllib.attach(make(), host_memory="256MiB"), updates)
    same(before, began, "before")
    same(stock, ours, "after")
    assert differ(before["rl_module"], stock["rl_module"]), "nothing was learnt"
    counts = result["conduit"].values()
    assert len(counts) == queues, result["conduit"]
    for count in counts:
        assert count["appended"] > updates * 50, count
        assert count["unacknowledged"] == 0, count


class Marked(ConnectorV2):
    """A user's piece of the learner's pipeline, which looks for what RLlib's first piece says of each episode."""

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        assert [key[0] for key in batch["loss_mask"]] == [episode.id_ for episode in episodes]
        for episode in episodes:
            rewards = episode.get_rewards() * (2.0 if episode.is_terminated else 1.0)
            self.add_n_batch_items(batch, "rewards", rewards, len(episode), episode)
        return batch


def marked() -> Any:
    return ppo(learner_connector=lambda *_: Marked())


def exact_learner(make: Callable[[], Any], *, updates: int = 5) -> None:
    """Given the same episodes: batches and parameters. What RLlib's learner thread does, step by step."""
    stock = make().build_algo()
    ours = conduit.rllib.attach(make(), host_memory="256MiB").build_algo()
    try:
        learners = [algo.learner_group._learner for algo in (stock, ours)]
        assert learners[1]._conduit_extends, "RLlib's first connector piece is another than the one that was replaced"
        whole = not learners[0].module.is_stateful()
        pieces = learners[1]._learner_connector.connectors
        learners[1].set_state(learners[0].get_state())
        before = _state(stock)
        writer = ours.env_runner._conduit_writer
        for i in range(updates):
            episodes = stock.env_runner.sample(num_timesteps=100)
            handles = writer.write(copy.deepcopy(episodes))
            batches = []
            for learner, given in zip(learners, (copy.deepcopy(episodes), handles), strict=True):
                added: dict[str, Any] = {}
                if learner is learners[1] and i == 0:
                    assert pieces[0].whole_columns
                    pieces.insert(1, lambda batch, added=added, **_: added.update(batch) or batch)
                batch = learner._make_batch_if_necessary(TrainingData(episodes=given))
                if added:
                    del pieces[1]
                    assert {len(parts) for parts in added.values()} == {1 if whole else len(episodes)}
                batches.append({name: dict(of) for name, of in batch.policy_batches.items()})
                torch.manual_seed(i)
                Learner.update(learner, training_data=TrainingData(batch=batch), timesteps={STEPS: 100 * i})
            same(batches[0], batches[1], f"batch {i}")
        same(_state(stock), _state(ours), "after")
        assert differ(before["rl_module"], _state(stock)["rl_module"]), "nothing was learnt"
    finally:
        stock.stop()
        ours.stop()


def asynchronous(kind: Any, **model: Any) -> Any:
    config = kind().environment("CartPole-v1").debugging(seed=3).rl_module(model_config=SMALL | model)
    return config.env_runners(num_env_runners=0, num_envs_per_env_runner=2).learners(num_learners=0)


@contextmanager
def writing(max_size: int) -> Iterator[EpisodeWriter]:
    with conduit.Store.create(f"episodes-{os.getpid()}-{max_size}", "64MiB") as store:
        folder = str(runtime_names.runtime_dir())
        yield QueueAddress(store.name, folder, max_size, 0.2, opens_on_arrival=False).writer(store, 1)
        store.queue("episodes").verify()


def episodes() -> None:
    """An episode comes out as it went in, once: whole, in parts, and sliced on its way."""
    with writing(max_size=4_000) as writer:
        given = _nested(steps=40)
        (handle,) = writer.write([given])
        sent = pickle.dumps(handle)
        assert len(sent) < 2_000, len(sent)
        found = pickle.loads(sent).open()
        before, after = given.get_state(), found.get_state()
        before["_custom_data"], after["_custom_data"] = given.custom_data, found.custom_data
        same(before, after)
        assert found.observation_space == given.observation_space
        assert not found.get_rewards().flags.writeable  # a view of its block
        with pytest.raises(conduit.StaleKey, match="opened before"):
            pickle.loads(sent).open()
        parts = [given[:25], given.slice(slice(25, None), len_lookback_buffer=1)]
        handles = writer.write(copy.deepcopy(parts))
        assert list(map(len, handles)) == [25, 15]
        for part, opened in zip(parts, opening.opened(handles), strict=True):
            same(part.get_state(), opened.get_state())
        (whole,) = writer.write([given])
        same(parts[0].get_state(), whole[:25].get_state())
        same(parts[1].get_state(), whole.slice(slice(25, None), len_lookback_buffer=1).get_state())
        empty = given[:0]
        assert writer.write([empty]) == [empty]


def gives_up() -> None:
    """What no learner comes for is given up when there is no room; the learner goes on with what is left."""
    given = _nested(steps=40)
    with writing(max_size=120) as writer:
        handles = [handle for _ in range(4) for handle in writer.write([given])]
        left = opening.opened(handles)
        assert 0 < len(left) < 4
        same(left[-1].get_state(), given.get_state())  # in several blocks, and so put together
        with pytest.raises(conduit.CapacityError):
            writer.write([_nested(steps=130)])


def _nested(steps: int) -> SingleAgentEpisode:
    """Dict observations, tuple actions, a recurrent state, infos: all that an episode can hold."""
    random_numbers = np.random.default_rng(1)
    episode = SingleAgentEpisode(
        observation_space=gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,)), "b": gym.spaces.Discrete(300)}),
        action_space=gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (1,))]),
        agent_id="me",
        module_id="mine",
    )
    episode.add_env_reset(observation={"a": np.zeros(2, np.float32), "b": 0}, infos={"first": True})
    for t in range(steps):
        state = {"h": random_numbers.normal(size=4).astype(np.float32)}
        episode.add_env_step(
            {"a": random_numbers.uniform(-1, 1, 2).astype(np.float32), "b": t},
            (t % 3, random_numbers.uniform(-1, 1, 1).astype(np.float32)),
            float(t),
            infos={"t": t} if t % 2 else {},
            terminated=t == steps - 1,
            extra_model_outputs={"action_logp": np.float32(-t), "state_out": state, "weights_seq_no": 7},
        )
    episode.custom_data["mark"] = 5
    return episode.to_numpy()


def flows(config: Any, iterations: int = 3, queues: int = 1) -> None:
    """Asynchronous, with processes: episodes come through, are learnt from, and leave the queue."""
    algo = conduit.rllib.attach(config, host_memory="256MiB").build_algo()
    try:
        for _ in range(iterations - 1):
            algo.train()
        result: Any = algo.train()
        assert len(result["conduit"]) == queues, result["conduit"]
        for name, count in result["conduit"].items():
            assert count["appended"] > 500, count
            opened = count["consumers"]["default"].dropped_rows
            assert opened > 0, count
            assert opened + count["unacknowledged"] == count["appended"], count
            assert count["unacknowledged"] <= count["max_size"] // 2, count
            algo.conduit_rollouts.store.queue(name).verify()
        assert result["learners"]["__all_modules__"]["num_env_steps_trained"] > 0, result["learners"]
    finally:
        algo.stop()


def restarts(config: Any) -> None:
    """An env runner is killed, the algorithm goes on, and its successor writes into the same queue.

    Two of them: where none is left for a moment, RLlib asks the driver's own, which has no environment.
    """
    config.env_runners(num_env_runners=2, num_cpus_per_env_runner=0).fault_tolerance(restart_failed_env_runners=True)
    config.resources(num_cpus_for_main_process=0)
    algo = conduit.rllib.attach(config, host_memory="256MiB").build_algo()
    try:
        algo.train()
        worker, _ = algo.env_runner_group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)
        os.kill(worker, signal.SIGKILL)
        appended = _appended(algo)
        for _ in range(60):
            result: Any = algo.train()
            found = algo.env_runner_group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)
            if len(found) == 2 and worker not in found and _appended(algo) > appended + 1_000:
                writers = algo.env_runner_group.foreach_env_runner(
                    lambda runner: runner._conduit_writer is not None, local_env_runner=False
                )
                assert writers == [True, True]
                break
        else:
            raise AssertionError(f"no steps of a successor of {worker} in {_appended(algo) - appended} rows")
        assert result["learners"]["default_policy"]["num_module_steps_trained"] > 0
        algo.conduit_rollouts.store.queue("episodes").verify()
    finally:
        algo.stop()


def tunes(config: Any, name: str) -> None:
    """Trials of an on-policy algorithm side by side: every step goes through the trial's own queue."""
    for found in tune_trials(config, name):
        count = found["conduit"]["episodes"]
        sampled = found["num_env_steps_sampled_lifetime"]
        assert sampled >= 2 * 256
        assert sampled < count["appended"], count
        opened = count["consumers"]["default"].dropped_rows
        assert opened + count["unacknowledged"] == count["appended"], count
        assert opened > 0
        if name == "PPO":
            assert count["unacknowledged"] == 0, count
            assert count["appended"] < 1.5 * sampled, count


def _appended(algo: Any) -> int:
    return int(algo.conduit_rollouts.report()["episodes"]["appended"])


def behind(config: Any, learners: int, aggregators: int = 0) -> Any:
    """One env runner process before the learners, all of them small: two cores are enough for Ray."""
    config.env_runners(num_env_runners=1, num_cpus_per_env_runner=0)
    config.learners(num_learners=learners, num_cpus_per_learner=0, num_aggregator_actors_per_learner=aggregators)
    config.resources(num_cpus_for_main_process=0)
    return config.reporting(min_time_s_per_iteration=1, min_sample_timesteps_per_iteration=500)


def halves(config: Any) -> Any:
    """A processor for the trial's two processes: trials of Tune cannot do with none."""
    return config.env_runners(num_cpus_per_env_runner=0.5).resources(num_cpus_for_main_process=0.5)


SCENARIOS = {
    "ppo": lambda: exact(lambda: ppo().env_runners(num_envs_per_env_runner=2)),
    "ppo_lstm": lambda: exact(lambda: ppo(**HALF).rl_module(model_config=SMALL | LSTM)),
    "ppo_connector": lambda: exact(marked, updates=2),
    "ppo_agents": lambda: exact(lambda: agents(ppo(**HALF)), queues=2),
    "impala": lambda: exact_learner(lambda: asynchronous(IMPALAConfig)),
    "appo": lambda: exact_learner(lambda: asynchronous(APPOConfig, **LSTM)),
}
PROCESSES = {
    "ppo_remote": lambda: exact(lambda: ppo().env_runners(num_env_runners=1, num_envs_per_env_runner=2)),
    "ppo_learners": lambda: exact(lambda: ppo(train_batch_size_per_learner=128).learners(num_learners=2), updates=2),
}

FLOWS = {
    "episodes": episodes,
    "gives_up": gives_up,
    "appo_aggregates": lambda: flows(behind(asynchronous(APPOConfig), 0, aggregators=1)),
    "impala_learners": lambda: flows(behind(asynchronous(IMPALAConfig), 1)),
    "impala_learners_aggregate": lambda: flows(behind(asynchronous(IMPALAConfig), 2, aggregators=1)),
    "appo_agents": lambda: flows(agents(behind(asynchronous(APPOConfig), 1)), queues=2),
    "restarts": lambda: restarts(behind(asynchronous(APPOConfig), 0)),
    "ppo_restarts": lambda: restarts(ppo().reporting(min_time_s_per_iteration=0)),
    "tune_ppo": lambda: tunes(ppo().reporting(min_time_s_per_iteration=0), "PPO"),
    "tune_appo": lambda: tunes(halves(behind(asynchronous(APPOConfig), 0)), "APPO"),
}
