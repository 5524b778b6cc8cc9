"""Rows that vary in length, some of them longer than a block, of a category or null, and show when they are torn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import conduit
from conduit import Column, Schema

__all__ = ["SCHEMA", "columns", "faults", "table_faults"]

MEAN = 32
LABELS = 40_000
SCHEMA = Schema(
    (
        Column("writer", "int64"),
        Column("serial", "int64"),
        Column("payload", "int64", (None,), mean_length=MEAN),
        Column("name", "string", mean_length=12),
        Column("label", "category", nullable=True, max_values=LABELS),
    )
)


def length_of(serial: int) -> int:
    """0 to 63, and of every 16th row more than a block holds. Less than two do: there are always two side by side."""
    return 330 + serial // 16 % 5 if serial % 16 == 7 else serial * 7_919 % 64


def payload(writer: int, serial: int) -> npt.NDArray[np.int64]:
    """Elements that show whose they are, and where they stand."""
    return writer * 1_000_003 + serial * 7_919 + np.arange(length_of(serial), dtype=np.int64) * 31


def name(writer: int, serial: int) -> str:
    return f"{writer}é{serial}" * (serial % 3)


def label(writer: int, serial: int) -> str | None:
    """None, or one of so many that for long every writer meets new ones."""
    return None if serial % 5 == 0 else f"label {(writer * 997 + serial // 8) % LABELS}"


def columns(writer: int, first: int, n: int) -> dict[str, Any]:
    serials = range(first, first + n)
    return {
        "writer": np.full(n, writer),
        "serial": np.arange(first, first + n),
        "payload": [payload(writer, serial) for serial in serials],
        "name": [name(writer, serial) for serial in serials],
        "label": [label(writer, serial) for serial in serials],
    }


def faults(rows: Any) -> list[str]:
    """What is torn in a batch, or in a mapping of columns."""
    wrong: list[str] = []
    labels = rows.decode("label") if isinstance(rows, conduit.Batch) else rows["label"]
    for i, (writer, serial) in enumerate(zip(rows["writer"], rows["serial"], strict=True)):
        who, which = int(writer), int(serial)
        if not np.array_equal(rows["payload"][i], payload(who, which)) or rows["name"][i] != name(who, which):
            wrong.append(f"row {which} of writer {who} is torn: {rows['payload'][i]}, {rows['name'][i]!r}")
        if labels[i] != label(who, which):
            wrong.append(f"row {which} of writer {who} is {labels[i]!r}, not {label(who, which)!r}")
    return wrong


def table_faults(table: conduit.Table) -> list[str]:
    """The same of every live row, in the blocks themselves."""
    found: list[str] = []
    for view in table.blocks():
        batch = view.to_arrow()
        batch.validate(full=True)
        found += faults({name: batch.column(name).to_pylist() for name in batch.schema.names})
    return found
