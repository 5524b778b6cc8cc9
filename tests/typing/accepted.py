"""How the API is used: mypy --strict and pyright must find nothing here. Read by test_typing, never run."""

from typing import assert_type

import numpy as np
import numpy.typing as npt

import conduit
from conduit import checkpoints, limiters, samplers, windows

schema = conduit.Schema.from_example({"obs": np.zeros(4, np.float32), "action": 0})

with conduit.Store.create("run1", host_memory="4GiB", max_processes=8) as store:
    assert_type(store, conduit.Store)
    replay = store.create_table(
        "replay", schema, 1_000, sampler=samplers.Prioritized(alpha=0.6), window=windows.NStep(3, gamma=0.99),
        limiter=limiters.MinSize(10), seed=3, exist_ok=True,
    )  # fmt: skip
    assert_type(replay, conduit.Table)
    assert_type(store["replay"], conduit.Table)
    assert_type(store.tables(), list[str])
    assert_type(len(replay), int)
    with replay.writer() as writer:
        assert_type(writer, conduit.Writer)
        writer.append(obs=np.zeros(4), action=1, priority=2.0)
        writer.end(np.zeros(4))
    with replay.writer(num_envs=4, autoreset="same_step") as vector:
        assert_type(vector, conduit.VectorWriter)
        vector.append(obs=np.zeros((4, 4)), action=[1] * 4, final_obs=None, priorities=np.ones(4))
    assert_type(replay.extend({"obs": [[0.0] * 4], "action": [1]}, priorities=[1.0]), int)
    batch = replay.sample(32, timeout=None, stream=1)
    assert_type(batch, conduit.Batch)
    assert_type(batch.keys, npt.NDArray[np.uint64])
    assert_type(batch.weights, npt.NDArray[np.float32])
    result = replay.update_priorities(batch.keys, np.ones(32))
    assert_type(result.applied, int)
    assert_type([view.keys for view in replay.blocks()], list[npt.NDArray[np.uint64]])
    with replay.loader(32, prefetch=2, max_priority_drift=0.1, device=None, stream=1, max_staging="1MiB") as loader:
        assert_type(loader, conduit.Loader)
        for loaded in loader:
            print(loaded.keys)
        assert_type(loader.metrics().exposed_s, float)
        assert_type(loader.metrics().drift_bound, float | None)
    assert_type(store.metrics().tables["replay"].rows, int)
    sequences = conduit.Schema(
        (conduit.Column("tokens", "int32", (None,), mean_length=512), conduit.Column("prompt", "string", mean_length=9))
    )
    rollouts = store.create_table("rollouts", sequences, 1_000)
    rollouts.extend({"tokens": [np.zeros(3, np.int32)], "prompt": ["hello"]})
    tokens: conduit.Ragged = rollouts.sample(8)["tokens"]
    assert_type(tokens.lengths, npt.NDArray[np.int64])
    padded, mask = tokens.padded(length=512)
    assert_type(mask, npt.NDArray[np.bool_])
    assert_type(conduit.Ragged.from_padded(padded, tokens.lengths), conduit.Ragged)

try:
    conduit.Store.attach("run1", read_only=True, timeout=1.0).close()
except conduit.StoreNotFound as error:
    assert_type(str(error), str)

with conduit.Store.attach("run1") as live:
    info = live.checkpoint("/data/run1", keep=3, progress=print)
    assert_type(info.locked_s, float)
changes = {"replay": checkpoints.Changes(max_size=10, limiter=None)}
with conduit.Store.restore("/data/run1", "run2", "4GiB", tables=changes, number=info.number) as restored:
    assert_type(restored, conduit.Store)
assert_type(checkpoints.verify("/data/run1").files, set[str])
