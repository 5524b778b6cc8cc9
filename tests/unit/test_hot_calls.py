"""What the shortest paths through a call do: the same as the careful ones."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

import conduit
from conduit import batch as batches
from conduit import limiters, samplers
from conduit_store.errors import PriorityError, ShapeMismatch, StoreClosed
from conduit_store.native import native
from tests.store_support import fresh_store

_SCHEMA = conduit.Schema.from_example(
    {
        "obs": np.zeros((2, 3), np.float32), "action": np.int64(0), "reward": np.float32(0), "small": np.int8(0),
        "flag": np.bool_(0), "long": np.float64(0), "count": np.uint16(0),
    }
)  # fmt: skip


def rows_of(n: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        column.name: rng.integers(0, 2 if column.dtype == bool else 100, (n, *column.shape)).astype(column.dtype)
        for column in _SCHEMA
    }


class Sub(np.ndarray):
    """A subclass, which may mean something else by its bytes."""


_FORMS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda a: a,
    "a copy in another order": lambda a: np.array(a, order="F"),
    "every other": lambda a: np.repeat(a, 2, axis=0)[::2] if np.ndim(a) else a,
    "swapped bytes": lambda a: a.astype(a.dtype.newbyteorder()),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "a subclass": lambda a: np.asarray(a).view(Sub),
    "a tensor": lambda a: torch.from_numpy(np.asarray(a).copy()),
    "a list": lambda a: a.tolist(),
    "zero-dimensional": np.asarray,
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("form", _FORMS)
def test_rows_are_stored_alike_whatever_they_are_given_as(form: str) -> None:
    given, change = rows_of(12), _FORMS[form]
    with fresh_store() as store:
        table = store.create_table("t", _SCHEMA, 100, sampler=samplers.Fifo())
        with table.writer() as writer:
            for i in range(12):
                writer.append(**{name: change(column[i]) for name, column in given.items()})
        table.extend({name: change(column) for name, column in given.items()})
        batch = table.sample(24)
        for name, column in given.items():
            np.testing.assert_array_equal(batch[name], np.concatenate([column, column]))


@pytest.mark.parametrize("priorities", [np.float32, np.float64, list])
def test_columns_and_priorities(priorities: Any) -> None:
    given = rows_of(8)
    values = [1.0, 2.0, 0.5, 3.0, 1.0, 1.0, 4.0, 0.25]
    with fresh_store() as store:
        table = store.create_table("t", _SCHEMA, 100, sampler=samplers.Prioritized(1.0, 0.4))
        made = values if priorities is list else np.array(values, priorities)
        keys = table.extend(given, priorities=made, return_keys=True)
        assert table.priorities(keys).tolist() == values
        assert table.extend(given, priorities=made) == 8
        for bad in (-1.0, np.nan, np.inf):
            with pytest.raises(PriorityError, match="at position 3 of 8"):
                table.extend(given, priorities=np.array([*values[:3], bad, *values[4:]], np.float32))
        with pytest.raises(ShapeMismatch, match=r"8 rows need shape \(8,\)"):
            table.extend(given, priorities=np.ones(7, np.float32))
        with pytest.raises(ShapeMismatch):
            table.extend(given | {"reward": given["reward"][:7]})
        assert len(table) == 16


def test_what_is_appended_may_leave_the_callers_hands_meanwhile() -> None:
    """The call waits for the limiter while its mapping is emptied and the arrays' memory is used for others."""
    given = rows_of(8)
    with fresh_store() as store:
        table = store.create_table(
            "t", _SCHEMA, 100, sampler=samplers.Fifo(), limiter=limiters.QueueCapacity(4), max_times_sampled=1
        )
        handed = {name: column.copy() for name, column in given.items()}
        thread = threading.Thread(target=table.extend, args=(handed,))
        thread.start()
        first = table.sample(2)
        handed.clear()
        others = [np.full((8, 2, 3), 77.0, np.float32) for _ in range(50)]
        got = [first] + [table.sample(2) for _ in range(3)]
        thread.join()
        assert len(others) == 50
        for name, column in given.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in got]), column)


