"""CQL: stock and through Conduit, given the same rows, to the bit; and from every kind of file."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ray.data.extensions import ArrowTensorArray
from ray.rllib.algorithms.cql import CQLConfig
from ray.rllib.offline.offline_prelearner import OfflinePreLearner

import conduit
import conduit.rllib
from tests.integration.rllib.exact import differ, learners, same

ENV = "Pendulum-v1"
EPISODES, STEPS = 5, 60
BATCH = 32
NAMES = {"obs": "obs", "action": "actions", "reward": "rewards", "next_obs": "new_obs", "terminated": "terminateds",
         "truncated": "truncateds"}  # fmt: skip


def cql(path: Any, *, iterations: int = 4, **data: Any) -> Any:
    config = CQLConfig().environment(ENV).debugging(seed=3).env_runners(num_env_runners=0)
    config.training(train_batch_size_per_learner=BATCH, bc_iters=2, lr=None, num_actions=3)
    config.rl_module(model_config={"fcnet_hiddens": [16]})
    config.reporting(min_train_timesteps_per_iteration=1, min_time_s_per_iteration=0)  # one training step an iteration
    return config.offline_data(input_=path, dataset_num_iters_per_learner=iterations, **data)


def episodes() -> list[dict[str, Any]]:
    """Columns of each episode, with what RLlib's row of a step has; the last one was terminated."""
    random = np.random.default_rng(4)
    env: Any = gym.make(ENV)
    found = []
    for number in range(EPISODES):
        obs = [env.reset(seed=number)[0]]
        rows: dict[str, list[Any]] = {"action": [], "reward": []}
        for _ in range(STEPS):
            action = random.uniform(-1, 1, 1).astype(np.float32)
            after, reward, *_ = env.step(2 * action)
            obs.append(after)
            rows["action"].append(action)
            rows["reward"].append(float(reward))
        ended = np.arange(STEPS) == STEPS - 1
        last = number == EPISODES - 1
        found.append({
            "obs": np.array(obs[:-1], np.float32), "action": np.array(rows["action"]), "next_obs": np.array(obs[1:]),
            "reward": np.array(rows["reward"]), "terminated": ended & last, "truncated": ended & (not last),
        })  # fmt: skip
    return found


def joined(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([episode[name] for episode in found]) for name in found[0]}


@contextmanager
def recorded() -> Iterator[Path]:
    """A folder of two files of steps as RLlib records them: Ray's tensors, strings, a column of nulls."""
    with tempfile.TemporaryDirectory() as folder:
        parts = episodes()
        for i, part in enumerate((parts[:2], parts[2:])):
            columns: dict[str, Any] = {"agent_id": pa.nulls(len(part) * STEPS)}
            for name, values in joined(part).items():
                tensors = values.ndim > 1
                columns[NAMES[name]] = ArrowTensorArray.from_numpy(values) if tensors else pa.array(values)
            columns["eps_id"] = pa.array([f"episode-{n}-{i}" for n in range(len(part)) for _ in range(STEPS)])
            pq.write_table(pa.table(columns), Path(folder) / f"part-{i}.parquet", row_group_size=50)
        yield Path(folder)


def exact(**settings: Any) -> None:
    """Batches of the same rows; parameters and optimizer state after five updates of two batches each."""
    with recorded() as folder:
        stock = cql(str(folder)).training(**settings).build_algo()
        ours = conduit.rllib.attach(cql(str(folder)).training(**settings)).build_algo()
        try:
            updater = [algo.learner_group._learner for algo in (stock, ours)]
            updater[1].set_state(updater[0].get_state())
            before = copy.deepcopy(state(updater[0]))
            (share,) = ours.offline_data.sample(BATCH, return_iterator=True)
            drawn = [*_epoch(share), *_epoch(share)][:10]
            theirs = [_prelearnt(stock, batch) for batch in drawn]
            for i, batch in enumerate(drawn):
                same(dict(sorted(theirs[i].items())), dict(sorted(batch.items())), f"batch {i}")
            for learner, batches in zip(updater, (theirs, drawn), strict=True):
                for i in range(5):
                    torch.manual_seed(i)
                    learner.update(data_iterators=[_Given(batches)], minibatch_size=BATCH, num_iters=2)
            same(state(updater[0]), state(updater[1]), "after")
            assert differ(before, state(updater[0])), "nothing was learnt"
        finally:
            stock.stop()
            ours.stop()


