"""Rows of a TensorDict's entries, a piece at a time: of tensors, of nested tensors, of text, and of packed elements.

Rows that vary in length are nested tensors in memory, of layout torch.jagged; text and bytes are lists, NonTensorStack.
A folder has them packed, since tensordict maps no nested tensors: of "tokens" the entries tokens:start and
tokens:lengths (prompt:characters of text, blob:bytes of bytes), one a row each, and in a TensorDict of its own, the
folder :elements, all elements. Row i is elements[start[i] : start[i] + lengths[i]]. What a step led to shares the
elements of the step after it. The colon keeps these names apart from those of columns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import MemoryMappedTensor, NonTensorData, NonTensorStack, TensorDictBase, is_leaf_nontensor

from conduit.exchange.columns import indexable, packed
from conduit.exchange.npz_members import LENGTHS
from conduit_store.arrays import Array
from conduit_store.errors import ExchangeError
from conduit_store.ragged_values import as_ragged
from conduit_store.schema import Column

__all__ = [
    "ELEMENTS", "ENDS", "START", "STEP", "TRAJ", "Entry", "Key", "Listed", "Packed", "Plain", "entries_in", "file_of",
    "mapped", "nested", "packed_of",
]  # fmt: skip

Key = tuple[str, ...]
ELEMENTS = ":elements"
START = ":start"
TRAJ: Key = ("collector", "traj_ids")
STEP: Key = ("collector", "step")
ENDS = ("terminated", "truncated")


class Entry(Protocol):
    """One entry: its rows are of `column`, but for its name."""

    def rows(self, start: int, stop: int) -> Array:
        """Return rows [start, stop), `indexable`."""
        ...

    def column(self, name: str) -> Column:
        """Return the column that holds them."""
        ...


class Plain:
    """A tensor. `single`: rows of one element come without its axis."""

    def __init__(self, tensor: Any, *, single: bool = False) -> None:
        self._tensor = tensor
        self._single = single and tensor.ndim == 2 and tensor.shape[1] == 1

    def rows(self, start: int, stop: int) -> Array:
        array: Array = self._tensor[start:stop].detach().cpu().numpy()
        return array[:, 0] if self._single else array

    def column(self, name: str) -> Column:
        first = self.rows(0, 1)
        return Column(name, first.dtype, first.shape[1:])


class Packed:
    """Rows that are elements [start, start + length) of a tensor, one after the other or not.

    Raises:
        ValueError: rows that lie outside of it. For use within `reading`.
    """

    def __init__(self, elements: Any, start: Any, lengths: Any, text: str | None = None) -> None:
        self._elements: Array = elements.detach().cpu().numpy()
        self._start, self._lengths = (np.asarray(n.detach().cpu().numpy()) for n in (start, lengths))
        kinds = {self._start.dtype.kind, self._lengths.dtype.kind}
        if not kinds <= {"i", "u"} or self._start.ndim != 1 or self._lengths.shape != self._start.shape:
            raise ValueError(f"rows start at {self._start.dtype} {self._start.shape}: a whole number a row was due")
        ends = self._start + self._lengths
        if len(ends) and (self._start.min() < 0 or self._lengths.min() < 0 or ends.max() > len(self._elements)):
            raise ValueError(f"rows from {self._start.min()} to {ends.max()} of {len(self._elements)} elements")
        self._text = text

    def rows(self, start: int, stop: int) -> Array:
        where = zip(self._start[start:stop].tolist(), self._lengths[start:stop].tolist(), strict=True)
        return indexable(self.column("x"), [self._elements[first : first + n] for first, n in where])

    def column(self, name: str) -> Column:
        if self._text is not None:
            return Column(name, self._text)
        return Column(name, self._elements.dtype, (None, *self._elements.shape[1:]))


class Listed:
    """Text or bytes."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._text = "binary" if values and isinstance(values[0], bytes) else "string"

    def rows(self, start: int, stop: int) -> Array:
        column = self.column("x")
        return indexable(column, as_ragged(column, self._values[start:stop]))

    def column(self, name: str) -> Column:
        return Column(name, self._text)


