"""Rows that show when they are torn: every byte of the payload follows from who wrote the row and its serial.

`plain` rows: writer, serial, payload (1,000 float32), checksum. `episodic` rows: the payload is the
observation; of every `PERIOD` serials the last is the final observation of an episode, so that next_obs,
n-step return and episode bounds all follow from the serial as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from conduit import Schema, Store, limiters, removers, samplers, windows
from tests.crash import varying_rows

__all__ = ["EPISODIC", "PLAIN", "TABLES", "batch_faults", "episode_rows", "plain_rows", "priority_of"]

Array = npt.NDArray[Any]

WIDTH = 1_000
PERIOD = 6  # five steps and a final observation
N_STEP = 3
GAMMA = 0.5
ALPHA = 0.5
_SIBLING = 1_000_000_000
MAX_SIZE = 48  # small, so that the writers pass through the whole table in tens of milliseconds

_one = np.zeros(WIDTH, np.float32)
PLAIN = Schema.from_example({"writer": np.int64(0), "serial": np.int64(0), "payload": _one, "checksum": np.int64(0)})
EPISODIC = Schema.from_example(
    {
        "obs": _one,
        "writer": np.int64(0),
        "serial": np.int64(0),
        "action": np.int32(0),
        "reward": np.float32(0),
        "terminated": np.bool_(0),
        "truncated": np.bool_(0),
    }
)
_prioritized = samplers.Prioritized(alpha=ALPHA, beta=0.4)
TABLES: dict[str, dict[str, Any]] = {
    "plain": {
        "schema": PLAIN,
        "window": {"rows": windows.Row(), "again": windows.Row(), "once": windows.Row()},
        "sampler": {"rows": _prioritized, "again": _prioritized, "once": samplers.WithoutReplacement()},
    },
    "episodic": {
        "schema": EPISODIC,
        "window": {"n": windows.NStep(N_STEP, GAMMA), "sequence": windows.Sequence(2, burn_in=2, period=2)},
        "mean_episode_length": 5.0,
    },
    "scratch": {"schema": PLAIN, "window": windows.Row()},
    "newest": {"schema": PLAIN, "window": windows.Row(), "remover": removers.Lifo()},
    "least": {"schema": PLAIN, "window": windows.Row(), "remover": removers.LowestPriority()},
    "varying": {"schema": varying_rows.SCHEMA, "window": windows.Row()},
    "hungry": {"schema": PLAIN, "window": windows.Row(), "limiter": limiters.MinSize(MAX_SIZE)},
    "limited": {
        "schema": PLAIN,
        "window": windows.Row(),
        "limiter": limiters.SampleToInsertRatio(1, min_size=4, error_buffer=8),
    },
    "counted": {
        "schema": PLAIN,
        "window": windows.Row(),
        "limiter": limiters.QueueCapacity(24),
        "max_times_sampled": 2,
    },
}
for _settings in TABLES.values():
    _settings |= {"max_size": MAX_SIZE, "max_writers": 4, "sampler": _settings.get("sampler", _prioritized)}


def create_store(name: str) -> Store:
    """Return a store that has room for the tables, and few process slots: those of the dead must be used again."""
    return Store.create(name, "64MiB", max_processes=24)


def siblings(writer: int) -> tuple[int, ...]:
    """Return the ids of a vector writer's environments: three, so that its steps do not fill blocks evenly."""
    return tuple(writer + k * _SIBLING for k in range(3))


def is_first(writer: int) -> bool:
    """Return whether it is the id of a writer, not of a further environment of one."""
    return writer < _SIBLING


def payload(writer: Array, serial: Array) -> Array:
    """Return the payloads of rows, float32 (n, WIDTH): whole numbers below 2**24, which float32 keeps."""
    seed = writer.astype(np.int64) * 1_000_003 + serial.astype(np.int64) * 7_919
    return ((seed[:, None] + np.arange(WIDTH) * 31) % (1 << 24)).astype(np.float32)


