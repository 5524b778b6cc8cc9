"""TorchRL's losses, trainer and collectors over a table; rows and priorities are checked against what went in."""

from __future__ import annotations

import copy
import multiprocessing
import multiprocessing.resource_tracker
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import DoubleToFloat, GymEnv
from torchrl.modules import ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import DQNLoss, SACLoss, SoftUpdate, ValueEstimators
from torchrl.trainers import ReplayBufferTrainer, Trainer

import conduit
from conduit.torchrl import ReplayBuffer
from tests.store_support import EPISODIC, fresh_store

pytestmark = pytest.mark.filterwarnings(
    "ignore:No target network updater", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


@pytest.fixture(autouse=True, scope="module")
def resource_tracker() -> None:
    """Python's own, started before descriptors are counted; it stays."""
    multiprocessing.resource_tracker.ensure_running()


@pytest.fixture
def store() -> Iterator[conduit.Store]:
    with fresh_store("64MiB") as made:
        yield made


def transitions(n: int, first: int = 0) -> TensorDict:
    """Rows that say in each observation which they are."""
    numbers = torch.arange(first, first + n, dtype=torch.float32)
    flags = torch.zeros(n, 1, dtype=torch.bool)
    following = {"observation": numbers[:, None] + torch.ones(4), "reward": numbers[:, None], "done": flags}
    return TensorDict(
        {
            "observation": numbers[:, None] * torch.ones(4),
            "action": nn.functional.one_hot(torch.arange(n) % 2, 2),
            "next": {**following, "terminated": flags.clone()},
        },
        [n],
    )


def q_values() -> Any:
    torch.manual_seed(0)
    return QValueActor(nn.Linear(4, 2), in_keys=["observation"], action_space="one_hot")


def prioritized() -> conduit.samplers.Prioritized:
    return conduit.samplers.Prioritized(alpha=0.7, beta=0.5)


def as_torchrl(buffer: ReplayBuffer) -> Any:
    """Its annotations name TorchRL's own classes; what counts is the shape."""
    return buffer


def unsigned(keys: torch.Tensor) -> Any:
    return keys.numpy().view(np.uint64)


def test_dqn_updates_and_priorities_land_on_their_rows(store: conduit.Store) -> None:
    buffer = ReplayBuffer(store, "replay", 1_000, sampler=prioritized(), batch_size=64)
    assert len(buffer) == 0
    assert not buffer.can_sample()
    data = transitions(100)
    keys = buffer.extend(data)
    assert torch.equal(data["index"], keys)
    number_of = {int(key): number for number, key in enumerate(keys)}
    loss = DQNLoss(q_values(), action_space="one_hot", loss_function="l2")
    optimizer = torch.optim.SGD(loss.parameters(), 1e-6)
    latest: dict[int, float] = {}
    for _ in range(5):
        batch, info = buffer.sample(return_info=True)
        numbers = torch.tensor([number_of[int(key)] for key in batch["index"]], dtype=torch.float32)
        assert torch.equal(batch["observation"], numbers[:, None] * torch.ones(4))
        assert torch.equal(batch["next", "reward"], numbers[:, None])
        assert torch.equal(info["priority_weight"], batch["priority_weight"])
        assert batch["priority_weight"].max() == 1.0
        value = loss(batch)["loss"]
        with torch.no_grad():  # each row's error counts by its weight, and the loss is what its own TD errors say
            expected = (batch["td_error"].reshape(-1) * batch["priority_weight"]).sum() / batch["priority_weight"].sum()
            mean = (batch["td_error"].reshape(-1) * batch["priority_weight"]).mean()
            assert torch.isclose(value, expected) or torch.isclose(value, mean)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        buffer.update_tensordict_priority(batch)
        latest |= dict(zip(batch["index"].tolist(), batch["td_error"].reshape(-1).tolist(), strict=True))
    told = buffer.table.priorities(unsigned(torch.tensor(list(latest))))
    np.testing.assert_array_equal(told, np.array(list(latest.values()), np.float32))
    untouched = [key for key in keys.tolist() if key not in latest]
    assert (buffer.table.priorities(unsigned(torch.tensor(untouched))) == 1.0).all()


def test_sac_takes_its_batches(store: conduit.Store) -> None:
    buffer = ReplayBuffer(store, "replay", 1_000, sampler=prioritized(), batch_size=16)
    data = transitions(50)
    data["action"] = torch.rand(50, 2) * 2 - 1
    buffer.extend(data)
    body = TensorDictModule(
        nn.Sequential(nn.Linear(4, 4), NormalParamExtractor()), in_keys=["observation"], out_keys=["loc", "scale"]
    )
    actor = ProbabilisticActor(body, in_keys=["loc", "scale"], distribution_class=TanhNormal)

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(6, 1)

        def forward(self, obs: torch.Tensor, action: torch.Tensor) -> Any:
            return self.net(torch.cat([obs, action], -1))

    critic = ValueOperator(Critic(), in_keys=["observation", "action"])
    loss = SACLoss(actor, critic, action_spec=None, target_entropy=-2.0)
    batch = buffer.sample()
    losses = loss(batch)
    (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
    buffer.update_tensordict_priority(batch)
    told = buffer.table.priorities(unsigned(batch["index"]))
    for key, given in zip(batch["index"].tolist(), told, strict=True):  # of equal keys the last wins, and all are equal
        errors = batch["td_error"][batch["index"] == key]
        assert given == errors.reshape(-1)[-1].numpy()


def test_the_trainer_runs_and_saves(store: conduit.Store, tmp_path: Path) -> None:
    buffer = ReplayBuffer(store, "replay", 1_000, sampler=prioritized(), batch_size=32, prefetch=1)
    policy = q_values()
    loss = DQNLoss(policy, action_space="one_hot")
    trainer = Trainer(
        collector=Collector(GymEnv("CartPole-v1"), policy, frames_per_batch=50, total_frames=200), total_frames=200,
        frame_skip=1, optim_steps_per_batch=3, loss_module=loss, optimizer=torch.optim.Adam(loss.parameters()),
        progress_bar=False, save_trainer_file=str(tmp_path / "trainer.pt"), save_trainer_interval=200,
    )  # fmt: skip
    hook = ReplayBufferTrainer(as_torchrl(buffer), flatten_tensordicts=True)
    hook.register(trainer)
    trainer.register_op("post_optim", SoftUpdate(loss, eps=0.9).step)
    trainer.train()
    assert len(buffer) == buffer.write_count == 200
    assert (buffer.table.info().updated, buffer.table.info().stale_updates) == (4 * 3 * 32, 0)
    assert (tmp_path / "trainer.pt").exists()
    state = copy.deepcopy(hook.state_dict())
    buffer.empty()
    assert len(buffer) == 0
    hook.load_state_dict(state)
    assert len(buffer) == 200
    buffer.close()


def test_steps_of_episodes_are_stored_once_and_sampled_in_n_steps(store: conduit.Store) -> None:
    """Two environments of five steps, the first ends in its third; then the window of three steps by hand."""
    table = store.create_table(
        "steps", EPISODIC, 100, window=conduit.windows.NStep(3, gamma=0.5), sampler=prioritized()
    )
    buffer = ReplayBuffer(table, batch_size=200)
    obs = torch.arange(10).reshape(2, 5)
    done = torch.zeros(2, 5, 1, dtype=torch.bool)
    done[0, 2] = True
    following = {"observation": obs + 100, "reward": torch.ones(2, 5, 1), "terminated": done, "done": done}
    data = TensorDict(
        {"observation": obs, "action": obs, "next": {**following, "truncated": torch.zeros_like(done)}}, [2, 5]
    )
    keys = buffer.extend(data)
    assert torch.equal(data["index"], keys.view(2, 5))
    assert len(buffer) == 10
    batch = buffer.sample()
    rows = {int(row["observation"]): row for row in batch}
    assert sorted(rows) == list(range(10))
    steps = {number: int(row["steps_to_next_obs"]) for number, row in rows.items()}
    assert steps == {0: 3, 1: 2, 2: 1, 3: 2, 4: 1, 5: 3, 6: 3, 7: 3, 8: 2, 9: 1}
    for number, row in rows.items():
        assert row["next", "reward"].item() == {1: 1.0, 2: 1.5, 3: 1.75}[steps[number]]
        last = number + steps[number] - 1
        ends = last in (2, 4, 9)  # elsewhere the next row is what the last step led to
        assert int(row["next", "observation"]) == (last + 100 if ends else last + 1)
        assert row["next", "terminated"].item() == (last == 2)
        assert row["next", "truncated"].item() == (last in (4, 9))
        assert row["next", "done"].item() == ends
    # TorchRL discounts by steps_to_next_obs what Conduit discounts by `discount`
    batch = batch.select("observation", "action", "next", "steps_to_next_obs", "discount")
    batch["observation"], batch["next", "observation"] = (
        x[:, None].float() * torch.ones(4) / 100 for x in (batch["observation"], batch["next", "observation"])
    )
    batch["action"] = nn.functional.one_hot(batch["action"] % 2, 2)
    net = q_values()
    loss = DQNLoss(net, action_space="one_hot", delay_value=False)
    loss.make_value_estimator(ValueEstimators.TD0, gamma=0.5)
    loss(batch)
    with torch.no_grad():
        following_value = net.module[0].module(batch["next", "observation"]).amax(1)
        target = batch["next", "reward"][:, 0] + batch["discount"] * following_value
        chosen = (net.module[0].module(batch["observation"]) * batch["action"]).sum(1)
    torch.testing.assert_close(batch["td_error"].reshape(-1), (chosen - target).square())


def test_trajectories_that_change_within_a_batch_are_cut(store: conduit.Store) -> None:
    buffer = ReplayBuffer(store.create_table("steps", EPISODIC, 100), batch_size=50)
    numbers = torch.arange(4)
    flags = torch.zeros(4, 1, dtype=torch.bool)
    after = {"observation": numbers + 100, "reward": torch.zeros(4, 1), "terminated": flags, "truncated": flags}
    trajectories = {"traj_ids": torch.tensor([7, 7, 8, 8])}
    buffer.extend(
        TensorDict({"observation": numbers, "action": numbers, "next": after, "collector": trajectories}, [4])
    )
    rows = {int(row["observation"]): int(row["next", "observation"]) for row in buffer.sample()}
    assert rows == {0: 1, 1: 101, 2: 3}  # what the fourth led to comes with the next rows


def write_rows(buffer: ReplayBuffer, first: int) -> None:
    buffer.extend(transitions(100, first))


def test_another_process_writes_and_makes_the_table(store: conduit.Store) -> None:
    """The buffer is pickled before there is a table; two processes race to make it."""
    buffer = ReplayBuffer(store, "replay", 1_000, sampler=prioritized(), batch_size=500)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_rows, args=(buffer, first)) for first in (0, 1_000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(buffer) == buffer.write_count == 200
    numbers = set(buffer.sample()["next", "reward"].reshape(-1).tolist())
    assert {number >= 1_000 for number in numbers} == {False, True}
    assert numbers <= {float(n) for n in (*range(100), *range(1_000, 1_100))}


def test_a_collector_writes_to_it(store: conduit.Store) -> None:
    buffer = ReplayBuffer(store, "replay", 1_000, batch_size=8)
    collector = Collector(
        GymEnv("CartPole-v1"), q_values(), frames_per_batch=20, total_frames=60, replay_buffer=as_torchrl(buffer)
    )
    assert list(collector) == [None] * 3
    collector.shutdown()
    assert len(buffer) == 60
    assert set(buffer.sample()["collector", "traj_ids"].tolist()) <= set(range(60))


def test_prefetched_batches_are_those_that_are_drawn(store: conduit.Store) -> None:
    table = store.create_table("rows", conduit.Schema.from_example({"x": 0}), 100, seed=3)
    table.extend({"x": np.arange(100)})
    drawn = [table.sample(10, stream=0)["x"].tolist() for _ in range(4)]
    assert len({tuple(x) for x in drawn}) == 4
    buffer = ReplayBuffer(table, batch_size=10, prefetch=2)
    with table.loader(10) as loader:
        loader.next()
    batches = [batch for _, batch in zip(range(4), buffer, strict=False)]
    assert all(batch["x"].shape == (10,) for batch in batches)
    for batch in batches:
        assert table.rows(unsigned(batch["index"]))["x"].tolist() == batch["x"].tolist()
    assert buffer.sample(3).batch_size == (3,)  # another size is drawn at the call
    buffer.close()
    buffer.close()


def test_transforms_go_both_ways(store: conduit.Store) -> None:
    buffer = ReplayBuffer(store, "replay", 100, batch_size=4, transform=lambda td: td.set("twice", td["x"] * 2))
    buffer.append_transform(DoubleToFloat(in_keys=["y"], in_keys_inv=[]))
    buffer.extend(TensorDict({"x": torch.arange(5), "y": torch.arange(5, dtype=torch.float64)}, [5]))
    batch = buffer.sample()
    assert torch.equal(batch["twice"], batch["x"] * 2)
    assert batch["y"].dtype == torch.float32
    assert buffer.table.schema.column("y").dtype == np.float64
    assert len(buffer.transform) == 2


def test_add_and_own_priorities(store: conduit.Store) -> None:
    buffer = ReplayBuffer(store, "replay", 100, batch_size=50, sampler=prioritized())
    first = buffer.add(TensorDict({"x": torch.tensor(1), "td_error": torch.tensor([0.0, 0.0])}))
    second = buffer.add(TensorDict({"x": torch.tensor(2), "td_error": torch.tensor([0.5, 3.0])}))
    assert first.shape == second.shape == ()
    assert buffer.table.schema.names == ("x",)
    assert buffer.table.priorities(unsigned(torch.stack([first, second]))).tolist() == [0.0, 3.0]
    assert set(buffer.sample()["x"].tolist()) == {2}
    buffer.update_priority(first, 5.0)
    assert buffer.table.priorities(unsigned(first[None])).tolist() == [5.0]


@pytest.mark.parametrize("way", ["state", "folder"])
def test_rows_and_priorities_are_saved(store: conduit.Store, tmp_path: Path, way: str) -> None:
    def over(source: ReplayBuffer, target: ReplayBuffer) -> None:
        if way == "state":
            torch.save(source.state_dict(), tmp_path / "state.pt")
            target.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        else:
            source.dumps(tmp_path / "folder")
            target.loads(tmp_path / "folder")

    buffer = ReplayBuffer(store, "replay", 1_000, batch_size=10, sampler=prioritized())
    other = ReplayBuffer(store, "other", 1_000, batch_size=10, sampler=prioritized())
    over(buffer, other)  # nothing yet
    assert len(other) == 0
    keys = buffer.extend(transitions(30))
    buffer.update_priority(keys, torch.arange(30.0))
    over(buffer, other)
    over(buffer, other)  # in place of what is there
    assert other.table.schema == buffer.table.schema
    rows = other.table.to_numpy()
    assert rows["next/reward"][:, 0].tolist() == list(range(30))
    assert rows["priority"].tolist() == list(range(30))
    with pytest.raises(conduit.ExchangeError):
        other.load_state_dict({"rows": torch.zeros(3, dtype=torch.uint8)})
    with pytest.raises(conduit.ExchangeError):
        other.loads(tmp_path / "nowhere")
    assert len(other) == 30


def test_what_is_refused_says_why(store: conduit.Store) -> None:
    uniform = ReplayBuffer(store, "uniform", 100)
    with pytest.raises(conduit.UnknownTable, match="first rows"):
        uniform.sample(1)
    with pytest.raises(conduit.ConfigError, match="batch size"):
        uniform.extend(transitions(4).reshape(2, 2))
    with pytest.raises(conduit.SchemaError, match="bfloat16"):
        uniform.extend(TensorDict({"x": torch.zeros(3, dtype=torch.bfloat16)}, [3]))
    with pytest.raises(conduit.SchemaError, match="text"):
        uniform.extend(TensorDict({"x": torch.zeros(1), "text": "words"}, [1]))
    with pytest.raises(conduit.SchemaError, match="no entry"):
        uniform.extend(TensorDict({}, [3]))
    data = transitions(3)
    uniform.extend(data)
    with pytest.raises(conduit.ConfigError, match="no batch_size"):
        uniform.sample()
    uniform.update_tensordict_priority(data)  # trainers call it whatever the sampler is
    with pytest.raises(conduit.ConfigError):
        uniform.update_priority(data["index"], torch.ones(3))
    with pytest.raises(conduit.MissingColumn, match="next"):
        uniform.extend(TensorDict({"observation": torch.zeros(1, 4), "action": torch.zeros(1, 2).long()}, [1]))
    with pytest.raises(conduit.ConfigError, match="max_size"):
        ReplayBuffer(store)
    with pytest.raises(conduit.ConfigError, match="go with a store"):
        ReplayBuffer(uniform.table, max_size=10)
    with pytest.raises(conduit.ConfigError, match="a store"):
        ReplayBuffer([])  # type: ignore[arg-type]
    with pytest.raises(conduit.UnknownWindow):
        ReplayBuffer(uniform.table, window="other")
    with pytest.raises(conduit.NameTaken, match="max_size=100, not 200"):
        ReplayBuffer(store, "uniform", 200)
    with pytest.raises(conduit.NameTaken, match="sampler"):
        ReplayBuffer(store, "uniform", 100, sampler=prioritized())
    assert len(ReplayBuffer(store, "uniform", 100, sampler=conduit.samplers.Uniform())) == 3
    sequences = store.create_table("sequences", EPISODIC, 100, window=conduit.windows.Sequence(4))
    with pytest.raises(conduit.ConfigError, match="sequences"):
        ReplayBuffer(sequences)
    drawn = ReplayBuffer(store, "drawn", 100, sampler=prioritized(), batch_size=2)
    drawn.extend(transitions(3))
    with pytest.raises(conduit.MissingColumn, match="td_error"):
        drawn.update_tensordict_priority(drawn.sample())
    with pytest.raises(conduit.ShapeMismatch):
        drawn.update_priority(drawn.sample()["index"], torch.ones(3))


def test_pickled_it_is_the_same_table(store: conduit.Store) -> None:
    buffer = ReplayBuffer(store, "replay", 100, batch_size=2, prefetch=1)
    buffer.extend(transitions(3))
    buffer.sample()
    other = pickle.loads(pickle.dumps(buffer))
    other.extend(transitions(2))
    assert len(buffer) == 5
    assert repr(other) == "<conduit.torchrl.ReplayBuffer 'replay': 5 of 100 rows>"
    assert (other.storage.max_size, len(other.storage), str(other.storage.device)) == (100, 5, "cpu")
    other.close()
    buffer.close()


def test_without_torchrl_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['torchrl'] = None; import conduit.torchrl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert "MissingExtra: conduit.torchrl needs torchrl" in done.stderr
    assert "conduit-edp[torchrl]" in done.stderr
