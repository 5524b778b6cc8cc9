"""Sampling: batches, what they are made of, who may keep them, streams, waits."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch

from conduit import Batch, ConfigError, SampleTimeout, Store, Table, UnknownColumn, windows
from conduit_store.arrow import to_numpy
from tests.store_support import (
    episodes,
    fresh_store,
    in_sigma,
    plain_table,
    scalar_writer,
    schema,
    step,
    windows_of,
)
from tests.waiting import until
from tests.worker import forked

EVERY_KIND = schema(
    image=("u1", (4, 3)), flag="?", half="f2", wide="f8", small="i1", count="u8", at="M8[ns]", took="m8[us]",
    pair=("i2", (2,)),
)  # fmt: skip


def filled(store: Store, n: int = 100, **options: Any) -> Table:
    table = plain_table(store, n, **options)
    table.extend({"x": np.arange(n)})
    return table


def every_kind(n: int) -> dict[str, Any]:
    numbers = np.arange(n)
    return {
        "image": np.arange(12 * n, dtype=np.uint8).reshape(n, 4, 3), "flag": numbers % 2 == 1,
        "half": numbers.astype(np.float16), "wide": numbers / 7, "small": (numbers - 3).astype(np.int8),
        "count": numbers.astype(np.uint64) + 2**63, "at": numbers.astype("M8[ns]"), "took": numbers.astype("m8[us]"),
        "pair": np.stack([numbers, -numbers], 1).astype(np.int16),
    }  # fmt: skip


def test_a_batch_is_a_mapping_of_arrays() -> None:
    with fresh_store() as store:
        batch = filled(store).sample(32)
        assert isinstance(batch, Batch)
        assert (len(batch), batch.names, list(batch)) == (32, ("x",), ["x"])
        assert "x" in batch
        assert "y" not in batch
        assert batch["x"] is batch["x"]
        assert [name for name, _ in batch.items()] == ["x"]
        assert repr(batch) == "<Batch of 32 rows: x>"
        with pytest.raises(UnknownColumn, match="no column 'y' in this batch, which has x"):
            batch["y"]
        dtypes = [str(array.dtype) for array in (batch.keys, batch.probabilities, batch.weights)]
        assert dtypes == ["uint64", "float64", "float32"]
        assert batch.keys.shape == batch.probabilities.shape == batch.weights.shape == (32,)


@pytest.mark.parametrize("n", [1, 3, 64, 1000])
def test_every_dtype_in_numpy_torch_and_arrow(n: int) -> None:
    given = every_kind(10)
    with fresh_store() as store:
        table = store.create_table("t", EVERY_KIND, 10)
        table.extend(given)
        batch = table.sample(n)
        order = batch["half"].astype(int)
        for name, array in batch.items():
            assert array.dtype == EVERY_KIND.column(name).dtype
            assert array.flags.aligned
            assert array.flags.c_contiguous
            assert array.flags.writeable
            np.testing.assert_array_equal(array, given[name][order])
        tensors = batch.torch()
        assert set(tensors) == {*EVERY_KIND.names, "weights"}
        for name in EVERY_KIND.names:
            expected = batch[name].view(np.int64) if batch[name].dtype.kind in "mM" else batch[name]
            assert tensors[name].shape == expected.shape
            np.testing.assert_array_equal(tensors[name].numpy(), expected)
        arrow = batch.to_arrow()
        assert arrow.num_rows == n
        for name in EVERY_KIND.names:
            np.testing.assert_array_equal(to_numpy(name, arrow.column(name)), batch[name])


def test_tensors_share_the_batchs_memory() -> None:
    with fresh_store() as store:
        batch = filled(store).sample(32)
        tensor = batch.torch()["x"]
        tensor[0] = -5
        assert batch["x"][0] == -5
        batch["x"][1] = -6
        assert tensor[1] == -6
        arrow = batch.to_arrow().column("x").to_numpy()
        batch["x"][2] = -7
        assert arrow[2] == -7
        assert torch.equal(batch.torch()["x"], tensor)


@pytest.mark.parametrize("part", ["array", "tensor", "arrow", "keys", "weights"])
def test_what_is_kept_of_a_batch_never_changes(part: str) -> None:
    """Its memory is used again for later batches once nothing of it is left, and not before."""
    with fresh_store() as store:
        table = filled(store)
        kept: list[Any] = []
        copies: list[Any] = []
        for _ in range(20):
            batch = table.sample(512)
            made = {
                "array": lambda b: b["x"], "tensor": lambda b: b.torch()["x"], "arrow": lambda b: b.to_arrow()["x"],
                "keys": lambda b: b.keys, "weights": lambda b: b.torch()["weights"],
            }[part](batch)  # fmt: skip
            kept.append(made)
            copies.append(np.asarray(made).copy())
            del batch, made
        gc.collect()
        for made, copy in zip(kept, copies, strict=True):
            np.testing.assert_array_equal(np.asarray(made), copy)


def test_uniform_batches() -> None:
    with fresh_store() as store:
        batch = filled(store, 50).sample(50_000)
        counts = np.bincount(batch["x"], minlength=50)
        assert all(in_sigma(count, 50_000, 1 / 50) for count in counts)
        assert (batch.probabilities == 1 / 50).all()
        assert (batch.weights == 1).all()


def test_uniform_draws_are_of_the_rows_with_a_window() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=3)
        with scalar_writer(table) as writer:
            for i in range(20):
                step(writer, i)
            batch = table.sample(10_000)
            counts = np.bincount(batch["obs"], minlength=20)
            assert not counts[17:].any()
            assert all(in_sigma(count, 10_000, 1 / 17) for count in counts[:17])
            np.testing.assert_allclose(batch.probabilities, 1 / 17)


def test_a_key_names_the_drawn_row() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=2)
        with scalar_writer(table) as writer:
            for i in range(20):
                step(writer, i, float(i))
            batch = table.sample(64)
            again = table.rows(batch.keys)
            for name, array in batch.items():
                np.testing.assert_array_equal(again[name], array)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [1, 2, 5, 1024])
def test_n_step_returns_in_the_dtype_of_rewards(dtype: str, n: int) -> None:
    rewards = np.random.default_rng(3).normal(size=30)
    with fresh_store() as store:
        table = store.create_table(
            "t", schema(obs="i8", action="i8", reward=dtype, terminated="?", truncated="?"), 100,
            window=windows.NStep(n, 0.97),
        )  # fmt: skip
        with scalar_writer(table) as writer:
            for i, reward in enumerate(rewards):
                writer.append(obs=i, action=0, reward=float(reward), terminated=i == 29, truncated=False)
            writer.end(30)
        stored = rewards.astype(dtype).astype(float)
        found = windows_of(table)
        for i in range(30):
            m = min(n, 30 - i)
            expected = sum(0.97**k * stored[i + k] for k in range(m))
            assert found[i]["reward"] == pytest.approx(expected, rel=1e-6 if dtype == "f4" else 1e-12, abs=1e-6)
            assert (found[i]["n_step"], found[i]["next_obs"]) == (m, i + m)
            assert found[i]["discount"] == pytest.approx(0.0 if i + m == 30 else 0.97**m, rel=1e-6)
        assert table.sample(4)["reward"].dtype == np.dtype(dtype)


# ---- streams and seeds


def test_draws_follow_from_seed_stream_and_number() -> None:
    drawn: dict[tuple[int, int], list[list[int]]] = {}
    for seed in (1, 2):
        for stream in (0, 5):
            with fresh_store() as store:
                table = filled(store, 1000, seed=seed)
                drawn[seed, stream] = [table.sample(16, stream=stream)["x"].tolist() for _ in range(3)]
    for seed in (1, 2):
        with fresh_store() as store:
            table = filled(store, 1000, seed=seed)
            for number in range(3):  # interleaved: each stream counts its own batches
                for stream in (5, 0):
                    assert table.sample(16, stream=stream)["x"].tolist() == drawn[seed, stream][number]
    batches = [tuple(batch) for batches in drawn.values() for batch in batches]
    assert len(set(batches)) == 12


def test_attached_handles_draw_from_streams_of_their_own() -> None:
    with fresh_store() as store, Store.attach(store.name) as again:
        table = filled(store, 10_000, seed=1)
        a, b = table.sample(32)["x"], again["t"].sample(32)["x"]
        assert a.tolist() != b.tolist()
        own = {tuple(table.sample(32, stream=s)["x"]) for s in range(4)}
        assert len({*own, tuple(a), tuple(b)}) == 6


@pytest.mark.parametrize("stream", [-1, 2**31, 1.5, "a", True])
def test_streams_that_are_refused(stream: Any) -> None:
    with fresh_store() as store, pytest.raises(ConfigError, match="stream is"):
        filled(store).sample(1, stream=stream)


@pytest.mark.parametrize("failure", [SampleTimeout, ConfigError])
def test_a_batch_that_was_not_delivered_is_drawn_by_the_next_call(failure: type[Exception]) -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, seed=4)
        for _ in range(3):
            with pytest.raises(failure):
                table.sample(8, timeout=0 if failure is SampleTimeout else -1, stream=0)
        table.extend({"x": np.arange(100)})
        first = table.sample(8, stream=0)["x"].tolist()
    with fresh_store() as store:
        table = plain_table(store, 100, seed=4)
        table.extend({"x": np.arange(100)})
        assert table.sample(8, stream=0)["x"].tolist() == first


# ---- threads and waits


def test_a_sample_waits_for_a_row_of_another_process() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        drawn: list[int] = []
        thread = threading.Thread(target=lambda: drawn.extend(table.sample(4, timeout=60)["x"].tolist()))
        thread.start()
        until(lambda: table.info().sample_wait_s > 0)
        assert forked(lambda: table.extend({"x": np.array([7])})) == 1
        thread.join(30)
        assert drawn == [7] * 4


def test_threads_sample_at_the_same_time() -> None:
    with fresh_store() as store:
        table = filled(store, 1000)
        seen: list[Any] = []

        def draw() -> None:
            for _ in range(50):
                batch = table.sample(64)
                seen.append((batch["x"].copy(), batch))

        threads = [threading.Thread(target=draw) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 200
        for copy, batch in seen:
            np.testing.assert_array_equal(batch["x"], copy)
        assert len({tuple(copy) for copy, _ in seen}) == 200
        assert table.info().batches == 200
