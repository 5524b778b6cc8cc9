"""How a number is spread over the live rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conduit.values import whole_number
from conduit.views import View
from conduit_store.errors import ConfigError, UnknownColumn, did_you_mean
from conduit_store.native import native

if TYPE_CHECKING:
    import numpy.typing as npt

    from conduit.spec import TableSpec

__all__ = ["Histogram", "bars", "histogram", "scan_keys"]

_MAX_BINS = 1 << 20
_AGE, _PRIORITY, _COLUMN, _TIMES, _KEY = range(5)  # what the core reads of each row, see scan.cpp


class Histogram(NamedTuple):
    """`counts` int64 (bins,): rows from `edges[i]` to `edges[i + 1]`, the last too; `edges` float64 (bins + 1,)."""

    counts: npt.NDArray[np.int64]
    edges: npt.NDArray[np.float64]


def histogram(core: native.Table, spec: TableSpec, what: str, bins: int | Sequence[float], view: View) -> Histogram:
    """See `Table.histogram`."""
    edges: Any = whole_number("bins", bins, 1, _MAX_BINS) if isinstance(bins, int | np.integer) else _edges(bins)
    values = _values(core, spec, what, view).astype(np.float64)
    counts, found = np.histogram(values[np.isfinite(values)], edges)
    return Histogram(counts.astype(np.int64), found.astype(np.float64))


def scan_keys(core: native.Table) -> npt.NDArray[np.uint64]:
    """Return the keys of all live rows in eviction order; final observations have none here."""
    return np.frombuffer(core.scan(0, _KEY, 0), np.uint64)


def bars(shown: Histogram, width: int = 40) -> list[str]:
    """Return a bar chart, a line a bin: its lower edge, a bar, how many rows."""
    largest = max(int(shown.counts.max(initial=0)), 1)
    labels = [f"{edge:.6g}" for edge in shown.edges[:-1]]
    margin = max(map(len, labels))
    return [
        f"{label:>{margin}} {'#' * round(int(count) * width / largest):<{width}} {int(count):,}".rstrip()
        for label, count in zip(labels, shown.counts, strict=True)
    ]


def _edges(bins: Sequence[float]) -> npt.NDArray[np.float64]:
    try:
        edges = np.asarray(bins, np.float64)
    except (TypeError, ValueError):
        edges = np.zeros(0)
    if edges.ndim != 1 or len(edges) < 2 or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all():
        raise ConfigError(f"bins are {bins!r}: give a number of them, or two edges at least that ascend")
    return edges


def _values(core: native.Table, spec: TableSpec, what: str, view: View) -> npt.NDArray[Any]:
    if what == "age":
        return np.frombuffer(core.scan(view.index, _AGE, 0), np.uint64)
    if what == "priority":
        if not view.prioritized:
            raise ConfigError(
                f"table {spec.name!r} keeps no priorities for window {view.name!r}: there are none to show"
            )
        return np.frombuffer(core.scan(view.index, _PRIORITY, 0), np.float32)
    if what == "times_sampled":
        if spec.max_times_sampled is None:
            raise ConfigError(f"table {spec.name!r} was created without max_times_sampled: it counts no deliveries")
        return np.frombuffer(core.scan(view.index, _TIMES, 0), np.uint64)
    names = spec.schema.names
    numeric = [c.name for c in spec.schema.columns if c.shape == () and c.dtype.kind in "biuf" and not c.nullable]
    if what not in names:
        known = ["age", "priority", "times_sampled", *numeric]
        raise UnknownColumn(
            f"table {spec.name!r} has no {what!r} to show; it has {', '.join(known)}.{did_you_mean(what, known)}"
        )
    column = spec.schema.column(what)
    if column.nullable:
        raise ConfigError(
            f"column {what!r} of table {spec.name!r} is nullable, and nulls are no numbers; {column.validity.name!r} "
            "says how many there are"
        )
    if what not in numeric:
        raise ConfigError(f"column {what!r} of table {spec.name!r} is no single number a row: give one of {numeric}")
    return np.frombuffer(core.scan(view.index, _COLUMN, names.index(what)), column.dtype)
