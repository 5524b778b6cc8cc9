"""Rows that vary in length: one array of all their elements, and where each row begins."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Array
from .errors import ConfigError, DtypeMismatch, MissingExtra, ShapeMismatch

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LAYOUTS", "Ragged"]

LAYOUTS = ("packed", "padded", "jagged")  # of torch tensors


class Ragged:
    """Rows that vary in length, packed: row i is `values[offsets[i]:offsets[i + 1]]`.

    `values`: (total, *inner). `offsets`: int64 (n + 1,), ascending, within `values`. `text`: "string" or "binary" where
    the values are the bytes of such, uint8: rows are then str or bytes. Both arrays are kept, not copied. What a batch
    gives for a column whose rows vary in length, whatever the lengths are, and what `extend` takes for one.

    Of windows of several steps, sequences say, `shape` is (n, steps) and `offsets` int64 (n * steps + 1,): one row for
    each step, sequence after sequence, of no elements where a sequence has no step. `ragged[i]` is then a Ragged of the
    steps of one of them, `ragged[i][t]` and `ragged[i, t]` one row, `ragged[batch["mask"]]` all rows that are steps.

    Example:
        >>> tokens = Ragged(np.arange(4, dtype=np.int32), [0, 3, 4])
        >>> tokens[0], tokens.lengths
        (array([0, 1, 2], dtype=int32), array([3, 1]))
        >>> array, mask = tokens.padded(fill=-1)    # [[0, 1, 2], [3, -1, -1]]

    Raises:
        ShapeMismatch: offsets that descend or lie outside of the values. DtypeMismatch: offsets that are no integers,
            another `text`, or one of values that are no bytes.
    """

    __slots__ = ("offsets", "shape", "text", "values")

    def __init__(self, values: Any, offsets: Any, *, text: str | None = None) -> None:
        values = np.asarray(values)
        given = np.asarray(offsets)
        if given.dtype.kind not in "iu":
            raise DtypeMismatch(f"offsets are {given.dtype}: give integers, one more than rows")
        if values.ndim == 0 or given.ndim != 1 or len(given) == 0:
            raise ShapeMismatch(
                f"values of shape {values.shape} and offsets of shape {given.shape}: give (total, ...) and (n + 1,)"
            )
        starts = np.ascontiguousarray(given, np.int64)
        if starts[0] < 0 or starts[-1] > len(values) or (starts[1:] < starts[:-1]).any():
            raise ShapeMismatch(
                f"offsets from {starts[0]} to {starts[-1]} of {len(values)} elements: they must ascend within them"
            )
        if text is not None and (text not in ("string", "binary") or values.dtype != np.uint8 or values.ndim != 1):
            raise DtypeMismatch(
                f"text is {text!r}, of values {values.dtype} {values.shape}: give 'string' or 'binary', and bytes "
                "uint8 (total,)"
            )
        self.values: Array = values
        self.offsets: npt.NDArray[np.int64] = starts
        self.text = text
        self.shape: tuple[int, ...] = (len(starts) - 1,)

    @classmethod
    def _made(cls, values: Array, offsets: Array, text: str | None, shape: tuple[int, ...]) -> Ragged:
        """Without the checks, for what the core has made."""
        made = cls.__new__(cls)
        made.values, made.offsets, made.text, made.shape = values, offsets, text, shape
        return made

    @classmethod
    def from_rows(cls, rows: Sequence[Any]) -> Ragged:
        """Pack arrays of the same dtype and of the same shape but for their lengths. At least one: it gives both.

        Raises:
            ShapeMismatch: none, or other shapes. DtypeMismatch: other dtypes.
        """
        arrays = [np.asarray(row) for row in rows]
        if not arrays or any(array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:] for array in arrays):
            shapes = sorted({array.shape for array in arrays})
            raise ShapeMismatch(f"rows of shapes {shapes}: give arrays that differ in their lengths alone")
        if any(array.dtype != arrays[0].dtype for array in arrays):
            raise DtypeMismatch(f"rows of dtypes {sorted({str(array.dtype) for array in arrays})}: give one")
        return cls(np.concatenate(arrays), _offsets([len(array) for array in arrays]))

    @classmethod
    def from_padded(cls, array: Any, lengths: Any) -> Ragged:
        """Take the first `lengths[i]` elements of each row of `array` (n, most, *inner).

        Raises:
            ShapeMismatch: not one length a row, or one outside of the row.
        """
        padded, counts = np.asarray(array), np.asarray(lengths)
        if padded.ndim < 2 or counts.shape != padded.shape[:1]:
            raise ShapeMismatch(f"lengths have shape {counts.shape}: {padded.shape} needs one for each row")
        if counts.dtype.kind not in "iu" or (counts < 0).any() or (counts > padded.shape[1]).any():
            raise ShapeMismatch(f"lengths are not all whole numbers from 0 to {padded.shape[1]}")
        return cls(padded[_within(counts, padded.shape[1])], _offsets(counts))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Elements of each row, int64 of `shape`."""
        return np.diff(self.offsets).reshape(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: Any) -> Any:
        """Return one row: a view (length, *inner); of text a str or bytes. Of several steps: their rows as Ragged.

        Of a slice, an array of indices, a bool mask or a tuple of such: those rows as Ragged, packed anew.

        Raises:
            IndexError: there is no such row.
        """
        if isinstance(row, slice | list | np.ndarray | tuple):
            chosen = np.arange(len(self.offsets) - 1).reshape(self.shape)[row]
            return self._chosen(chosen) if isinstance(chosen, np.ndarray) else self._row(int(chosen))
        at = operator.index(row)
        at += len(self) * (at < 0)
        if not 0 <= at < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        if len(self.shape) == 1:
            return self._row(at)
        steps = math.prod(self.shape[1:])
        offsets = self.offsets[at * steps : (at + 1) * steps + 1]
        return Ragged._made(self.values, offsets, self.text, self.shape[1:])

    def _row(self, at: int) -> Any:
        values = self.values[self.offsets[at] : self.offsets[at + 1]]
        if self.text is None:
            return values
        return values.tobytes().decode() if self.text == "string" else values.tobytes()

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def pieces(self) -> Iterator[Array]:
        """Iterate over all rows' elements, of text too: views of `values`, of times as int64."""
        values = _numbers(self.values)
        return (values[first:last] for first, last in itertools.pairwise(self.offsets.tolist()))

    def _chosen(self, chosen: Array) -> Ragged:
        rows = chosen.ravel()
        starts, lengths = self.offsets[:-1][rows], np.diff(self.offsets)[rows]
        offsets = _offsets(lengths)
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged._made(self.values[places], offsets, self.text, chosen.shape)

    def padded(self, fill: Any = 0, *, length: int | None = None) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Return the rows as (n, length, *inner), `fill` behind each, and a mask bool (n, length) of what is theirs.

        Of several steps as (n, steps, length, *inner). `length`: the longest row's if None.

        Raises:
            ShapeMismatch: a row is longer than `length`; names the first. ConfigError: `fill` is no value of the dtype.
        """
        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        most = longest if length is None else operator.index(length)
        if longest > most:
            row = int(np.argmax(lengths > most))
            size = lengths.ravel()[row]
            raise ShapeMismatch(f"row {row} has {size} elements, length is {most}: raise it, or cut the rows")
        mask = _within(lengths, most)
        try:
            array = np.full((*self.shape, most, *self.values.shape[1:]), fill, self.values.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"fill is {fill!r}: give a value that {self.values.dtype} has ({error})") from error
        array[mask] = self.values[self.offsets[0] : self.offsets[-1]]
        return array, mask

    def to_torch(self, layout: str = "packed", *, fill: Any = 0) -> Any:
        """Return the rows as torch tensors, in the layout that is asked for, whatever the lengths are.

        "packed": (values, offsets), which share this memory. "padded": (array, mask), see `padded`. "jagged": one
        nested tensor of layout torch.jagged over the same memory. Times come as int64, in their unit. Of several steps
        each is a row, in the packed and the jagged layout.

        Raises:
            ConfigError: another layout. MissingExtra: torch is not installed.
        """
        if layout not in LAYOUTS:
            raise ConfigError(f"layout is {layout!r}: give one of {', '.join(LAYOUTS)}")
        try:
            import torch
        except ImportError as error:
            raise MissingExtra("torch tensors need torch: pip install 'conduit-edp[torch]'") from error
        if layout == "padded":
            array, mask = self.padded(fill)
            return torch.from_numpy(_numbers(array)), torch.from_numpy(mask)
        kept, starts = _numbers(np.ascontiguousarray(self.values)), self.offsets  # torch knows no negative strides
        if layout == "packed":
            return torch.from_numpy(kept), torch.from_numpy(starts)
        first, last = starts[0], starts[-1]
        values, offsets = torch.from_numpy(kept[first:last]), torch.from_numpy(starts if first == 0 else starts - first)
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    def named_tensors(self, name: str, layout: str) -> dict[str, Any]:
        """Return what `to_torch` returns by names, as batches have them: `name`, and `name`.offsets or `name`.mask."""
        made = self.to_torch(layout)
        if layout == "jagged":
            return {name: made}
        return {name: made[0], f"{name}.{'offsets' if layout == 'packed' else 'mask'}": made[1]}

    def __repr__(self) -> str:
        kind = self.text or f"{self.values.dtype} {(None, *self.values.shape[1:])}"
        rows = " x ".join(map(str, self.shape))
        return f"<Ragged of {rows} rows, {kind}, {self.offsets[-1] - self.offsets[0]} elements>"


def _offsets(lengths: Any) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _within(lengths: Any, most: int) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = np.arange(most) < np.asarray(lengths)[..., None]
    return mask


def _numbers(array: Array) -> Array:
    return array.view(np.int64) if array.dtype.kind in "mM" else array