def checksum(payloads: Array) -> Array:
    """Return int64 (n,), exact: a sum of whole numbers weighted by their place."""
    return payloads.astype(np.int64) @ (np.arange(WIDTH, dtype=np.int64) % 97 + 1)


def priority_of(writer: Array, serial: Array) -> Array:
    """Return the one priority that an update may give a row, float32 (n,): 1 to 5."""
    return (1 + (writer + serial) % 5).astype(np.float32)


def reward_of(serial: Array) -> Array:
    return (serial % 16).astype(np.float64)


def plain_rows(writer: int, first: int, n: int) -> dict[str, Array]:
    """Return rows `first` to `first + n` of a writer as columns."""
    serial = np.arange(first, first + n)
    who = np.full(n, writer)
    payloads = payload(who, serial)
    return {"writer": who, "serial": serial, "payload": payloads, "checksum": checksum(payloads)}


def is_final(serial: Any) -> Any:
    return serial % PERIOD == PERIOD - 1


def episode_rows(writer: int, first: int, n: int) -> dict[str, Array]:
    """Return the rows of `n` serials, final observations too (with the other columns as if they were steps)."""
    serial = np.arange(first, first + n)
    who = np.full(n, writer)
    last = serial % PERIOD == PERIOD - 2
    return {
        "obs": payload(who, serial),
        "writer": who,
        "serial": serial,
        "action": (serial % 4).astype(np.int32),
        "reward": reward_of(serial).astype(np.float32),
        "terminated": last & (serial // PERIOD % 2 == 0),
        "truncated": last & (serial // PERIOD % 2 == 1),
    }


def stored_faults(columns: dict[str, Array]) -> list[str]:
    """Return what is wrong with stored rows, as read from a block. Final observations must be left out."""
    writer, serial = columns["writer"], columns["serial"]
    expected = payload(writer, serial)
    stored = columns["payload"] if "payload" in columns else columns["obs"]
    faults = _unequal("payload", stored, expected, writer, serial)
    if "checksum" in columns:
        faults += _unequal("checksum", columns["checksum"], checksum(stored), writer, serial)
    if "reward" in columns:
        faults += _unequal("reward", columns["reward"], reward_of(serial), writer, serial)
    return faults


def batch_faults(batch: Any) -> list[str]:
    """Return what is wrong with a sampled batch."""
    if "obs" not in batch.names:
        return stored_faults({name: batch[name] for name in batch.names})
    writer, serial, steps = batch["writer"], batch["serial"], batch["n_step"].astype(np.int64)
    faults = _unequal("obs", batch["obs"], payload(writer, serial), writer, serial)
    faults += _unequal("next_obs", batch["next_obs"], payload(writer, serial + steps), writer, serial)
    returns = np.zeros(len(serial))
    for k in range(N_STEP):
        returns += np.where(k < steps, GAMMA**k * reward_of(serial + k), 0.0)
    faults += _unequal("reward", batch["reward"], returns.astype(np.float32), writer, serial)
    place = serial % PERIOD
    faults += _unequal("window within episode", place + steps <= PERIOD - 1, True, writer, serial)
    ended = place + steps == PERIOD - 1
    even = serial // PERIOD % 2 == 0
    faults += _unequal("terminated", batch["terminated"], ended & even, writer, serial)
    faults += _unequal("truncated", batch["truncated"], ended & ~even, writer, serial)
    discount = np.where(ended & even, 0.0, GAMMA**steps).astype(np.float32)
    return faults + _unequal("discount", batch["discount"], discount, writer, serial)


def _unequal(what: str, got: Array, expected: Any, writer: Array, serial: Array) -> list[str]:
    wrong = np.asarray(got != expected)
    if not wrong.any():
        return []
    row = int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1)))
    return [
        f"{what} of row {serial[row]} of writer {writer[row]} is wrong in {np.count_nonzero(wrong[row])} places "
        f"({np.count_nonzero(wrong)} places in {len(wrong)} rows)"
    ]
