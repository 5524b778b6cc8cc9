"""C70: learner and actor in one thread waited for each other, for what the limiter could never allow."""

from __future__ import annotations

import time

import numpy as np
import pytest

from conduit import AppendTimeout, ConfigError, SampleTimeout, limiters
from tests.cases.test_c69 import seven_of_five
from tests.store_support import (
    column_of,
    episodes,
    fresh_store,
    plain_table,
    scalar_writer,
    step,
    vector_writer,
    windows_of,
)


def test_a_sample_of_four_times_out_where_three_are_allowed() -> None:
    with fresh_store() as store:
        table = seven_of_five(store)
        assert (table.can_sample(4), table.can_sample(3)) == (False, True)
        began = time.monotonic()
        with pytest.raises(SampleTimeout, match=r"5 inserted x 2 - 7 sampled leaves 3, 4 asked; 1 more inserts are"):
            table.sample(4, timeout=1.0)
        assert 1.0 <= time.monotonic() - began < 1.5
        info = table.info()
        assert (info.limiter_samples, info.limiter_reserved, info.limiter_cursor) == (7, 0, 3.0)
        assert len(table.sample(3, timeout=0)) == 3


def test_an_append_that_timed_out_leaves_its_row_once_when_it_is_tried_again() -> None:
    """The end of an episode is what has to wait."""
    with fresh_store() as store:
        table = episodes(store, 100, limiter=limiters.SampleToInsertRatio(1, min_size=2, error_buffer=1))
        with scalar_writer(table, timeout=1.0) as writer:
            for obs in range(3):
                step(writer, obs)
            began = time.monotonic()
            for _ in range(2):
                with pytest.raises(AppendTimeout, match=r"3 inserted x 1 - 0 sampled leaves 3, .* 1 more samples"):
                    step(writer, 3, 1.0, "terminated")
            assert 2.0 <= time.monotonic() - began < 3.0
            assert len(table) == 3
            assert not table.can_insert(1)
            table.sample(1, timeout=0)
            assert table.can_insert(1)
            assert not table.can_insert(2)
            step(writer, 3, 1.0, "terminated")
            writer.end(4)
        assert len(table) == 4
        found = windows_of(table)
        assert sorted(found) == [0, 1, 2, 3]
        assert [found[obs]["next_obs"] for obs in range(4)] == [1, 2, 3, 4]
        assert found[3]["reward"] == 1.0
        table.verify()


def test_rows_of_a_large_extend_go_in_as_far_as_they_may_and_the_rest_later() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, limiter=limiters.SampleToInsertRatio(2, min_size=5, error_buffer=10))
        with pytest.raises(AppendTimeout, match=r"10 of 25 rows are in"):
            table.extend({"x": np.arange(25)}, timeout=0.05)
        table.sample(10, timeout=0)
        with pytest.raises(AppendTimeout, match=r"5 of 15 rows are in"):
            table.extend({"x": np.arange(10, 25)}, timeout=0.05)
        table.sample(10, timeout=0)
        table.sample(10, timeout=0)
        table.extend({"x": np.arange(15, 25)}, timeout=0)
        assert column_of(table).tolist() == list(range(25))


def test_a_step_of_several_environments_goes_in_as_a_whole() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, limiter=limiters.SampleToInsertRatio(1, min_size=4, error_buffer=4))
        zeros = {"reward": np.zeros(3, np.float32), "terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool)}
        with vector_writer(table, 3, timeout=0.05) as writer:
            obs = np.arange(3)
            writer.append(obs=obs, action=obs, **zeros)
            obs = obs + 10
            writer.append(obs=obs, action=obs, **zeros)
            with pytest.raises(AppendTimeout, match="0 of 3 rows are in"):
                writer.append(obs=obs + 10, action=obs, **zeros)
            assert len(table) == 6
            table.sample(1, timeout=0)
            writer.append(obs=obs + 10, action=obs, **zeros)
            assert len(table) == 9
            found = windows_of(table)
            assert {o: found[o]["next_obs"] for o in found} == {0: 10, 1: 11, 2: 12, 10: 20, 11: 21, 12: 22}
        with vector_writer(table, 8, timeout=None) as writer:
            eight = {name: np.zeros(8, array.dtype) for name, array in zeros.items()}
            with pytest.raises(ConfigError, match=r"8 rows can never go into table 't' together: .* within 8"):
                writer.append(obs=np.arange(8), action=np.arange(8), **eight)


def test_what_can_never_be_is_refused_at_once() -> None:
    with fresh_store() as store:
        table = plain_table(store, 1_000, limiter=limiters.SampleToInsertRatio(4, min_size=10, error_buffer=20))
        with pytest.raises(ConfigError, match=r"sample\(37\) of table 't' can never be let through: .* within 40"):
            table.sample(37, timeout=None)
        with pytest.raises(ConfigError, match="never"), table.loader(37) as loader:
            loader.next(timeout=None)
        queue = plain_table(store, 50, "q", limiter=limiters.QueueCapacity(20), max_times_sampled=2)
        with pytest.raises(ConfigError, match=r"sample\(21\) of table 'q' can never .*: QueueCapacity\(20\)"):
            queue.sample(21, timeout=None)
        for wrong in (
            lambda: limiters.SampleToInsertRatio(4, error_buffer=3.9),
            lambda: limiters.SampleToInsertRatio(0.5, error_buffer=0.9),
            lambda: limiters.SampleToInsertRatio(0),
            lambda: limiters.SampleToInsertRatio(float("nan")),
            lambda: limiters.QueueCapacity(0),
            lambda: plain_table(store, 10, "w", limiter=limiters.SampleToInsertRatio(1, min_size=11)),
            lambda: plain_table(store, 10, "w", limiter=limiters.QueueCapacity(5)),
            lambda: plain_table(store, 10, "w", limiter=limiters.QueueCapacity(11), max_times_sampled=1),
            lambda: plain_table(store, 10, "w", limiter=limiters.SampleToInsertRatio(3), max_times_sampled=2),
            lambda: plain_table(store, 10, "w", max_times_sampled=0),
        ):
            with pytest.raises(ConfigError):
                wrong()
        assert store.tables() == ["t", "q"]
