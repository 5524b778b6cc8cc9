"""Loaders: the same batches at any depth, drift enforced at hand-over, private memory, errors, ends in any order."""

from __future__ import annotations

import asyncio
import gc
import itertools
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import conduit
from conduit import Batch, ConfigError, ForkedHandle, Loader, SampleTimeout, Store, StoreClosed, Table
from tests.store_support import episode, episodes, fresh_store, plain_table, prioritized, scalar_writer
from tests.worker import forked, worker

DEPTHS = [0, 1, 2, 5, "auto"]


@pytest.fixture
def store() -> Iterator[Store]:
    with fresh_store() as made:
        yield made


def filled(store: Store, rows: int = 50, name: str = "t", **options: Any) -> Table:
    options.setdefault("sampler", prioritized())
    table = plain_table(store, 64, name, **options)
    table.extend({"x": np.arange(rows)}, priorities=None if options["sampler"] is None else np.arange(1.0, rows + 1))
    return table


def drawn(batch: Batch) -> tuple[list[int], list[float], list[float]]:
    return batch.keys.tolist(), batch.probabilities.tolist(), batch.weights.tolist()


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.001)


def ready(loader: Loader, batches: int = 1) -> None:
    until(lambda: loader.metrics().ready >= batches)


# ---- which batches


@pytest.mark.parametrize("prefetch", DEPTHS)
@pytest.mark.parametrize("sampler", [prioritized(0.7, 0.4), None])
def test_batches_are_those_of_sample_at_any_depth(store: Store, prefetch: Any, sampler: Any) -> None:
    table, twin = filled(store, sampler=sampler), filled(store, name="u", sampler=sampler)
    expected = [drawn(twin.sample(8, stream=3)) for _ in range(30)]
    with table.loader(8, prefetch=prefetch, stream=3) as loader:
        assert [drawn(next(loader)) for _ in range(30)] == expected
        assert loader.metrics().batches == 30
        assert loader.metrics().redrawn == 0


@pytest.mark.parametrize("prefetch", DEPTHS)
def test_n_step_windows_too(store: Store, prefetch: Any) -> None:
    found = []
    for name in ("t", "u"):
        table = episodes(store, 64, 3, name=name)
        with scalar_writer(table) as writer:
            episode(writer, range(20), [1.0] * 20, "terminated", 20)
            episode(writer, range(30, 40), [2.0] * 10, "truncated", 40)
        if name == "t":
            with table.loader(16, prefetch=prefetch, stream=0) as loader:
                batches = [next(loader) for _ in range(10)]
        else:
            batches = [table.sample(16, stream=0) for _ in range(10)]
        found.append([{n: a.tolist() for n, a in batch.items()} for batch in batches])
    assert found[0] == found[1]


def test_a_stream_goes_on_after_the_loader(store: Store) -> None:
    table, twin = filled(store), filled(store, name="u")
    expected = [drawn(twin.sample(4, stream=1)) for _ in range(9)]
    found = [drawn(table.sample(4, stream=1)) for _ in range(2)]
    with table.loader(4, prefetch=3, stream=1) as loader:
        found += [drawn(next(loader)) for _ in range(4)]
        ready(loader, 3)  # prepared, never handed over: not counted
    found += [drawn(table.sample(4, stream=1))]
    with table.loader(4, prefetch=0, stream=1) as loader:
        found += [drawn(next(loader)) for _ in range(2)]
    assert found == expected


def test_loaders_without_a_stream_draw_apart(store: Store) -> None:
    table = filled(store)
    with table.loader(16) as one, table.loader(16) as two:
        assert drawn(next(one)) != drawn(next(two))


def test_a_list_of_batches_is_right(store: Store) -> None:
    table = filled(store)
    with table.loader(8, prefetch=4, stream=0) as loader:
        batches = list(itertools.islice(loader, 40))
        kept = [(*drawn(batch), batch["x"].tolist()) for batch in batches]
        [batch["x"].fill(-1) for batch in batches[::2]]  # private and writable
        arrays = [batch["x"] for batch in batches[1::2]]
        del batches
        gc.collect()
        for _ in range(20):
            next(loader)
        assert [array.tolist() for array in arrays] == [x for *_, x in kept[1::2]]
    for keys, probabilities, _, x in kept:
        assert x == [int(k) & 0xFFFFFFF for k in keys]  # one block: a row's slot is its number
        assert np.allclose(probabilities, (np.array(x) + 1) / (50 * 51 / 2))