@pytest.fixture(params=["torch's C function", "capsules"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways into torch; older ones have only the second."""
    if request.param == "capsules":
        made = native.TensorMaker(None, from_dlpack)
        monkeypatch.setattr(batches, "_tensor_maker", lambda: made)
    return str(request.param)


def test_tensors_are_the_columns_and_share_their_buffer(maker: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", _SCHEMA, 100)
        table.extend(rows_of(50))
        batch = table.sample(10)
        tensors = batch.torch()
        assert list(tensors) == [*_SCHEMA.names, "weights"]
        for name in _SCHEMA.names:
            assert tensors[name].numpy().dtype == batch[name].dtype
            np.testing.assert_array_equal(tensors[name].numpy(), batch[name])
            assert tensors[name].data_ptr() == batch[name].ctypes.data
            assert tensors[name].is_contiguous()
            assert not tensors[name].requires_grad
        assert list(batch.torch(without=["obs", "weights", "no column"])) == list(_SCHEMA.names[1:])


def test_the_buffer_comes_back_with_the_last_tensor(maker: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", _SCHEMA, 100)
        table.extend(rows_of(50))
        tensors = table.sample(10).torch()
        gc.collect()
        before = native.staging_kept_bytes()
        view = tensors["obs"][2:4, 1]
        kept = view.clone()
        del tensors
        assert native.staging_kept_bytes() == before
        table.sample(10)
        assert torch.equal(view, kept)
        before = native.staging_kept_bytes()
        thread = threading.Thread(target=lambda held: held.clear(), args=([view],))
        del view
        thread.start()
        thread.join()
        del thread
        gc.collect()
        assert native.staging_kept_bytes() > before


def test_a_failure_to_make_a_tensor_gives_the_buffer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def second_fails(capsule: Any) -> Any:
        if made:
            raise RuntimeError("no more")
        made.append(from_dlpack(capsule))
        return made[0]

    maker = native.TensorMaker(None, second_fails)
    with fresh_store() as store:
        table = store.create_table("t", _SCHEMA, 100)
        table.extend(rows_of(50))
        batch = table.sample(10)
        before = native.staging_kept_bytes()
        monkeypatch.setattr(batches, "_tensor_maker", lambda: maker)
        with pytest.raises(RuntimeError, match="no more"):
            batch.torch()
        del batch
        gc.collect()
        assert native.staging_kept_bytes() == before
        made.clear()
        assert native.staging_kept_bytes() > before


def test_rows_stay_what_they_are_while_their_pages_are_joined() -> None:
    """Appends go on while the kernel moves the table into huge pages."""
    schema = conduit.Schema.from_example({"x": np.zeros(256, np.float32)})
    with fresh_store("64MiB") as store:
        table = store.create_table("t", schema, 30_000, sampler=samplers.Fifo())
        for start in range(0, 30_000, 3_000):
            table.extend({"x": np.arange(start, start + 3_000, dtype=np.float32)[:, None].repeat(256, 1)})
        assert table._populating is not None
        table._populating.join()
        rows = table.to_numpy()["x"]
        np.testing.assert_array_equal(rows[:, ::17], np.arange(30_000, dtype=np.float32)[:, None].repeat(16, 1))
        table.verify()
        starts = [int(line.split("-")[0], 16) for line in Path("/proc/self/maps").read_text().splitlines()
                  if re.search(r"memfd:.*", line) and mapped_bytes(line) >= 32 << 20]  # fmt: skip
        assert starts
        assert all(start % (2 << 20) == 0 for start in starts)


def test_who_closes_a_store_does_not_wait_for_all_of_its_pages() -> None:
    with fresh_store("64MiB") as store:
        table = store.create_table("t", _SCHEMA, 1_000)
        core, attachment = table._native, store._native
        attachment.shutdown()
        for touch in (
            lambda: attachment.populate(core.data_offset, core.data_bytes, True),
            lambda: core.join_index(0, core.control_bytes),
        ):
            with pytest.raises(StoreClosed):
                touch()


def mapped_bytes(line: str) -> int:
    first, end = line.split()[0].split("-")
    return int(end, 16) - int(first, 16)


def test_a_batch_that_is_made_of_nothing_is_refused_and_does_no_harm() -> None:
    with pytest.raises(TypeError, match="a buffer and its format"):
        conduit.Batch(1, 2)  # type: ignore[arg-type]
    hollow = conduit.Batch.__new__(conduit.Batch)
    assert hollow._staging is None
    with pytest.raises(AttributeError, match="_format"):
        hollow["x"]
