"""Rows that vary in length and follow from their serial number alone: what tests of such tables share."""

from __future__ import annotations

from typing import Any

import numpy as np

from conduit import Column, Schema

__all__ = ["SCHEMA", "columns", "faults", "row"]

SCHEMA = Schema(
    (
        Column("serial", "int64"),
        Column("tokens", "int32", (None,), mean_length=20),
        Column("frames", "uint8", (None, 2, 3), mean_length=2),
        Column("text", "string", mean_length=8),
        Column("raw", "binary", mean_length=4),
    )
)


def row(serial: int, length: int) -> dict[str, Any]:
    """One row: `length` tokens, and of the rest what follows from it."""
    return {
        "serial": serial,
        "tokens": np.arange(serial, serial + length, dtype=np.int32),
        "frames": np.full((length % 4, 2, 3), serial % 251, np.uint8),
        "text": "é" * (length % 5) + str(serial),
        "raw": bytes([serial % 256]) * (length % 7),
    }


def columns(serials: Any, lengths: Any) -> dict[str, Any]:
    """Rows as `extend` takes them, a list for each column."""
    rows = [row(int(serial), int(length)) for serial, length in zip(serials, lengths, strict=True)]
    made: dict[str, Any] = {name: [values[name] for values in rows] for name in SCHEMA.names}
    return {**made, "serial": np.array(made["serial"], np.int64)}


def faults(batch: Any) -> list[str]:
    """What of a batch, or of a mapping of such columns, is not as `row` made it."""
    wrong: list[str] = []
    for at, serial in enumerate(batch["serial"]):
        expected = row(int(serial), len(batch["tokens"][at]))
        for name in ("tokens", "frames"):
            found = batch[name][at]
            if found.dtype != SCHEMA.column(name).dtype or not np.array_equal(found, expected[name]):
                wrong.append(f"row {serial}: {name} is {found}")
        wrong += [f"row {serial}: {n} is {batch[n][at]!r}" for n in ("text", "raw") if batch[n][at] != expected[n]]
    return wrong
