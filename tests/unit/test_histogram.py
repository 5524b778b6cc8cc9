"""How ages, priorities and columns are spread over a table's rows."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import ConfigError, UnknownColumn, cli, removers, samplers, windows
from conduit.histogram import Histogram, bars
from tests.store_support import EPISODIC, episode, fresh_store, plain_table, prioritized, scalar_writer, schema


def test_ages_are_rows_appended_since() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100)
        for start in range(0, 150, 50):
            table.extend({"x": np.arange(start, start + 50)})
        counts, edges = table.histogram("age", bins=4)
        assert counts.dtype == np.int64
        assert counts.tolist() == [25, 25, 25, 25]
        assert edges.tolist() == [0, 24.75, 49.5, 74.25, 99]


@pytest.mark.parametrize("remover", [removers.Lifo(), removers.LowestPriority()])
def test_ages_where_rows_leave_one_by_one(remover: removers.Remover) -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, remover=remover)
        for i in range(10):
            table.extend({"x": [i]})
        ages = [0, 7, 8, 9] if isinstance(remover, removers.Lifo) else [0, 1, 2, 3]
        assert table.histogram("age", bins=range(11)).counts[ages].tolist() == [1, 1, 1, 1]
        assert table.histogram("x", bins=range(11)).counts.sum() == 4


def test_priorities_of_each_window() -> None:
    both = {"one": prioritized(), "two": prioritized(0.5), "all": samplers.Uniform()}
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 50, window=dict.fromkeys(both, windows.Transition()), sampler=both)
        with scalar_writer(table) as writer:
            episode(writer, [0, 1, 2], [1, 1, 1], "terminated", 3)
            writer.append(obs=5, action=0, reward=0, terminated=False, truncated=False)
        assert table.histogram("priority", bins=[0, 0.5, 2, 4]).counts.tolist() == [0, 3, 0]  # the last is not known
        keys = table.sample(64, window="all").keys
        table.update_priorities(keys, np.full(64, 3), window="two")
        assert table.histogram("priority", bins=[0, 2, 4], window="two").counts.tolist() == [0, 3]
        assert table.histogram("priority", bins=[0, 2, 4]).counts.tolist() == [3, 0]
        assert table.histogram("age").counts.sum() == 4  # the final observation is no row
        with pytest.raises(ConfigError, match="keeps no priorities for window 'all'"):
            table.histogram("priority", window="all")


@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "f2", "f4", "f8", "?"])
def test_columns_of_every_kind(dtype: str) -> None:
    values = np.arange(100).astype(dtype)
    with fresh_store() as store:
        table = store.create_table("t", schema(a=dtype, b=("f4", (2,))), 100)
        table.extend({"a": values, "b": np.zeros((100, 2), np.float32)})
        found = table.histogram("a", bins=7)
        counts, edges = np.histogram(values.astype(np.float64), 7)
        assert found.counts.tolist() == counts.tolist()
        assert found.edges.tolist() == edges.tolist()


def test_what_cannot_be_shown_is_refused() -> None:
    with fresh_store() as store:
        table = store.create_table("t", schema(speed="f4", pair=("f4", (2,))), 10)
        assert table.histogram("speed").counts.tolist() == [0] * 20
        table.extend({"speed": np.array([1, np.nan, np.inf], np.float32), "pair": np.zeros((3, 2), np.float32)})
        assert table.histogram("speed", bins=[0, 2]).counts.tolist() == [1]
        with pytest.raises(UnknownColumn, match=r"it has age, priority, times_sampled, speed\. Did you mean 'speed'"):
            table.histogram("sped")
        with pytest.raises(ConfigError, match=r"'pair'.*no single number"):
            table.histogram("pair")
        for bins in (0, [1], [2, 1], [0, float("nan")], [[1, 2]]):
            with pytest.raises(ConfigError, match="bins"):
                table.histogram("speed", bins=bins)  # type: ignore[arg-type]


def test_how_often_rows_were_sampled() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=samplers.Fifo(), max_times_sampled=3)
        table.extend({"x": np.arange(6)})
        table.sample(4)
        table.sample(2)
        assert table.histogram("times_sampled", bins=[0, 1, 2, 3]).counts.tolist() == [2, 2, 2]
        table.sample(1)  # the oldest leaves
        assert table.histogram("times_sampled", bins=[0, 1, 2, 3]).counts.tolist() == [2, 2, 1]
        assert table.histogram("age").counts.sum() == 5
        with pytest.raises(ConfigError, match="does not count"):
            plain_table(store, 10, name="u").histogram("times_sampled")


def test_bars() -> None:
    shown = Histogram(np.array([1, 4, 0]), np.array([0.0, 0.5, 1.0, 1.5]))
    assert bars(shown, 8) == ["  0 ##       1", "0.5 ######## 4", "  1          0"]
    assert bars(Histogram(np.zeros(1, np.int64), np.array([0.0, 1.0])), 4) == ["0      0"]


def test_info_of_one_table_has_charts(capsys: pytest.CaptureFixture[str]) -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=prioritized())
        assert cli.main(["info", store.name, "--table", "t"]) == 0
        assert capsys.readouterr().out.count("no rows") == 2
        table.extend({"x": np.arange(8)}, priorities=[1] * 6 + [2] * 2)
        assert cli.main(["info", store.name, "--table", "t"]) == 0
        shown = capsys.readouterr().out
        assert "80.0 %" in shown
        assert shown.index("\nage\n") < shown.index("\npriority, window default\n")
        assert f"\n   1 {'#' * 40} 6\n" in shown
        assert cli.main(["info", store.name, "--table", "u"]) == 2
        assert "no table 'u'" in capsys.readouterr().err