def test_the_first_draw_waits_for_the_first_call(store: Store) -> None:
    table = filled(store, 1)
    with table.loader(4, prefetch=2) as loader:
        time.sleep(0.05)
        table.clear()
        table.extend({"x": [7]})
        assert next(loader)["x"].tolist() == [7] * 4


# ---- drift


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_a_drift_of_zero_is_a_draw_at_hand_over(store: Store, prefetch: int) -> None:
    table, twin = filled(store, sampler=prioritized(0.6, 0.4)), filled(store, name="u", sampler=prioritized(0.6, 0.4))
    rng = np.random.default_rng(0)
    with table.loader(8, prefetch=prefetch, max_priority_drift=0, stream=0) as loader:
        for turn in range(60):
            batch, same = next(loader), twin.sample(8, stream=0)
            assert drawn(batch) == drawn(same)
            if prefetch and turn % 3:
                ready(loader, prefetch)
            match turn % 5:
                case 0 | 1:
                    values = rng.random(8)
                    table.update_priorities(batch.keys, values)
                    twin.update_priorities(batch.keys, values)
                case 2:
                    for t in (table, twin):
                        t.extend({"x": [100 + turn]}, priorities=[2.0])
                case 3:
                    for t in (table, twin):
                        t.reconfigure(alpha=0.5 + 0.01 * turn, beta=0.4 + 0.005 * turn)
        metrics = loader.metrics()
        assert metrics.redrawn >= (10 if prefetch else 0)
        assert metrics.drift_max == 0.0


def test_an_update_that_changes_nothing_redraws_nothing(store: Store) -> None:
    table = filled(store)
    with table.loader(8, prefetch=1, max_priority_drift=0) as loader:
        for _ in range(10):
            batch = next(loader)
            ready(loader)
            table.update_priorities(batch.keys, table.priorities(batch.keys))
        assert loader.metrics().redrawn == 0


def test_nothing_is_prepared_to_be_thrown_away(store: Store) -> None:
    table = filled(store)
    with table.loader(8, max_priority_drift=0) as loader:
        for turn in range(10):
            batch = next(loader)
            table.update_priorities(batch.keys, np.full(8, turn + 1.0))
        metrics = loader.metrics()
        assert (metrics.batches, metrics.depth, metrics.redrawn, metrics.hidden_s) == (10, 0, 0, 0.0)


def test_beta_alone_redraws_where_it_must_be_exact(store: Store) -> None:
    table = filled(store, sampler=prioritized(1.0, 0.1))
    with table.loader(8, prefetch=1, max_priority_drift=0) as loader:
        next(loader)
        ready(loader)
        table.reconfigure(beta=1.0)
        batch = next(loader)
        assert loader.metrics().redrawn == 1
        assert np.allclose(batch.weights, batch.probabilities.min() / batch.probabilities)


def test_past_the_bound_a_batch_is_drawn_again(store: Store) -> None:
    table = filled(store, 10, sampler=prioritized())
    with table.loader(8, prefetch=3, max_priority_drift=0.25) as loader:
        next(loader)
        ready(loader, 3)
        table.extend({"x": [100]}, priorities=[11.0])  # 11 of 66: below the bound
        next(loader)
        assert loader.metrics().redrawn == 0
        assert loader.metrics().drift_last == pytest.approx(11 / 66)
        table.extend({"x": [101]}, priorities=[34.0])  # 45 of 100 since the oldest
        batch = next(loader)
        assert loader.metrics().redrawn >= 1
        assert loader.metrics().drift_last == 0.0
        assert set(batch.probabilities) <= {p / 100 for p in (*range(1, 12), 34)}
        assert loader.metrics().drift_max == pytest.approx(11 / 66)
        assert loader.metrics().drift_bound == 0.25


