"""Windows over the steps of episodes: n-step returns, sequences, frame stacks, beside a C gather of the same bytes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import conduit
from bench.cases import Case
from bench.conduit_cases import MAX_WRITERS, MemoryCase
from bench.timing import Slices, timed_calls
from bench.workloads import Rows, Workload, make_rows
from conduit import windows

N_STEP = 3
BURN_IN, LENGTH = 20, 20
EPISODE = 500
PIECE = 512
STACK = 4
STEP_BYTES = 8 << 10  # what a step of W3 may take where each frame is stored once


class SequenceRows:
    """For the ceiling: a row that is a whole sequence, its columns one after another."""

    def __init__(self, workload: Workload) -> None:
        steps = BURN_IN + LENGTH
        self.columns: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            name: ((steps, *shape), dtype) for name, (shape, dtype) in workload.columns.items() if name != "next_obs"
        }

    @property
    def row_bytes(self) -> int:
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.columns.values())


class WindowCase:
    """Sampling windows of one table that holds episodes of 500 steps, each observation once."""

    def __init__(self, case: Case) -> None:
        rows = frames(case.rows) if case.op == "stack" else case.rows
        self.case, self.slices = case, Slices()
        self.pool = make_rows(rows, rows.pool)
        window = {
            "n-step": windows.NStep(N_STEP),
            "sequence": windows.Sequence(LENGTH, burn_in=BURN_IN),
            "stack": windows.FrameStack(STACK),
        }[case.op]
        self.store, self.table = create(self.pool, rows.capacity, window, case.prioritized)
        fill(self.table, self.pool, rows.filled)
        if case.prioritized:
            spread(self.table, rows.filled // 64)
        self.last: Any = None

    def call(self) -> None:
        self.last = self.table.sample(self.case.batch).torch()  # the batch before it lives until now

    def slice(self, seconds: float) -> None:
        self.slices.add(*timed_calls(self.call, seconds))

    def result(self) -> dict[str, Any]:
        check(self.table.sample(self.case.batch), self.pool, self.case)
        return self.slices.summary(self.case.batch)

    def close(self) -> None:
        self.last = None
        self.store.close()


class FramesMemoryCase(MemoryCase):
    """Bytes of a full table of single frames, from which stacks are made when they are sampled."""

    def __init__(self, case: Case) -> None:
        super().__init__(frames(case.rows))
        self.row_bytes -= int(np.prod(self.workload.obs_shape))  # next_obs is the next row's
        self.limit_bytes, self.mean_episode = float(STEP_BYTES), EPISODE

    def filled(self) -> tuple[conduit.Store, conduit.Table]:
        pool = make_rows(self.workload, self.workload.pool)
        store, table = create(pool, self.workload.held, windows.FrameStack(STACK), prioritized=True)
        fill(table, pool, self.workload.held * 5 // 4)
        return store, table


def frames(workload: Workload) -> Workload:
    """The workload with one frame as its observation."""
    return replace(workload, obs_shape=workload.obs_shape[:2])


def create(pool: Rows, capacity: int, window: Any, prioritized: bool) -> tuple[conduit.Store, conduit.Table]:
    """A store of one table of steps."""
    store = conduit.Store.create(f"bench-{os.getpid()}", host_memory=None)
    sampler: Any = conduit.samplers.Prioritized(0.6, 0.4) if prioritized else conduit.samplers.Uniform()
    schema = conduit.Schema.from_example({name: column[0] for name, column in steps_of(pool).items()})
    table = store.create_table(
        "steps", schema, capacity, sampler=sampler, window=window, mean_episode_length=EPISODE, max_writers=MAX_WRITERS
    )
    return store, table


def steps_of(pool: Rows) -> Rows:
    """The pool as steps; an episode ends every 500 steps and at the pool's end."""
    n = len(pool["reward"])
    ends = np.arange(n) % EPISODE == EPISODE - 1
    ends[-1] = True
    return {
        "obs": pool["obs"], "action": pool["action"], "reward": pool["reward"], "terminated": ends,
        "truncated": np.zeros(n, np.bool_),
    }  # fmt: skip


def fill(table: conduit.Table, pool: Rows, n: int) -> None:
    """Append at least `n` steps, the pool again and again."""
    steps = steps_of(pool) | {"next_obs": pool["next_obs"]}
    size = len(pool["reward"])
    for start in range(0, n, PIECE):
        at = start % size
        table.extend({name: column[at : at + PIECE] for name, column in steps.items()})


def spread(table: conduit.Table, batches: int) -> None:
    """Random priorities in (0.01, 1.01) for nearly every row."""
    rng = np.random.default_rng(1)
    for _ in range(batches):
        table.update_priorities(table.sample(32).keys, rng.random(32, np.float32) + np.float32(0.01))


def check(batch: conduit.Batch, pool: Rows, case: Case) -> None:
    """The windows are the pool's.

    Raises:
        RuntimeError: a number measured on wrong rows is worth nothing.
    """
    steps = steps_of(pool)
    ends = np.flatnonzero(steps["terminated"])
    if case.op == "n-step":  # rows are recognised by their observations
        source = {o.tobytes(): i for i, o in enumerate(pool["obs"])}
        starts = np.array([source[o.tobytes()] for o in np.ascontiguousarray(batch["obs"])])
        right: npt.NDArray[Any] = np.ones(len(starts), bool)
        for k, i in enumerate(starts):
            m = min(N_STEP, int(ends[np.searchsorted(ends, i)]) - i + 1)
            expected = sum(0.99**j * float(pool["reward"][i + j]) for j in range(m))
            right[k] = batch["n_step"][k] == m and abs(batch["reward"][k] - expected) <= 1e-3 * max(1.0, abs(expected))
    elif case.op == "stack":
        places = np.argsort(pool["reward"])[batch["reward"].astype(np.int64)]
        firsts = np.concatenate([[0], ends + 1])[np.searchsorted(ends, places)]
        behind = np.maximum(places[:, None] + np.arange(1 - STACK, 1), firsts[:, None])
        after = np.maximum(places[:, None] + np.arange(2 - STACK, 1), firsts[:, None])
        right = (batch["obs"] == pool["obs"][behind]).all((1, 2, 3))
        right &= (batch["next_obs"][:, :-1] == pool["obs"][after]).all((1, 2, 3))
        right &= (batch["next_obs"][:, -1] == pool["next_obs"][places]).all((1, 2))
    else:
        order = np.argsort(pool["reward"])
        mask = batch["mask"]
        places = order[batch["reward"].astype(np.int64)]
        right = np.ones(len(mask), bool)
        for name in ("obs", "action", "terminated"):
            same = batch[name] == steps[name][places]
            right &= (same.reshape(*mask.shape, -1).all(-1) | ~mask).all(1)
        follows = (np.diff(places, axis=1) == 1) | ~mask[:, 1:] | ~mask[:, :-1]
        right &= follows.all(1)
    if not right.all():
        raise RuntimeError(f"{case.name}: {int((~right).sum())} of {case.batch} windows differ from the steps appended")
