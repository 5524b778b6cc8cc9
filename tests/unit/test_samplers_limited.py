"""Samplers and removers together with limiters and max_times_sampled."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import AppendTimeout, ConfigError, SampleTimeout, limiters, removers, samplers
from tests.store_support import fresh_store, plain_table

ONCE = samplers.WithoutReplacement()


def test_fifo_and_rows_that_leave_make_a_queue() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=samplers.Fifo(), max_times_sampled=1, limiter=limiters.QueueCapacity(8))
        table.extend({"x": np.arange(8)})
        with pytest.raises(AppendTimeout, match="QueueCapacity"):
            table.extend({"x": [8]}, timeout=0.01)
        for start in (0, 4):
            assert table.sample(4)["x"].tolist() == list(range(start, start + 4))
            table.verify()
        assert len(table) == 0
        table.extend({"x": [8, 9]})
        assert not table.can_sample(3)
        with pytest.raises(SampleTimeout, match="2 rows can be drawn"):
            table.sample(3, timeout=0.01)
        assert table.sample(2)["x"].tolist() == [8, 9]


def test_without_replacement_each_row_leaves_after_its_last_epoch() -> None:
    with fresh_store() as store:
        table = plain_table(store, 12, sampler=ONCE, max_times_sampled=2)
        table.extend({"x": np.arange(12)})
        drawn = [table.sample(5)["x"] for _ in range(4)]
        assert max(np.bincount(np.concatenate(drawn))) == 2
        left = len(table)
        assert left == 24 - 20
        assert table.can_sample(left)
        assert not table.can_sample(left + 1)
        drawn.append(table.sample(left)["x"])
        assert np.bincount(np.concatenate(drawn), minlength=12).tolist() == [2] * 12
        assert len(table) == 0
        table.verify()


def test_an_epoch_that_is_over_does_not_let_appends_pass_the_capacity() -> None:
    with fresh_store() as store:
        table = plain_table(store, 6, sampler=ONCE, max_times_sampled=3, limiter=limiters.QueueCapacity(6))
        table.extend({"x": np.arange(6)})
        table.sample(6)
        assert table.info().total_priority == 0
        assert not table.can_insert(1)
        with pytest.raises(AppendTimeout):
            table.extend({"x": [6]}, timeout=0.01)
        assert table.can_sample(6)
        assert sorted(table.sample(6)["x"].tolist()) == list(range(6))


@pytest.mark.parametrize("sampler", [ONCE, samplers.Fifo(), samplers.Uniform(stratified=True)])
def test_a_ratio_counts_the_draws_of_every_sampler(sampler: samplers.Sampler) -> None:
    with fresh_store() as store:
        ratio = limiters.SampleToInsertRatio(1.0, error_buffer=None)
        table = plain_table(store, 20, sampler=sampler, limiter=ratio)
        table.extend({"x": np.arange(10)})
        table.sample(6)
        with pytest.raises(SampleTimeout, match="SampleToInsertRatio"):
            table.sample(5, timeout=0.01)
        with pytest.raises(SampleTimeout):
            table.sample(20, timeout=0.01)
        assert len(table.sample(4)["x"]) == 4
        assert not table.can_sample(1)
        table.extend({"x": [10]})
        assert table.can_sample(1)


@pytest.mark.parametrize("remover", [removers.Lifo(), removers.LowestPriority()])
def test_rows_that_leave_one_by_one_also_when_they_are_used_up(remover: removers.Remover) -> None:
    with fresh_store() as store:
        table = plain_table(store, 6, sampler=samplers.Fifo(), remover=remover, max_times_sampled=1)
        given = [4, 3, 2, 1] if isinstance(remover, removers.LowestPriority) else None
        table.extend({"x": np.arange(4)}, priorities=given)
        batch = table.sample(3)
        assert batch["x"].tolist() == [0, 1, 2]
        assert len(table) == 1
        assert table.info().blocks_open == 1
        table.verify()
        table.extend({"x": np.arange(4, 10)})  # one of those that are there makes room
        gone = 8 if isinstance(remover, removers.Lifo) else 3
        assert sorted(table.sample(6)["x"].tolist()) == sorted({3, 4, 5, 6, 7, 8, 9} - {gone})
        assert len(table) == 0
        table.verify()


@pytest.mark.parametrize("remover", [removers.Lifo(), removers.LowestPriority()])
def test_a_limiter_holds_up_appends_of_single_rows(remover: removers.Remover) -> None:
    with fresh_store() as store:
        table = plain_table(
            store, 10, remover=remover, max_times_sampled=1, limiter=limiters.QueueCapacity(4), sampler=samplers.Lifo()
        )
        table.extend({"x": np.arange(4)})
        with pytest.raises(AppendTimeout, match="0 of 2 rows are in"):
            table.extend({"x": [4, 5]}, timeout=0.01)
        assert table.sample(1)["x"].tolist() == [3]
        with pytest.raises(AppendTimeout, match="1 of 2 rows are in"):
            table.extend({"x": [4, 5]}, timeout=0.01)
        assert table.sample(4)["x"].tolist() == [4, 2, 1, 0]
        table.verify()


def test_slices_and_rows_that_leave_do_not_go_together() -> None:
    with fresh_store() as store, pytest.raises(ConfigError, match="slices of equal mass"):
        plain_table(store, 10, sampler=samplers.Uniform(stratified=True), max_times_sampled=2)