def test_by_default_a_prioritized_batch_ahead_is_measured_and_delivered(store: Store) -> None:
    table = filled(store, 10)
    with table.loader(8) as loader:
        for turn in range(1, 4):
            next(loader)
            assert loader.metrics().depth == 1
            ready(loader)
            table.extend({"x": [turn]}, priorities=[55.0])
        next(loader)
        metrics = loader.metrics()
        assert metrics.redrawn == 0
        assert metrics.drift_last == pytest.approx(55 / 220)
        assert metrics.drift_max == pytest.approx(0.5)
        assert metrics.drift_mean == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_a_uniform_table_is_looked_at_only_when_asked(store: Store) -> None:
    table = filled(store, 10, sampler=None)
    with table.loader(8, prefetch=1) as loader:
        next(loader)
        ready(loader)
        table.extend({"x": range(10)})
        next(loader)
        assert np.isnan(loader.metrics().drift_last)
    with table.loader(8, prefetch=1, max_priority_drift=0.4) as loader:
        next(loader)
        ready(loader)
        table.extend({"x": range(20)})
        next(loader)
        assert loader.metrics().redrawn == 1


# ---- depth


def test_the_depth_follows_preparation_and_computing(store: Store) -> None:
    table = filled(store, sampler=None)
    with table.loader(8, transform=lambda batch: time.sleep(0.004) or batch) as loader:
        for _ in range(30):
            next(loader)
        assert loader.metrics().depth > 2
    with table.loader(8) as loader:
        for _ in range(30):
            next(loader)
            time.sleep(0.002)
        assert loader.metrics().depth == 2
        assert loader.metrics().hidden_s > 0


def test_staging_bounds_the_depth(store: Store) -> None:
    table = filled(store, sampler=None)
    size = 64 * 8 * 4  # x, keys, probabilities, weights of 64 rows, each 512 bytes but the last
    with pytest.raises(ConfigError, match=r"prefetch=3 .* prefetch 2"):
        table.loader(64, prefetch=3, max_staging=size * 2)
    with table.loader(64, max_staging=size // 4) as loader:
        next(loader)
        assert loader.metrics().depth == 0


def test_waiting_is_exposed_and_work_behind_is_hidden(store: Store) -> None:
    table = filled(store)

    def slow(batch: Batch) -> Batch:
        time.sleep(0.01)
        return batch

    with table.loader(8, prefetch=0, transform=slow) as loader:
        for _ in range(10):
            next(loader)
        metrics = loader.metrics()
        assert metrics.exposed_s >= 0.1
        assert metrics.hidden_s == 0
        assert metrics.exposed_fraction == 1.0
    with table.loader(8, prefetch=1, transform=slow) as loader:
        next(loader)
        for _ in range(10):
            ready(loader)
            next(loader)
        metrics = loader.metrics()
        assert metrics.hidden_s >= 0.09
        assert metrics.exposed_s < 0.1
    assert loader.metrics() == metrics._replace(ready=loader.metrics().ready)  # kept after the end


# ---- waits


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_wait_for_rows_times_out_and_goes_on(store: Store, prefetch: int) -> None:
    table = plain_table(store, 64, limiter=conduit.limiters.MinSize(5))
    with table.loader(4, prefetch=prefetch, timeout=0.05) as loader:
        for _ in range(2):
            with pytest.raises(SampleTimeout, match=r"MinSize\(5\) lacks 5 rows"):
                next(loader)
        table.extend({"x": range(5)})
        next(loader)
        if prefetch:
            ready(loader, prefetch)
        table.clear()
        for _ in range(prefetch):
            next(loader)
        with pytest.raises(SampleTimeout, match=r"lacks 5 rows"):
            loader.next(timeout=0.1)
        threading.Timer(0.1, table.extend, [{"x": range(6)}]).start()
        loader.next(timeout=None)
        assert loader.metrics().exposed_s > 0.2


def test_a_slow_preparation_is_told_from_a_lack_of_rows(store: Store) -> None:
    table, go = filled(store), threading.Event()

    def slow(batch: Batch) -> Batch:
        assert go.wait(20)
        return batch

    with table.loader(4, prefetch=1, transform=slow) as loader:
        with pytest.raises(SampleTimeout, match=r"not ready after 0.05 s: its preparation"):
            loader.next(timeout=0.05)
        go.set()
        next(loader)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_ctrl_c_ends_a_wait(store: Store, prefetch: int) -> None:
    table = plain_table(store, 64)
    main = threading.main_thread().ident
    assert main is not None
    with table.loader(4, prefetch=prefetch, timeout=None) as loader:
        timer = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT])
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert time.monotonic() - began < 5
        timer.join()
        table.extend({"x": [1]})
        next(loader)


