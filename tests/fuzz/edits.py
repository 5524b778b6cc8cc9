"""From bytes of a fuzzer to a damaged copy of something whole: deep in a format, where random bytes do not get."""

from __future__ import annotations

import copy
import json
from typing import Any

__all__ = ["edited_bytes", "edited_json"]

_ODD: tuple[Any, ...] = (
    0, 1, -1, 2, 255, 1 << 28, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 36, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    1 << 64, -(1 << 63), 0.5, -0.0, 1e308, float("nan"), float("inf"), True, False, None, "", "x", "../x", "t", "\0",
    "float32", "i8", "nan", [], [0], [-1], [[]], {}, {"kind": "Row"}, {"x": 1}, "9" * 5_000, "é" * 70,
)  # fmt: skip
_NESTED = (dict, list)  # exactly these come out of JSON


def edited_bytes(whole: bytes, data: bytes) -> bytes:
    """`whole` with some bytes changed, and maybe cut: 5 bytes of `data` an edit (3 of place, what, value)."""
    copy = bytearray(whole)
    for at in range(0, len(data) - 4, 5):
        place = int.from_bytes(data[at : at + 3], "little") % max(1, len(copy))
        what, value = data[at + 3] % 8, data[at + 4]
        if what == 0:
            del copy[place:]
        elif what == 1:
            copy[place:place] = bytes([value]) * (1 + value % 7)
        elif what == 2:
            del copy[place : place + 1 + value % 9]
        elif what == 3 and place + 8 <= len(copy):
            copy[place : place + 8] = (int(_ODD[value % 14]) & ((1 << 64) - 1)).to_bytes(8, "little")
        elif copy:
            copy[place % len(copy)] ^= value or 1
    return bytes(copy)


def edited_json(whole: str, data: bytes) -> str:
    """`whole` with some values changed, moved, dropped or added: 4 bytes of `data` an edit."""
    tree = json.loads(whole)
    for at in range(0, len(data) - 3, 4):
        places: list[tuple[Any, Any]] = []
        _gather(tree, places)
        if not places:
            break
        holder, key = places[int.from_bytes(data[at : at + 2], "little") % len(places)]
        what, value = data[at + 2] % 8, data[at + 3]
        if what == 0 and isinstance(holder, dict):
            del holder[key]
        elif what == 1:
            other, name = places[value % len(places)]
            holder[key] = copy.deepcopy(other[name])
        elif what == 2 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif what == 3 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
            holder[key] += value - 128
        else:
            holder[key] = copy.deepcopy(_ODD[value % len(_ODD)])
    return json.dumps(tree)


def _gather(node: Any, into: list[tuple[Any, Any]]) -> None:
    """Gather every value's holder and key, outer ones first."""
    for key, value in node.items() if type(node) is dict else enumerate(node):
        into.append((node, key))
        if type(value) in _NESTED:
            _gather(value, into)