def entries_in(data: TensorDictBase) -> dict[Key, Any]:
    """Return the tensors, nested or not, and the lists of text or bytes, by their keys. Other objects are left out."""
    found: dict[Key, Any] = {}
    for name, value in data.items(True, True, is_leaf=is_leaf_nontensor):
        key = (name,) if isinstance(name, str) else tuple(name)
        if isinstance(value, torch.Tensor):
            found[key] = value
            continue
        values = value.tolist()
        if len(data.batch_size) == 2:  # environments by steps
            values = [one for steps in values for one in steps]
        if _is_text(values):
            found[key] = values
    return found


def _is_text(values: Any) -> bool:
    return isinstance(values, list) and {type(value) for value in values} in ({str}, {bytes})


def packed_of(tensor: Any) -> Packed:
    """Return the rows of a nested tensor, whose rows differ in their first dimension."""
    if tensor.layout != torch.jagged:
        parts = tensor.unbind()
        lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        return Packed(torch.cat(parts), torch.cumsum(lengths, 0) - lengths, lengths)
    offsets = tensor.offsets()
    lengths = tensor.lengths()
    return Packed(tensor.values(), offsets[:-1], torch.diff(offsets) if lengths is None else lengths)


def nested(column: Column, rows: Array) -> Any:
    """Return rows that vary in length as an entry of a TensorDict."""
    given = packed(column, rows)
    if column.text is None:
        return given.to_torch("jagged")
    stack: Any = NonTensorStack  # whose types say that it is abstract
    return stack(*(NonTensorData(value) for value in given), stack_dim=0)


# ---- folders


def file_of(key: str) -> str:
    """The file of a key's tensor: of what our names may have, tensordict keeps only the colon out of file names."""
    return f"{key.replace(':', '%3A')}.memmap"


def mapped(folder: Path) -> dict[Key, Any]:
    """Return the entries of a folder: tensors that are mapped, and lists of text. Other objects are left out; what is
    pickled is never read.

    Each file is to be as long as the metadata says: mapping a shorter one would make it longer, with zeros.

    Raises:
        ExchangeError: a nested tensor. What `reading` expects of damaged metadata.
    """
    return _joined(dict(_walk(folder, ())), folder)


def _walk(folder: Path, above: Key) -> Iterator[tuple[Key, Any]]:
    for name, entry in json.loads((folder / "meta.json").read_text()).items():
        if not isinstance(entry, dict):
            continue
        key, kind = (*above, name), str(entry.get("type", ""))
        if "shape" in entry and "dtype" in entry:
            yield key, _tensor(folder / file_of(name), entry)
        elif kind == "NonTensorStack":
            if _is_text(values := json.loads((folder / name / "meta.json").read_text()).get("data")):
                yield key, values
        elif kind.startswith("TensorDict"):
            yield from _walk(folder / name, key)


def _tensor(file: Path, entry: Mapping[str, Any]) -> Any:
    dtype = getattr(torch, str(entry["dtype"]).removeprefix("torch."))
    if entry.get("is_nested"):
        raise ExchangeError(f"{file} holds a nested tensor, which is not read from files. Import it from memory")
    shape = torch.Size(entry["shape"])
    wanted, size = math.prod(shape) * dtype.itemsize, file.stat().st_size
    if size != wanted:
        raise ValueError(f"{file.name} has {size:,} bytes, {wanted:,} were due")
    if wanted == 0:  # nothing to map
        return torch.empty(shape, dtype=dtype)
    return MemoryMappedTensor.from_filename(str(file), dtype, shape)


def _joined(entries: dict[Key, Any], folder: Path) -> dict[Key, Any]:
    """Put elements and where rows of them begin together."""
    packed_keys = [key for key in entries if key[-1].endswith(START)]
    elements = dict(_walk(folder / ELEMENTS, ())) if packed_keys else {}
    for key in packed_keys:
        bare: Key = (*key[:-1], key[-1].removesuffix(START))
        start = entries.pop(key)
        text, suffix = next((t, s) for t, s in LENGTHS.items() if (*bare[:-1], bare[-1] + s) in entries)
        lengths = entries.pop((*bare[:-1], bare[-1] + suffix))
        of = bare[1:] if bare[0] == "next" else bare
        entries[bare] = Packed(elements[of], start, lengths, text)
    return entries
