"""A buffer's rows in a state dict, and in a folder.

A state is {"transforms": theirs, "schema": JSON, "rows": uint8 (bytes,)}: rows and priorities as an Arrow stream;
before the table is made only the first. A folder has `rows.arrow` and `buffer.pt`, the state without its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from conduit_store.errors import ExchangeError
from conduit_store.schema import Schema

if TYPE_CHECKING:
    from conduit.torchrl.buffer import ReplayBuffer

__all__ = ["load_state", "read", "state_of", "write"]

_ROWS, _REST = "rows.arrow", "buffer.pt"


def state_of(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return the state; copies all rows."""
    state = _head(buffer)
    if "schema" in state:
        sink = pa.BufferOutputStream()
        with buffer.table.to_arrow() as batches, pa.ipc.new_stream(sink, batches.schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        state["rows"] = torch.from_numpy(np.frombuffer(sink.getvalue(), np.uint8).copy())
    return state


def load_state(buffer: ReplayBuffer, state: Mapping[str, Any]) -> None:
    """Put a state in place of what the buffer has; see `ReplayBuffer.load_state_dict`."""
    if "transforms" not in state:
        raise ExchangeError(f"no state of a buffer: it has {', '.join(map(str, state)) or 'nothing'}")
    rows = None
    if "rows" in state:
        try:
            rows = pa.ipc.open_stream(pa.py_buffer(state["rows"].cpu().numpy()))
        except pa.ArrowInvalid as error:
            raise ExchangeError(f"the saved rows cannot be read: {error}") from error
    _put(buffer, state, rows)


def write(buffer: ReplayBuffer, folder: Path) -> None:
    """Write the state to a folder; see `ReplayBuffer.dumps`."""
    folder.mkdir(parents=True, exist_ok=True)
    state = _head(buffer)
    if "schema" in state:
        buffer.table.export(folder / _ROWS, "arrow", overwrite=True)
    torch.save(state, folder / _REST)


def read(buffer: ReplayBuffer, folder: Path) -> None:
    """Read what `write` has written; see `ReplayBuffer.loads`."""
    try:
        state = torch.load(folder / _REST, weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ExchangeError(f"{folder} is no folder that dumps() has written: {error}") from error
    _put(buffer, state, folder / _ROWS if "schema" in state else None)


def _head(buffer: ReplayBuffer) -> dict[str, Any]:
    """The state without its rows."""
    state: dict[str, Any] = {"transforms": buffer.transform.state_dict()}
    if (found := buffer._found()) is not None:
        state["schema"] = found.schema.to_json()
    return state


def _put(buffer: ReplayBuffer, state: Mapping[str, Any], rows: Any) -> None:
    buffer.transform.load_state_dict(state["transforms"])
    buffer.empty()
    if rows is not None:
        buffer._made(Schema.from_json(state["schema"])).import_from(rows, timeout=buffer._timeout)
