"""A table's rows to a file and back: `Table.export`, `Table.import_from` and `Store.import_table`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit.exchange import formats, npz
from conduit.exchange.aside import aside
from conduit.exchange.frame import Frame, check_rename, named
from conduit.exchange.inflow import Inflow
from conduit.exchange.memory import Memory
from conduit.exchange.outflow import Outflow
from conduit.exchange.pieces import piece_rows
from conduit.exchange.progress import Progress, shown
from conduit.values import as_path
from conduit_store.arrow import ragged_chunks, to_numpy
from conduit_store.errors import ConduitError, ConfigError, ExchangeError, SourceNotFound
from conduit_store.schema import Schema

if TYPE_CHECKING:
    from conduit.store import Store
    from conduit.table import Table

__all__ = ["arrays", "export", "import_from", "import_table", "reader", "tensordict"]


def export(
    table: Table,
    path: str | os.PathLike[str],
    format: str | None,
    *,
    compression: str | None,
    overwrite: bool,
    progress: Progress,
) -> int:
    """See `Table.export`."""
    target = as_path(path)
    _check_table(table)
    name = formats.format_of_path(target, format)
    if (instead := formats.FORMATS[name].instead) is not None:
        raise ConfigError(f"{name} is read and not written: export to {instead!r}, which RLlib reads as well")
    known = formats.FORMATS[name].compressions
    if compression is not None and compression not in known:
        raise ConfigError(
            f"compression {compression!r} is not one that {name} has: {', '.join(known) or 'it has none'}"
        )
    module = formats.load(name)
    rows = Outflow(table)
    with (
        aside(target, overwrite=overwrite) as partial,
        shown(progress, f"exporting {table.name}", rows.rows_expected) as tell,
    ):
        sink: formats.Sink | None = None
        try:
            sink = module.Sink(partial, rows.frame, rows.rows_expected, compression)
            assert sink is not None
            done = 0
            for piece in rows:
                sink.write(piece)
                done += len(piece)
                tell(done)
            return sink.finish()
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, ConduitError):
                raise
            raise ExchangeError(f"{path} cannot be written: {error}. Nothing was left there") from error
        finally:
            if sink is not None:
                with contextlib.suppress(OSError):  # a full disk says so again when files are closed
                    sink.abandon()


def reader(table: Table) -> pa.RecordBatchReader:
    """See `Table.to_arrow`."""
    _check_table(table)
    rows = Outflow(table)
    return pa.RecordBatchReader.from_batches(rows.schema, (batch for piece in rows for batch in piece.to_batches()))


def arrays(table: Table) -> dict[str, Any]:
    """See `Table.to_numpy`."""
    _check_table(table)
    rows = Outflow(table)
    return npz.arrays_of(rows.frame, rows)


_UNEVEN = 1.1  # of rows whose lengths are spread like an exponential distribution's a block leaves less over


def tensordict(table: Table) -> Any:
    """See `Table.to_tensordict`."""
    _check_table(table)
    rows = Outflow(table)
    return formats.load("tensordict").tensordict_of(rows.frame, rows)


def import_from(
    table: Table,
    source: Any,
    format: str | None,
    *,
    rename: Mapping[str, str] | None,
    timeout: float | None,
    progress: Progress,
) -> int:
    """See `Table.import_from`."""
    _check_table(table)
    table._check_writable()
    with _opened(source, format) as (found, what):
        names = check_rename(rename, found.schema.names, what)
        frame = Frame.of_arrow(found.schema, table.schema, what, names)
        _tell(found, frame, names)
        return _append(table, found, frame, what, names, timeout, progress)


def import_table(
    store: Store,
    name: str,
    source: Any,
    max_size: int | None,
    *,
    format: str | None,
    schema: Schema | None,
    rename: Mapping[str, str] | None,
    timeout: float | None,
    progress: Progress,
    settings: dict[str, Any],
) -> Table:
    """See `Store.import_table`."""
    with _opened(source, format) as (found, what):
        names = check_rename(rename, found.schema.names, what)
        frame = Frame.of_arrow(found.schema, schema, what, names)
        if isinstance(found, Memory) and max_size is None:
            found.keep()
        _tell(found, frame, names)
        rows, episodes, kept = _surveyed(found, frame, names)
        if frame.episodic and episodes and rows:
            # room for the final observations of episodes as short as these are
            settings.setdefault("mean_episode_length", max(1.0, rows / (episodes + 1)))
        size = max(1, rows or 0) if max_size is None else max_size
        table = store.create_table(name, kept, size, **settings)
        try:
            _append(table, found, frame, what, names, timeout, progress)
            if max_size is None and (lost := table.info().evicted_early):
                raise ExchangeError(
                    f"{lost:,} of the rows of {what} found no room in a table made for all: their lengths are too "
                    f"uneven, or their episodes too short. Give max_size, of more than {size:,}"
                )
        except BaseException as error:
            with contextlib.suppress(Exception):
                table.clear()
                error.add_note(f"table {name!r} has been created, and is empty")
            raise
        return table


@contextlib.contextmanager
def _opened(source: Any, format: str | None) -> Iterator[tuple[formats.Source, object]]:
    """Yield a source, and what messages call it."""
    if not isinstance(source, str | os.PathLike):
        if format is not None:
            raise ConfigError(f"format {format!r} is for files; what is in memory says itself what it is")
        tensordict = type(source).__module__.partition(".")[0] == "tensordict"
        made = formats.load("tensordict").source_of(source) if tensordict else Memory(source)
        yield made, f"the given {type(source).__name__}"
        return
    path = as_path(source)
    if not path.exists():
        raise SourceNotFound(f"{path} is not there: nothing was imported")
    found = formats.load(formats.format_of_path(path, format)).Source(path)
    try:
        yield found, path
    finally:
        found.close()


def _tell(found: formats.Source, frame: Frame, names: Mapping[str, str]) -> None:
    """Tell a source whose numbers have no dtype which ones are meant."""
    if (meant := getattr(found, "meant", None)) is not None:
        old = {new: name for name, new in names.items()}
        meant(Schema(tuple(replace(c, name=old.get(c.name, c.name)) for c in frame.schema.valued)))


def _surveyed(found: formats.Source, frame: Frame, names: Mapping[str, str]) -> tuple[int | None, int | None, Schema]:
    """Return how many rows there are, how many of them end an episode, and the schema to make a table of.

    Where the source does not say that itself, or rows vary in length, the columns that tell are read, once. Lengths get
    room for uneven ones; what the table that they come from was planned for counts where it is more.
    """
    old = {new: old for old, new in names.items()}
    ragged = [old.get(column.name, column.name) for column in frame.schema.ragged]
    rows, episodes = found.rows, found.episodes
    once = isinstance(found, Memory) and found.once
    ends = frame.episodic and episodes is None and not once
    flags = [old.get(flag, flag) for flag in ("terminated", "truncated")] if ends else []
    first = frame.schema.valued[0].name
    wanted = flags + ragged or ([old.get(first, first)] if rows is None else [])
    count, ended, total = 0, 0, dict.fromkeys(ragged, 0)
    if not once and wanted:
        for piece in found.pieces(wanted, piece_rows(frame.schema) if ragged else 65_536):
            count += len(piece)
            if flags:
                over = [to_numpy(flag, piece.column(flag).fill_null(False)) for flag in flags]
                ended += int(np.count_nonzero(over[0] | over[1]))
            for name in ragged:
                lists = piece.column(name).drop_null()
                total[name] += sum(int(part.lengths.sum()) for part in ragged_chunks(name, lists))
        rows, episodes = count, ended if ends else episodes
    lengths = {names.get(name, name): max(1.0, _UNEVEN * total[name] / max(count, 1)) for name in ragged}
    columns = (
        replace(column, mean_length=max(lengths[column.name], column.mean_length or 0.0)) if column.ragged else column
        for column in frame.schema
    )
    return rows, episodes, Schema(tuple(columns)) if ragged else frame.schema


def _append(
    table: Table,
    found: formats.Source,
    frame: Frame,
    what: object,
    names: Mapping[str, str],
    timeout: float | None,
    progress: Progress,
) -> int:
    old = {new: old for old, new in names.items()}
    wanted = frame.columns_to_read(names.get(name, name) for name in found.schema.names)
    columns = [old.get(name, name) for name in wanted]
    with (
        Inflow(table, frame, what, timeout) as inflow,
        shown(progress, f"importing {table.name}", found.rows) as tell,
    ):
        for piece in found.pieces(columns, piece_rows(frame.schema)):
            inflow.append(named(piece, names))
            tell(inflow.rows)
        return inflow.rows


def _check_table(table: Table) -> None:
    if table.spec.queue is not None:
        raise ConfigError(f"{table.name!r} is a queue: its rows are delivered, not exchanged. Use a table")
