"""C41: an n-step option was accepted and dropped in one configuration."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import ConfigError, Store, Table, limiters, samplers, windows
from tests.store_support import EPISODIC, PLAIN, episodes, fresh_store, plain_table, scalar_writer, step


def fill(table: Table, way: str) -> None:
    if way == "append":
        with scalar_writer(table) as writer:
            for i in range(5):
                step(writer, i, 1.0)
    else:
        table.extend({
            "obs": np.arange(5), "action": np.arange(5), "reward": np.ones(5, np.float32),
            "terminated": np.zeros(5, bool), "truncated": np.zeros(5, bool),
        })  # fmt: skip


def windowed(store: Store, made: str, sampler: samplers.Sampler) -> Table:
    table = episodes(store, 100, n=3, gamma=0.9, sampler=sampler)
    if made == "attached":
        table = Store.attach(store.name)["t"]
    elif made == "exist_ok":
        table = episodes(store, 100, n=3, gamma=0.9, sampler=sampler, exist_ok=True)
    return table


@pytest.mark.parametrize("sampler", [samplers.Uniform(), samplers.Prioritized()], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("made", ["created", "attached", "exist_ok"])
@pytest.mark.parametrize("way", ["append", "extend"])
def test_n_step_works_through_every_constructor(sampler: samplers.Sampler, made: str, way: str) -> None:
    with fresh_store() as store:
        table = windowed(store, made, sampler)
        fill(table, way)
        batch = table.sample(16)
        first = batch["obs"] == 0
        assert first.any()
        np.testing.assert_allclose(batch["reward"][first], 2.71, rtol=1e-6)
        np.testing.assert_allclose(batch["discount"][first], 0.729, rtol=1e-6)
        table._store.close()


def test_settings_that_would_have_no_effect_are_refused() -> None:
    with fresh_store() as store:
        with pytest.raises(ConfigError, match="follows episodes"):
            store.create_table("a", PLAIN, 10, window=windows.NStep(3))
        with pytest.raises(ConfigError, match="can never let anybody sample"):
            store.create_table("a", EPISODIC, 10, limiter=limiters.MinSize(11))
        assert store.tables() == []
        table = plain_table(store, 10)
        with pytest.raises(ConfigError, match="no alpha"):
            table.reconfigure(alpha=0.5)
        table.extend({"x": np.arange(3)})
        with pytest.raises(ConfigError, match="not sampled by priority"):
            table.update_priorities([1], [1.0])


@pytest.mark.parametrize("way", ["extend", "append"])
def test_priorities_for_a_uniform_table_are_refused(way: str) -> None:
    with fresh_store() as store:
        table = plain_table(store, 10)
        with scalar_writer(table) as writer:
            append = {
                "extend": lambda: table.extend({"x": np.arange(3)}, priorities=np.ones(3)),
                "append": lambda: writer.append(x=1, priority=2.0),
            }[way]
            with pytest.raises(ConfigError, match="not sampled by priority"):
                append()
        assert len(table) == 0