def test_callers_in_several_threads_take_turns(store: Store) -> None:
    table, twin = filled(store), filled(store, name="u")
    expected = sorted(drawn(twin.sample(4, stream=0)) for _ in range(200))
    found: list[Any] = []
    with table.loader(4, prefetch=3, stream=0) as loader:

        def take() -> None:
            found.extend(drawn(batch) for batch in itertools.islice(loader, 50))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == expected


# ---- transform, device


def test_transform_runs_in_order_in_a_thread_of_its_own(store: Store) -> None:
    table, twin = filled(store), filled(store, name="u")
    threads = set()

    def transform(batch: Batch) -> Any:
        threads.add(threading.current_thread().name)
        return drawn(batch)

    with table.loader(8, prefetch=2, stream=0, transform=transform) as loader:
        assert [next(loader) for _ in range(20)] == [drawn(twin.sample(8, stream=0)) for _ in range(20)]
    assert "conduit-loader-t" in threads


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_of_transform_comes_in_its_turn_and_stays(store: Store, prefetch: int) -> None:
    table = filled(store)
    seen = iter(range(100))

    def transform(batch: Batch) -> int:
        number = next(seen)
        if number == 3:
            raise LookupError("the fourth")
        return number

    with table.loader(8, prefetch=prefetch, transform=transform) as loader:
        assert [next(loader) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(LookupError, match="the fourth") as raised:
                next(loader)
            assert "in transform" in "".join(traceback.format_tb(raised.value.__traceback__))
    with pytest.raises(StoreClosed, match="loader"):
        next(loader)


class FakeDevice:
    """A device in the host's memory that notes what it is asked."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.handed: list[int] = []
        self.copies = 0
        self.threads: set[str] = set()

    def pin(self, address: int, size: int) -> None:
        assert address not in self.pinned
        self.pinned[address] = size

    def unpin(self, address: int, size: int) -> None:
        assert self.pinned.pop(address) == size

    def copy(self, tensors: dict[str, Any]) -> tuple[dict[str, Any], int]:
        self.threads.add(threading.current_thread().name)
        self.copies += 1
        for name, tensor in tensors.items():
            at = tensor.data_ptr()
            assert any(base <= at < base + size for base, size in self.pinned.items()), name
        return {name: tensor.clone() for name, tensor in tensors.items()}, self.copies

    def hand_over(self, tensors: dict[str, Any], token: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.handed.append(token)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_device_gets_pinned_buffers_and_hands_over(store: Store, prefetch: int) -> None:
    pytest.importorskip("torch")
    table, twin = filled(store), filled(store, name="u")
    device = FakeDevice()
    with table.loader(8, prefetch=prefetch, stream=0, device=device) as loader:
        batches = [next(loader) for _ in range(10)]
        for batch in batches:
            same = twin.sample(8, stream=0)
            assert batch["x"].tolist() == same["x"].tolist()
            assert batch.weights.tolist() == same.weights.tolist()
            assert batch.keys.tolist() == same.keys.tolist()
            assert batch.probabilities.tolist() == same.probabilities.tolist()
            assert batch.names == ("x", "weights")
            assert set(batch.torch()) == {"x", "weights"}
            table.update_priorities(batch.keys, table.priorities(batch.keys))
        assert device.handed == list(range(1, 11))
        assert 1 <= len(device.pinned) <= 4  # buffers are reused once they are copied
    assert ("conduit-loader-t" in device.threads) == (prefetch > 0)
    del loader
    gc.collect()
    assert device.pinned == {}


def test_transform_comes_before_the_device(store: Store) -> None:
    pytest.importorskip("torch")
    table = filled(store)

    def halves(batch: Batch) -> dict[str, Any]:
        return {"x": batch.torch()["x"][:4]}

    with table.loader(8, prefetch=1, device=FakeDevice(), transform=halves) as loader:
        assert next(loader)["x"].shape == (4,)
        assert next(loader)["x"].shape == (4,)
    with (
        table.loader(8, prefetch=1, device=FakeDevice(), transform=len) as loader,
        pytest.raises(ConfigError, match="returned int"),
    ):
        next(loader)


def test_the_cpu_is_a_device_without_copies(store: Store) -> None:
    torch = pytest.importorskip("torch")
    table = filled(store)
    with table.loader(8, prefetch=2, device="cpu") as loader:
        for _ in range(5):
            batch = next(loader)
            assert isinstance(batch["x"], torch.Tensor)
            assert batch.keys.dtype == np.uint64
    for wrong in ("nowhere", "meta"):
        with pytest.raises(ConfigError, match=wrong):
            table.loader(8, device=wrong)


@pytest.mark.gpu
def test_a_cuda_device_gets_the_same_rows(store: Store) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    table, twin = filled(store), filled(store, name="u")
    with table.loader(8, prefetch=2, stream=0, device="cuda:0") as loader:
        for _ in range(50):
            batch, same = next(loader), twin.sample(8, stream=0)
            assert batch["x"].device.type == "cuda"
            assert batch["x"].tolist() == same["x"].tolist()


# ---- asyncio


def test_async_for_does_not_block_the_loop(store: Store) -> None:
    table, twin = plain_table(store, 64), plain_table(store, 64, "u")
    twin.extend({"x": range(6)})

    async def learn() -> tuple[list[Any], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                if ticks == 20:
                    table.extend({"x": range(6)})
                await asyncio.sleep(0.001)

        task = asyncio.ensure_future(tick())
        found = []
        async for batch in loader:
            found.append(drawn(batch))
            if len(found) == 10:
                break
        task.cancel()
        return found, ticks

    with table.loader(4, prefetch=2, stream=0) as loader:
        found, ticks = asyncio.run(learn())
    assert ticks >= 20
    assert found == [drawn(twin.sample(4, stream=0)) for _ in range(10)]


def test_a_cancelled_wait_loses_no_batch(store: Store) -> None:
    table, twin = plain_table(store, 64), plain_table(store, 64, "u")
    twin.extend({"x": range(6)})

    async def impatient() -> Any:
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(loader), 0.02)
        table.extend({"x": range(6)})
        return [drawn(await anext(loader)) for _ in range(5)]

    with table.loader(4, prefetch=2, stream=0) as loader:
        assert asyncio.run(impatient()) == [drawn(twin.sample(4, stream=0)) for _ in range(5)]


def test_async_timeouts_and_closing(store: Store) -> None:
    table = plain_table(store, 64)

    async def wait() -> None:
        for _ in range(2):
            with pytest.raises(SampleTimeout):
                await anext(loader)
        closing = threading.Timer(0.05, loader.close)
        closing.start()
        with pytest.raises((StoreClosed, SampleTimeout)):
            await anext(loader)
        closing.join()
        with pytest.raises(StoreClosed):
            await anext(loader)

    with table.loader(4, prefetch=1, timeout=0.1) as loader:
        asyncio.run(wait())


# ---- ends


def test_the_store_may_go_first(store: Store) -> None:
    table = filled(store)
    for prefetch in (0, 2):
        with Store.attach(store.name) as other:
            loader = other["t"].loader(4, prefetch=prefetch)
            next(loader)
        with pytest.raises(StoreClosed):
            next(loader)
        assert loader.closed
        loader.close()
        with pytest.raises(StoreClosed):
            next(loader)
    assert len(table) == 50


def test_closing_ends_waits_in_other_threads(store: Store) -> None:
    plain_table(store, 64)
    for what in ("loader", "store"):
        with Store.attach(store.name) as other:
            loader = other["t"].loader(4, prefetch=1, timeout=None)
            errors: list[BaseException] = []

            def take(loader: Loader = loader, errors: list[BaseException] = errors) -> None:
                try:
                    next(loader)
                except StoreClosed as error:
                    errors.append(error)

            thread = threading.Thread(target=take)
            thread.start()
            time.sleep(0.05)
            (loader if what == "loader" else other).close()
            thread.join(10)
            assert not thread.is_alive()
            assert errors
            loader.close()


@pytest.mark.parametrize("what", ["loader", "store"])
def test_a_transform_may_close_its_loader_and_its_store(store: Store, what: str) -> None:
    filled(store)
    other = Store.attach(store.name)
    closed = threading.Event()

    def transform(batch: Batch) -> Batch:
        (loader if what == "loader" else other).close()
        closed.set()
        return batch

    loader = other["t"].loader(4, prefetch=1, transform=transform)
    with pytest.raises(StoreClosed):
        next(loader)
    assert closed.wait(10)
    other.close()
    loader.close()


@pytest.mark.parametrize("works", [False, True])
def test_a_forgotten_loader_ends_its_threads(store: Store, works: bool) -> None:
    table = filled(store)
    loader = table.loader(4, prefetch=2, transform=(lambda batch: batch) if works else None)
    next(loader)
    pipeline = loader._pipeline
    del loader
    gc.collect()
    assert pipeline.closed


def leave_running(table: Table) -> None:
    """In another process: exit with loaders at work."""
    globals()["kept"] = [
        table.loader(4, prefetch=2),
        table.loader(4, prefetch=2, transform=lambda batch: batch),
        table.loader(4, prefetch=1, timeout=None),
    ]
    for loader in globals()["kept"]:
        next(loader)


def test_the_interpreter_ends_with_live_loaders(store: Store) -> None:
    table = filled(store)
    with worker() as other:
        other.call(leave_running, table)
        assert other.finish() == ""


def test_in_a_forked_child_a_loader_is_inert(store: Store) -> None:
    table, twin = filled(store), filled(store, name="u")
    expected = [drawn(twin.sample(4, stream=9)) for _ in range(3)]
    choices: list[dict[str, Any]] = [{"prefetch": 4}, {"prefetch": 0}, {"prefetch": 2, "transform": drawn}]
    for options in choices:
        loader = table.loader(4, stream=0, **options)
        next(loader)

        def child(loader: Loader = loader) -> list[Any]:
            said = []
            for call in (lambda: next(loader), loader.metrics):
                try:
                    call()
                except ForkedHandle as error:
                    said.append(str(error))
            loader.close()
            with table.loader(4, prefetch=2, stream=9) as fresh:
                said += [drawn(next(fresh)) for _ in range(3)]
            return said

        for _ in range(5):
            first, second, *own = forked(child)
            assert "belongs to the parent" in first
            assert "belongs to the parent" in second
            assert own == expected
        next(loader)
        loader.close()


def drawn_there(loader: Loader) -> list[Any]:
    found = [drawn(next(loader)) for _ in range(3)]
    loader.close()
    loader._table._store.close()
    return found


def test_a_pickled_loader_attaches_and_starts_anew(store: Store) -> None:
    table = filled(store)
    with table.loader(4, prefetch=2, stream=5, timeout=7.0) as loader, worker() as other:
        again = pickle.loads(pickle.dumps(loader))
        assert again is not loader
        assert again.settings == loader.settings
        again.close()
        found = [drawn(next(loader)) for _ in range(3)]
        assert other.call(drawn_there, loader) == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"prefetch": "deep"}, "prefetch is 'deep'"),
        ({"max_priority_drift": -0.1}, "max_priority_drift is -0.1"),
        ({"max_priority_drift": 2}, "max_priority_drift is 2"),
        ({"timeout": -1}, "timeout is -1"),
        ({"stream": -1}, "stream is -1"),
        ({"transform": 3}, "transform is 3"),
        ({"max_staging": "much"}, "much"),
    ],
)
def test_settings_are_checked(store: Store, options: dict[str, Any], said: str) -> None:
    table = filled(store)
    with pytest.raises(ConfigError, match=said):
        table.loader(**{"batch_size": 4, **options})  # pyright: ignore[reportArgumentType]


def test_what_it_says_of_itself(store: Store) -> None:
    table = filled(store)
    with table.loader(4, prefetch=2) as loader:
        assert repr(loader) == "<Loader of 't': 4 rows a batch, prefetch=2>"
    assert repr(loader) == "<Loader of 't': 4 rows a batch, closed>"
