"""C15: a sampler changed the shared tree without a lock while another updated it."""

from __future__ import annotations

import numpy as np

from tests import store_actions
from tests.store_support import episode, episodes, fresh_store, keys_of, prioritized, scalar_writer
from tests.worker import worker

ROUNDS = 2_000


def test_draws_and_updates_of_two_processes_leave_the_ledger_and_the_tree_equal() -> None:
    rng = np.random.default_rng(0)
    with fresh_store() as store, worker() as reader:
        table = episodes(store, 200, n=4, sampler=prioritized(), name="episodes", mean_episode_length=10)
        with scalar_writer(table) as writer:
            for e in range(20):
                episode(writer, range(10 * e, 10 * e + 10), [1.0] * 10, "truncated", -1)
        keys = keys_of(table)
        assert len(keys) == 220  # 200 steps and 20 final observations
        ledger = table.priorities(keys)
        steps = np.flatnonzero(np.arange(220) % 11 != 10)
        reader.start(store_actions.draw_windows, store.name, ROUNDS)
        for _ in range(ROUNDS):
            chosen = rng.choice(steps, 16, replace=False)
            values = rng.random(16).astype(np.float32)
            assert table.update_priorities(keys[chosen], values).applied == 16
            ledger[chosen] = values
        seen = reader.result()
        assert set(seen) <= set(range(200))
        np.testing.assert_array_equal(table.priorities(keys)[steps], ledger[steps])
        np.testing.assert_allclose(table.info().total_priority, ledger[steps].sum(dtype=float), rtol=1e-9)
        table.verify()


def test_full_windows_never_begin_in_an_episodes_last_steps() -> None:
    with fresh_store() as store:
        table = episodes(store, 200, n=4, mean_episode_length=10)
        with scalar_writer(table) as writer:
            for e in range(20):
                episode(writer, range(10 * e, 10 * e + 10), [1.0] * 10, "truncated", -1)
        batch = table.sample(5_000)
        late = batch["obs"] % 10 >= 7
        assert late.any()
        assert (batch["n_step"][~late] == 4).all()
        assert (batch["n_step"][late] == 10 - batch["obs"][late] % 10).all()
