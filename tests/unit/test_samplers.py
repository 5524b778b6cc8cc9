"""Samplers by order, without replacement and stratified; schedules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from conduit import CapacityError, ConfigError, SampleTimeout, Store, Table, samplers, schedules, windows
from conduit.spec import TableSpec
from tests.store_support import PLAIN, episode, episodes, fresh_store, keys_of, plain_table, scalar_writer, step
from tests.waiting import until
from tests.worker import forked

ONCE = samplers.WithoutReplacement()
DISTINCT = [ONCE, samplers.Fifo(), samplers.Lifo()]


def table_of(store: Store, n: int, sampler: samplers.Sampler, max_size: int = 100, **options: object) -> Table:
    table = plain_table(store, max_size, sampler=sampler, **options)
    table.extend({"x": np.arange(n)})
    return table


def test_fifo_and_lifo_give_the_oldest_and_the_newest_rows_in_order() -> None:
    both = {"old": samplers.Fifo(), "new": samplers.Lifo()}
    with fresh_store() as store:
        table = store.create_table("t", PLAIN, 40, window=dict.fromkeys(both, windows.Row()), sampler=both)
        for i in range(0, 100, 20):
            table.extend({"x": np.arange(i, i + 20)})
        for n in (1, 7, 40):
            old, new = table.sample(n, window="old"), table.sample(n, window="new")
            assert old["x"].tolist() == list(range(60, 60 + n))
            assert new["x"].tolist() == list(range(99, 99 - n, -1))
            for batch in (old, new):
                assert (batch.probabilities == 1).all()
                assert (batch.weights == 1).all()
                assert batch.keys.tolist() == table.rows(batch.keys).keys.tolist()
        table.verify()


def test_fifo_follows_the_order_in_which_blocks_were_opened() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, sampler=samplers.Fifo())
        with scalar_writer(table) as one, scalar_writer(table) as two:
            for i in range(20):
                one.append(x=i)
                two.append(x=100 + i)
        batch = table.sample(40)
        assert batch.keys.tolist() == keys_of(table).tolist()
        for low in (0, 100):  # each writer's rows in the order of their appends
            mine = [x for x in batch["x"].tolist() if low <= x < low + 100]
            assert mine == list(range(low, low + 20))


def test_fifo_takes_only_rows_that_the_window_fits() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=2, sampler=samplers.Fifo())
        with scalar_writer(table) as writer:
            episode(writer, [0, 1, 2], [1, 1, 1], "terminated", 3)
            for obs in (10, 11, 12):
                step(writer, obs)
            assert table.sample(4)["obs"].tolist() == [0, 1, 2, 10]
            with pytest.raises(SampleTimeout, match=r"5 rows, each once.*4 rows can be drawn, 6 are there"):
                table.sample(5, timeout=0.01)


@pytest.mark.parametrize("sampler", DISTINCT)
def test_a_batch_that_can_never_be_is_refused_at_once(sampler: samplers.Sampler) -> None:
    with fresh_store() as store:
        table = table_of(store, 5, sampler, max_size=8)
        with pytest.raises(CapacityError, match=r"9 rows, each once.*holds 8 at most"):
            table.sample(9, timeout=None)
        with pytest.raises(CapacityError, match="9 rows"):
            table.loader(9)
        with pytest.raises(SampleTimeout, match=r"6 rows, each once.*5 rows can be drawn"):
            table.sample(6, timeout=0.01)
        with pytest.raises(SampleTimeout, match="MinSize"):
            plain_table(store, 8, name="empty", sampler=sampler).sample(1, timeout=0.01)
        with table.loader(6, timeout=0.01) as loader:
            with pytest.raises(SampleTimeout, match="5 rows can be drawn"):
                next(loader)
            table.extend({"x": [5]})
            assert sorted(loader.next(timeout=10)["x"].tolist()) == list(range(6))


@pytest.mark.parametrize("n", [1, 3, 7, 30, 50])
def test_without_replacement_every_row_comes_once_an_epoch(n: int) -> None:
    with fresh_store() as store:
        table = table_of(store, 50, ONCE)
        batches = [table.sample(n) for _ in range(4 * 50 // n)]
        drawn = np.concatenate([batch["x"] for batch in batches])
        for epoch in range(len(drawn) // 50):
            assert sorted(drawn[epoch * 50 : epoch * 50 + 50]) == list(range(50))
        assert all(len(set(batch["x"])) == n for batch in batches)
        left = [50 - i % 50 for i in range(len(drawn))]
        np.testing.assert_array_equal(
            np.concatenate([batch.probabilities for batch in batches]),
            [
                # of a batch that reaches over an epoch's end, the rows of the old one wait until it is whole
                1 / (x if i // 50 == (i - i % n) // 50 else x - (50 - (i - i % n) % 50))
                for i, x in enumerate(left)
            ],
        )
        assert table.info().epoch == -(-len(drawn) // 50)
        assert drawn[:50].tolist() != drawn[50:100].tolist()
        table.verify()


def test_rows_that_come_during_an_epoch_join_it_and_those_that_go_leave_it() -> None:
    with fresh_store() as store:
        table = table_of(store, 20, ONCE, max_size=20)
        first = set(table.sample(15)["x"].tolist())
        table.extend({"x": np.arange(20, 30)})  # 0 to 9 are evicted
        assert table.info().total_priority == len(set(range(10, 20)) - first) + 10
        rest = int(table.info().total_priority)
        assert set(table.sample(rest)["x"].tolist()) == set(range(10, 30)) - first
        assert table.info().epoch == 1
        assert len(set(table.sample(20)["x"].tolist())) == 20
        assert table.info().epoch == 2
        table.verify()


def test_an_epoch_is_shared_by_all_processes() -> None:
    with fresh_store() as store:
        table = table_of(store, 40, ONCE)
        mine = table.sample(15)["x"].tolist()
        theirs = forked(lambda: list(table.sample(15)["x"]))
        assert sorted(mine + theirs + table.sample(10)["x"].tolist()) == list(range(40))


def test_batches_that_a_loader_had_ready_come_back() -> None:
    with fresh_store() as store:
        table = table_of(store, 60, ONCE)
        with table.loader(5, prefetch=3) as loader:
            got = next(loader)["x"].tolist()
            until(lambda: loader.metrics().ready == 3)
        assert table.info().total_priority == 55
        drawn = np.concatenate([table.sample(5)["x"] for _ in range(11)]).tolist()
        assert sorted(got + drawn) == list(range(60))
        table.verify()


@pytest.mark.parametrize("sampler", [*DISTINCT, samplers.Uniform(stratified=True)])
def test_a_loader_of_any_depth_gives_the_batches_of_sample(sampler: samplers.Sampler) -> None:
    seen = []
    with fresh_store() as store:
        for depth in (None, 0, 1, 4):
            table = table_of(store, 30, sampler, name=f"t{depth}", seed=5)
            if depth is None:
                seen.append([table.sample(7, stream=3)["x"].tolist() for _ in range(12)])
                continue
            with table.loader(7, prefetch=depth, stream=3) as loader:
                seen.append([next(loader)["x"].tolist() for _ in range(12)])
    assert all(batches == seen[0] for batches in seen)


def test_stratified_draws_one_from_each_slice() -> None:
    with fresh_store() as store:
        table = table_of(store, 64, samplers.Uniform(stratified=True))
        for n in (1, 2, 16, 64):
            for _ in range(20):
                batch = table.sample(n)
                assert sorted(batch["x"] * n // 64) == list(range(n))
                assert (batch.probabilities == 1 / 64).all()
        assert len({tuple(table.sample(16)["x"] // 4) for _ in range(20)}) > 1  # the slices come in random order


def test_stratified_draws_by_priority() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=samplers.Prioritized(1.0, stratified=True))
        table.extend({"x": np.arange(4)}, priorities=[1, 2, 4, 1])
        for _ in range(50):
            batch = table.sample(8)
            assert np.bincount(batch["x"], minlength=4).tolist() == [1, 2, 4, 1]
            np.testing.assert_allclose(batch.probabilities, np.array([1, 2, 4, 1])[batch["x"]] / 8)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (schedules.Linear(0.0, 1.0, 4), [0, 0.25, 0.5, 0.75, 1, 1, 1]),
        (schedules.Linear(1.0, 0.5, 2), [1, 0.75, 0.5, 0.5, 0.5, 0.5, 0.5]),
        (schedules.Exponential(0.0625, 1.0, 4), [0.0625, 0.125, 0.25, 0.5, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("depth", [None, 0, 3])
def test_beta_follows_the_number_of_the_batch(
    schedule: schedules.Schedule, expected: list[float], depth: int | None
) -> None:
    np.testing.assert_allclose([schedule(b) for b in range(7)], expected)
    with fresh_store() as store:
        table = plain_table(store, 2, sampler=samplers.Prioritized(1.0, schedule, normaliser="table"))
        table.extend({"x": [1, 2]}, priorities=[1.0, 2.0])
        if depth is None:
            batches = [table.sample(64) for _ in range(7)]
        else:
            with table.loader(64, prefetch=depth, max_priority_drift=0.0) as loader:
                batches = []
                for b in range(7):
                    batches.append(next(loader))
                    if b == 2:  # what is prepared is drawn again, with the same numbers
                        table.update_priorities(keys_of(table), [1.0, 3.0])
                        table.update_priorities(keys_of(table), [1.0, 2.0])
        for batch, beta in zip(batches, expected, strict=True):
            np.testing.assert_allclose(batch.weights[batch["x"] == 2], 0.5**beta, rtol=1e-6)


def test_a_schedule_goes_on_in_another_process_and_after_a_loader() -> None:
    with fresh_store() as store:
        table = plain_table(
            store, 2, sampler=samplers.Prioritized(1.0, schedules.Linear(0, 1, 100), normaliser="table")
        )
        table.extend({"x": [1, 2]}, priorities=[1.0, 2.0])

        def beta(batch: object) -> int:
            return round(-100 * float(np.log2(batch.weights[batch["x"] == 2][0])))  # type: ignore[attr-defined, index]

        assert beta(table.sample(64)) == 0
        assert forked(lambda: beta(table.sample(64))) == 1
        with table.loader(64, prefetch=4) as loader:
            assert [beta(next(loader)) for _ in range(3)] == [2, 3, 4]
            until(lambda: loader.metrics().ready == 4)
        assert beta(table.sample(64)) == 5
        with pytest.raises(ConfigError, match=r"beta of table 't' follows Linear\(start=0\.0"):
            table.reconfigure(beta=0.5)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: samplers.Prioritized(schedules.Linear(0, 1, 5)), r"alpha is Linear.*follows no schedule"),  # type: ignore[arg-type]
        (lambda: samplers.Prioritized(beta=schedules.Linear(0, 2, 5)), "beta's end is 2"),
        (lambda: samplers.Prioritized(stratified=1), "stratified is 1"),  # type: ignore[arg-type]
        (lambda: samplers.Uniform("yes"), "stratified is 'yes'"),  # type: ignore[arg-type]
        (lambda: schedules.Linear(0, float("nan"), 5), r"Linear\.end"),
        (lambda: schedules.Linear(0, 1, 0), r"Linear\.batches"),
        (lambda: schedules.Exponential(0, 1, 5), r"Exponential goes from 0\.0 to 1\.0"),
    ],
)
def test_settings_that_could_not_work_are_refused(make: object, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("sampler", DISTINCT)
def test_a_bound_on_drift_has_no_meaning_without_chances(sampler: samplers.Sampler) -> None:
    with fresh_store() as store:
        table = table_of(store, 5, sampler)
        with pytest.raises(ConfigError, match=r"max_priority_drift=0\.1 has no meaning"):
            table.loader(2, max_priority_drift=0.1)
        with pytest.raises(ConfigError, match="not sampled by priority"):
            table.update_priorities(keys_of(table)[:1], [1.0])


@pytest.mark.parametrize(
    "sampler",
    [
        *DISTINCT,
        samplers.Uniform(stratified=True),
        samplers.Prioritized(0.5, schedules.Linear(0.4, 1, 10), stratified=True),
        samplers.Prioritized(beta=schedules.Exponential(0.4, 1, 10)),
    ],
)
def test_the_settings_survive_the_store(sampler: samplers.Sampler) -> None:
    with fresh_store() as store:
        table = plain_table(store, 5, sampler=sampler)
        assert TableSpec.from_json(table.spec.to_json()) == table.spec
        assert table.spec.sampler == sampler
        assert plain_table(store, 5, sampler=sampler, exist_ok=True) is table


def test_a_window_may_be_called_kind() -> None:
    with fresh_store() as store:
        names = {"kind": windows.Row(), "other": windows.Row()}
        table = store.create_table("t", PLAIN, 5, window=names, sampler={"kind": ONCE, "other": samplers.Fifo()})
        assert TableSpec.from_json(table.spec.to_json()) == table.spec


def test_an_epoch_takes_up_rows_again_after_clear() -> None:
    with fresh_store() as store:
        table = table_of(store, 10, ONCE, max_size=10)
        serial = itertools.count(100)
        for _ in range(5):
            table.sample(7)
            table.clear()
            fresh = [next(serial) for _ in range(10)]
            table.extend({"x": fresh})
            assert sorted(table.sample(10)["x"].tolist()) == fresh
            table.verify()
