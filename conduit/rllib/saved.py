"""What an algorithm's checkpoint holds of its replay: the checkpoint of its table, file by file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from conduit.store import Store
from conduit.table import Table
from conduit_store.errors import ConfigError

__all__ = ["append_saved", "saved_rows"]

_TIMEOUT = 60.0  # seconds that an append may wait for space


def saved_rows(table: Table) -> dict[str, bytes]:
    """Return the files of a checkpoint of the table, by their names; see docs/checkpoints.md.

    Others may write meanwhile: it is of one moment. Takes as much room in the temporary folder. Needs pyarrow.

    Raises:
        CheckpointError: the temporary folder is full. CheckpointBusy: somebody else saves the store.
    """
    with tempfile.TemporaryDirectory(prefix="conduit-") as folder:
        table._store.checkpoint(folder, tables=[table.name])
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def append_saved(table: Table, saved: Mapping[str, bytes]) -> None:
    """Put what `saved_rows` returned into an empty table, while nobody writes.

    A table that has never held rows, of the same settings (but for its size: of a smaller one's rows only the newest
    stay), is then as the other one was: the same keys, priorities and draws. Into any other table rows are appended,
    with their priorities, and episodes linked as they were. An episode that was going on is over: its last steps, whose
    windows are not complete, are never drawn.

    Raises:
        ConfigError: the rows have other columns than the table. CheckpointDamaged: names the file.
    """
    from conduit.checkpoints.restoring import fill, spec_in  # pyarrow

    with tempfile.TemporaryDirectory(prefix="conduit-") as folder:
        for name, content in saved.items():
            (Path(folder) / name).write_bytes(content)
        spec = spec_in(folder, table.name)
        if set(spec.schema.names) != set(table.schema.names):
            raise ConfigError(
                f"saved rows have columns {sorted(spec.schema.names)}, table {table.name!r} {list(table.schema.names)}"
            )
        if table._native.info(0)["blocks_opened"] == 0 and replace(spec, max_size=table.spec.max_size) == table.spec:
            fill(table, folder)
            return
        with Store.restore(folder, f"conduit-{uuid4().hex[:12]}") as store:
            table.import_from(store[table.name].to_arrow(), timeout=_TIMEOUT)