def _prelearnt(stock: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """What RLlib makes of these rows of a file."""
    data = stock.offline_data
    prelearner = OfflinePreLearner(
        config=stock.config, spaces=data.spaces["__env__"], module_spec=data.module_spec
    )
    rows = {name: batch[f"default_policy/{name}"].numpy() for name in NAMES.values()}
    made: dict[str, Any] = prelearner({**rows, "eps_id": np.arange(len(rows["obs"]))})
    return made


class _Given:
    """Ray's `DataIterator` over batches that are there."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def iter_torch_batches(self, **_: Any) -> list[Any]:
        return self.batches


def _epoch(share: Any, size: int = BATCH) -> list[dict[str, Any]]:
    return list(share.iter_torch_batches(batch_size=size, device="cpu"))


def state(learner: Any) -> Any:
    found = learner.get_state(components=["rl_module", "optimizer"])
    return {name: found[name] for name in ("rl_module", "optimizer")}


def cql_rows() -> None:
    """Every row comes once an epoch, whole, in another order each time; shares of learners do not overlap."""
    with recorded() as folder:
        made = conduit.rllib.attach(cql(str(folder)))
        rows = made.offline_data_class(made)
        (share,) = rows.sample(BATCH)
        assert rows.sample(BATCH) == [share]
        batches = share.iter_torch_batches(batch_size=BATCH, device="cpu")
        first, second = list(batches), list(batches)
        wanted = joined(episodes())
        for epoch in (first, second):
            found = {ours: np.concatenate([b[f"default_policy/{name}"] for b in epoch]) for ours, name in NAMES.items()}
            order = np.lexsort(found["obs"].T)
            for name, values in wanted.items():
                expected = values[np.lexsort(wanted["obs"].T)]
                same(found[name][order], expected.astype(np.float32) if name == "reward" else expected, name)
        assert not torch.equal(first[0]["default_policy/obs"], second[0]["default_policy/obs"])
        shares = rows.sample(BATCH, num_shards=2)
        parts = [_epoch(share) for share in shares]
        assert list(map(len, parts)) == [EPISODES * STEPS // (2 * BATCH)] * 2
        seen = [tuple(row) for part in parts for b in part for row in b["default_policy/obs"].tolist()]
        assert len(seen) == len(set(seen)) == 2 * BATCH * len(parts[0])
        with pytest.raises(conduit.ConfigError, match="for each of 2 learners"):
            _epoch(shares[0], size=200)


def cql_sources() -> None:
    """RLlib's episodes, what a table exports, and a checkpoint of a store: the same rows, and CQL learns from them."""
    wanted = joined(episodes())
    order = np.lexsort(wanted["obs"].T)
    name = f"cql-{os.getpid()}"
    with tempfile.TemporaryDirectory() as root, conduit.Store.create(name, "64MiB") as store:
        folder = Path(root)
        example = {key: values[0] for key, values in wanted.items() if key != "next_obs"}
        table = store.create_table("replay", conduit.Schema.from_example(example), 1_000)
        with table.writer() as writer:
            for episode in episodes():
                for t in range(STEPS):
                    writer.append(**{key: episode[key][t] for key in example})
                writer.end(episode["next_obs"][-1])
        table.export(folder / "rows.parquet")
        table.export(folder / "episodes", format="rllib")
        store.checkpoint(folder / "saved")
        sources = (
            cql([str(folder / "rows.parquet")], iterations=1),
            cql(str(folder / "episodes"), input_read_episodes=True),
            cql(str(folder / "saved"), input_read_method_kwargs={"table": "replay"}),
        )
        for config in sources:
            algo = conduit.rllib.attach(config, host_memory="1MiB", prefetch=2).build_algo()
            try:
                (share,) = algo.offline_data.sample(BATCH)
                epoch = _epoch(share)
                for key, theirs in (("obs", "obs"), ("next_obs", "new_obs")):
                    found = np.concatenate([batch[f"default_policy/{theirs}"] for batch in epoch])
                    by = np.lexsort(np.concatenate([batch["default_policy/obs"] for batch in epoch]).T)
                    same(found[by], wanted[key][order], key)
                result: Any = algo.train()
                trained = result["learners"]["__all_modules__"]["num_env_steps_trained"]
                assert trained == BATCH * config.dataset_num_iters_per_learner
            finally:
                algo.stop()


def flows(**data: Any) -> None:
    """Learners in processes of their own, each with its share of the files."""
    with recorded() as folder:
        config = learners(cql(str(folder), **data), 2)
        algo = conduit.rllib.attach(config).build_algo()
        try:
            result: Any = algo.train()
            trained = result["learners"]["__all_modules__"]["num_env_steps_trained"]
            assert trained == BATCH * config.num_learners * config.dataset_num_iters_per_learner
            algo.train()
        finally:
            algo.stop()


SCENARIOS: dict[str, Callable[[], None]] = {
    "cql": lambda: exact(twin_q=True),
    "cql_one_critic": lambda: exact(twin_q=False, deterministic_backup=False),
}
BEHAVIOUR: dict[str, Callable[[], None]] = {f.__name__: f for f in (cql_rows, cql_sources)}
FLOWS = {
    "cql_learners": lambda: flows(iterations=3),
}
