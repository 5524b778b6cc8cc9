"""What `conduit ls` and `conduit info` show: the stores of this node, and one store's tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from conduit.histogram import bars
from conduit.metrics import ConsumerMetrics, DiskMetrics, QueueMetrics, TableMetrics
from conduit.store import Store
from conduit_store.errors import AttachTimeout, ConduitError, StoreNotFound
from conduit_transport import names

__all__ = ["print_store", "print_stores", "print_table"]

ATTACH_S = 1.0  # patience with a store that does not answer, when all are listed


def print_stores() -> None:
    """Prints a line for each name of this node: its tables, or why it cannot be attached.

    Raises:
        ConfigError: the runtime directory cannot be used.
    """
    rows = [(name, *_glance(name)) for name in names.list_names()]
    if rows:
        print_grid(("store", "tables", "rows"), rows)
    else:
        print(f"no stores (names would be in {names.runtime_dir()})")


def print_store(name: str) -> None:
    """Prints what `store.metrics()` says: a line for each field, a column for each table.

    Raises:
        ConduitError: what `Store.attach` raises.
    """
    with Store.attach(name, read_only=True) as store:
        metrics = store.metrics()
    for field, value in metrics._asdict().items():
        if field not in ("tables", "queues"):
            print(f"{field}: {_text(field, value)}")
    if not metrics.tables:
        print("no tables")
        return
    _print_tables(name, metrics.tables)
    if metrics.queues:
        _print_queues(metrics.queues)


def print_table(name: str, table: str) -> None:
    """Prints what one table says of itself, and how old its rows are and what priorities they have, as bar charts.

    Ages are rows appended since; priorities are as given, those of each window that has some.

    Raises:
        ConduitError: what `Store.attach` and `Store.table` raise.
    """
    with Store.attach(name, read_only=True) as store:
        looked_at = store.table(table)
        metrics = store.metrics()
        charts = {"age": looked_at.histogram("age")}
        for view in looked_at.spec.views:
            if view.prioritized:
                charts[f"priority, window {view.name}"] = looked_at.histogram("priority", window=view.name)
    print(f"processes: {metrics.processes}")
    _print_tables(name, {table: metrics.tables[table]})
    for writer in metrics.tables[table].writers:
        print(f"writer, pid {writer.pid}: {writer.blocks} blocks open")
    for reader in metrics.tables[table].readers:
        read = f"{reader.rows:,} rows in {reader.batches:,} batches"
        print(f"reader, pid {reader.pid}: {read}, the last {reader.idle_s:.1f} s ago")
    if (disk := metrics.tables[table].disk) is not None:
        told = (f"{field} {_text(field, value)}" for field, value in disk._asdict().items() if value != "")
        print(f"disk: {', '.join(told)}")
    for title, chart in charts.items():
        print(f"\n{title}")
        if chart.counts.any():
            print("\n".join(bars(chart)))
        else:
            print("no rows")


def _print_tables(name: str, tables: Mapping[str, TableMetrics]) -> None:
    records: list[Any] = list(tables.values())
    rows = [
        (field, *(_text(field, getattr(record, field)) for record in records))
        for field in records[0]._fields
        if field != "name"
    ]
    rows.insert(0, ("fill", *(f"{record.rows / record.max_size:.1%}".replace("%", " %") for record in records)))
    print_grid((f"store {name}", *tables), rows)


def _print_queues(queues: Mapping[str, QueueMetrics]) -> None:
    """A column for each consumer group of each queue; what belongs to the queue as a whole stands in its first one."""
    columns = [(queue, consumer, place) for queue in queues.values() for place, consumer in enumerate(queue.consumers)]
    rows = [
        (field, *(_text(field, getattr(queue, field)) if place == 0 else "" for queue, _, place in columns))
        for field in QueueMetrics._fields
        if field not in ("name", "consumers")
    ]
    rows += [
        (field, *(_text(field, getattr(queue.consumers[name], field)) for queue, name, _ in columns))
        for field in ConsumerMetrics._fields
    ]
    print()
    print_grid(("queue", *(f"{queue.name} {name}" for queue, name, _ in columns)), rows)


def print_grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table, its first column to the left, the others to the right; by rich if that is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        _print_plain(head, rows)
        return
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for index, title in enumerate(head):
        grid.add_column(title, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    # A pipe gets whole lines, whatever width rich assumes for it.
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 10_000).print(grid)


def _print_plain(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _glance(name: str) -> tuple[str, str]:
    try:
        with Store.attach(name, read_only=True, timeout=ATTACH_S) as store:
            tables = store.metrics().tables
    except StoreNotFound:
        return "stale: run `conduit gc`", ""
    except AttachTimeout:
        return "does not answer", ""
    except ConduitError as error:
        return f"{type(error).__name__}: {error}", ""
    return ", ".join(tables) or "none", f"{sum(table.rows for table in tables.values()):,}"


def _text(field: str, value: object) -> str:
    if field in ("writers", "readers"):
        return ", ".join(f"pid {who.pid}" for who in value) or "none"  # type: ignore[attr-defined]
    if isinstance(value, DiskMetrics):
        return f"{value.blocks_on_disk:,} blocks"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if field.endswith("_s"):
        return f"{value:,.3f} s"
    if field.endswith(("bytes", "memory")):
        return f"{value / 2**20:,.1f} MiB" if value >= 2**20 else f"{value / 2**10:,.1f} KiB"
    return f"{value:,}"
