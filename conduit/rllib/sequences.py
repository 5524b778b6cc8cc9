"""Batches for recurrent modules, as RLlib's connectors make them of parts of episodes.

The table's window is `max_seq_len` steps and one step before them, whose state out is the sequence's state in. What a
module puts out at a step is stored with it, below `extra/`.
"""

from __future__ import annotations

import numpy as np

from conduit.batch import Batch
from conduit_store.arrays import Array

__all__ = ["BEGINS", "EXTRA", "STATE", "chosen", "sequences"]

EXTRA = "extra/"
STATE = EXTRA + "state_out"
BEGINS = "begins"  # of a sequence: its state in is the module's initial one


def sequences(batch: Batch) -> dict[str, Array]:
    """Return the columns of RLlib's batch under a batch's names: (n, length, ...), zeros behind an episode's end.

    `seq_lens` (n,), `loss_mask` (n, length), `state_in/...` and `next_state_in/...` (n, ...); and `begins` bool (n,).
    """
    lengths = batch["length"].astype(np.int64)
    mask = batch["mask"]
    there = np.ascontiguousarray(mask[:, 1:])
    rows = np.arange(len(lengths))
    made: dict[str, Array] = {
        "n_step": there.astype(np.int64),
        "weights": there.astype(np.float32),
        "seq_lens": lengths,
        "loss_mask": there,
        BEGINS: ~mask[:, 0],
    }
    for name in batch.names:
        top, _, rest = name.partition("/")
        if name == STATE or name.startswith(STATE + "/"):
            below = name.removeprefix(STATE)
            made["state_in" + below] = np.ascontiguousarray(batch[name][:, 0])
            made["next_state_in" + below] = np.ascontiguousarray(batch[name][:, 1])
        elif top in ("obs", "action", "reward", "terminated", "truncated", "extra"):
            made[rest if top == "extra" else name] = np.ascontiguousarray(batch[name][:, 1:])
        elif top == "next_obs":
            following = np.zeros_like(batch[name.removeprefix("next_")][:, 1:])
            following[:, :-1] = batch[name.removeprefix("next_")][:, 2:]
            following[rows, lengths - 1] = batch[name]
            made[name] = following
    return made


def chosen(parts: list[dict[str, Array]], rows: Array) -> dict[str, Array]:
    """Return these rows of parts of a batch that are put together."""
    return {name: np.concatenate([part[name] for part in parts])[rows] for name in parts[0]}
