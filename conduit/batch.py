"""A sampled batch: private, writable arrays over one reused buffer."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conduit.categories import Values
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError, MissingExtra, UnknownColumn
from conduit_store.layout import ALIGN, BlockLayout
from conduit_store.native import native
from conduit_store.ragged import Ragged
from conduit_store.schema import Column, Schema

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa
    import torch

    from conduit.devices import Device

__all__ = ["Batch", "BatchFormat", "DeviceBatch", "Formats"]

_MAX_FORMATS = 64
_UINT64, _FLOAT64, _FLOAT32 = np.dtype(np.uint64), np.dtype(np.float64), np.dtype(np.float32)


@cache
def _tensor_maker() -> native.TensorMaker:
    try:
        from torch import Tensor
        from torch.utils.dlpack import from_dlpack
    except ImportError as error:
        raise MissingExtra("batch.torch() needs torch: pip install 'conduit-edp[torch]'") from error
    return native.TensorMaker(getattr(Tensor, "__dlpack_c_exchange_api__", None), from_dlpack)


class BatchFormat(NamedTuple):
    """The columns of batches of `n` rows, and where each lies in a batch's buffer."""

    n: int
    schema: Schema
    offsets: tuple[int, ...]  # of each column, keys, where rows are drawn probabilities, weights; the size
    places: dict[str, tuple[Column, int]]  # by column name
    drawn: bool  # with probabilities and weights
    fields: native.Fields  # what torch() returns, as the core exports it
    ragged: tuple[tuple[Column, int], ...]  # columns whose rows vary in length, and where their offsets lie
    categories: dict[str, Values]  # of columns of categories

    @classmethod
    def make(
        cls, n: int, schema: Schema, offsets: Sequence[int], categories: Mapping[str, Values], *, drawn: bool
    ) -> BatchFormat:
        """Return the format; `categories`: the table's. `drawn`: with probabilities and weights, if drawn."""
        places = {column.name: (column, offset) for column, offset in zip(schema.columns, offsets, strict=False)}
        fixed = [place for place in places.values() if not place[0].ragged]
        # The core hands out times as their integers: torch has no times.
        fields = [
            (column.name, offset, "i8" if column.dtype.kind in "mM" else column.dtype.str[1:], list(column.shape))
            for column, offset in fixed
        ]
        if drawn:
            fields.append(("weights", offsets[len(schema.columns) + 2], "f4", []))
        ragged = tuple(place for place in places.values() if place[0].ragged)
        known = {c.name: categories[c.name.removeprefix("next_") if c.name not in categories else c.name]
                 for c in schema if c.categorical}  # fmt: skip
        return cls(n, schema, tuple(offsets), places, drawn, native.Fields(n, fields), ragged, known)

    def decoded(self, name: str, columns: Callable[[str], Any]) -> npt.NDArray[np.object_]:
        """Return a column of categories as strings, see `Batch.decode`; `columns` gives a batch's columns as arrays."""
        numbers, of = columns(name), self.categories.get(name)
        column, _ = self.places[name]
        if of is None:
            raise ConfigError(f"column {name!r} holds {column.dtype_name}, no categories: take batch[{name!r}]")
        valid: Array | None = columns(column.validity.name) if column.nullable else None
        if self._steps(column):
            valid = columns("mask") if valid is None else valid & columns("mask")
        return of.decode(numbers, valid)

    def _steps(self, column: Column) -> bool:
        """Whether it has a value for each place of a padded window: those end with their mask and their length."""
        if self.schema.names[-2:] != ("mask", "length"):
            return False
        mask, length = self.schema.columns[-2:]
        return mask.dtype == np.bool_ and length.dtype == np.int32 and column.shape == mask.shape != ()


class Formats:
    """The formats of the batch sizes that were asked for."""

    def __init__(self, schema: Schema, categories: Mapping[str, Values], *, drawn: bool) -> None:
        self._schema = schema
        self._categories = categories
        self._drawn = drawn
        self.found: dict[int, BatchFormat] = {}  # by batch size

    def of(self, n: int, offsets: Callable[[int], list[int]]) -> BatchFormat:
        """Return the format of `n` rows; `offsets`: the core's, for a size that is new."""
        found = self.found.get(n)
        if found is None:
            if len(self.found) >= _MAX_FORMATS:
                self.found.clear()
            found = self.found[n] = BatchFormat.make(n, self._schema, offsets(n), self._categories, drawn=self._drawn)
        return found


def _unknown(name: object, names: tuple[str, ...]) -> UnknownColumn:
    return UnknownColumn(f"no column {name!r} in this batch, which has {', '.join(names)}")


class Batch(native.BatchBase):
    """`n` sampled rows. `batch["obs"]` is an array of shape (n, *row_shape), writable and nobody else's.

    Where rows vary in length, `batch["tokens"]` is a Ragged, also when they happen to be equally long; of windows of
    several steps one of shape (n, steps).

    `keys` uint64 (n,), `probabilities` float64 (n,) as drawn, `weights` float32 (n,), the largest 1.0.
    The memory is reused once the last array or tensor made from it has died, never before.
    """

    # Of the base: `_staging`, the buffer; `_made`, the columns that somebody has asked for.
    __slots__ = ()
    _format: BatchFormat

    def __getitem__(self, name: str) -> Any:
        """Return a column.

        Raises:
            UnknownColumn: there is none of that name.
        """
        try:
            array = self._made.get(name)
        except TypeError:  # a name that cannot be hashed
            raise _unknown(name, self.names) from None
        if array is None:
            layout = self._format
            place = layout.places.get(name)
            if place is None:
                raise _unknown(name, self.names)
            column, offset = place
            if column.ragged:
                self._made.update(self._ragged())
                return self._made[name]
            array = np.ndarray((layout.n, *column.shape), column.dtype, self._staging, offset)
            self._made[name] = array
        return array

    def _ragged(self) -> dict[str, Ragged]:
        """The columns whose rows vary in length: their elements lie behind all else, column after column."""
        layout, staging = self._format, self._staging
        made: dict[str, Ragged] = {}
        for (column, offset), at in zip(layout.ragged, self._starts(), strict=True):
            offsets = np.ndarray((layout.n * (column.places or 1) + 1,), np.int64, staging, offset)
            values = np.ndarray((int(offsets[-1]), *column.shape[1:]), column.dtype, staging, at)
            shape = (layout.n,) if column.places is None else (layout.n, column.places)
            made[column.name] = Ragged._made(values, offsets, column.text, shape)
        return made

    def _starts(self) -> list[int]:
        layout = self._format
        starts: list[int] = []
        at = layout.offsets[-1]
        for column, offset in layout.ragged:
            starts.append(at)
            elements = int(np.ndarray((1,), np.int64, self._staging, offset + column.row_bytes * layout.n)[0])
            at += -(-elements * column.element_bytes // ALIGN) * ALIGN
        return starts

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return self._format.schema.names

    @property
    def valid(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Of each nullable column by name, which rows are not null: bool (n,), of windows of several rows (n, steps).

        Values are zeros where it is False. The masks are columns too, as "goal:valid", and come with them everywhere.
        """
        return {column.name: self[column.validity.name] for column in self._format.schema.nullable}

    def decode(self, name: str) -> npt.NDArray[np.object_]:
        """Return a "category" column as strings: an array of str of the column's shape, None where it is null and, of
        windows that are padded (`mask`), where there is no step.

        `batch[name]` are their numbers, int32, by which one may just as well compare and index: see `Table.categories`.

        Raises:
            UnknownColumn: there is none of that name. ConfigError: a column of another dtype.
        """
        return self._format.decoded(name, self.__getitem__)

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        """The drawn rows' keys: what `update_priorities` takes."""
        return self._extra(0, _UINT64)

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """The probability with which each row was drawn."""
        return self._extra(1, _FLOAT64)

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """Importance weights, divided by the batch's largest; all 1 under a uniform sampler."""
        return self._extra(2, _FLOAT32)

    def _extra(self, index: int, dtype: np.dtype[Any]) -> Array:
        layout = self._format
        return np.ndarray((layout.n,), dtype, self._staging, layout.offsets[len(layout.places) + index])

    def __len__(self) -> int:
        return self._format.n

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._format.places

    def items(self) -> Iterator[tuple[str, Any]]:
        """Iterate over (name, array)."""
        return ((name, self[name]) for name in self.names)

    def torch(self, *, without: Container[str] = (), ragged: str = "packed") -> dict[str, torch.Tensor]:
        """Return every column and 'weights', but those `without`, as torch tensors that share this batch's memory.

        Copies nothing. Times come as int64, in the column's unit.
        `ragged`: how columns come whose rows vary in length, whatever the lengths are. "packed": 'tokens' has all
        elements, 'tokens.offsets' int64 (n + 1,) says where each row begins. "padded": 'tokens' is (n, longest, ...)
        with zeros behind each row, 'tokens.mask' bool (n, longest); this one copies. "jagged": a nested tensor. Of
        windows of several steps each is a row, n * steps of them; "padded" is (n, steps, longest, ...).

        Raises:
            ConfigError: another layout. MissingExtra: torch is not installed.
        """
        layout = self._format
        tensors: dict[str, torch.Tensor] = layout.fields.tensors(self, _tensor_maker(), without)
        for column, _ in layout.ragged:
            if column.name not in without:
                tensors |= self[column.name].named_tensors(column.name, ragged)
        return tensors

    def to_arrow(self) -> pa.RecordBatch:
        """Return the columns as an Arrow record batch over this batch's memory.

        Copies nothing but, of nullable columns, which rows are null: Arrow wants bits where the batch has bytes. Where
        each of several steps may be null, or has a length of its own, a row is a fixed-size list of them. Steps that a
        padded window does not have (`mask`) are null in columns of categories, and zeros in the others.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        from conduit_store.arrow import block_to_arrow, steps_within

        layout = self._format
        schema = layout.schema
        row_bytes = tuple(column.row_bytes for column in schema.columns)
        whole = BlockLayout(layout.n, 1, layout.offsets[-1], layout.offsets[: len(schema.columns)], row_bytes)
        address = np.frombuffer(self._staging, np.uint8).ctypes.data
        rows = block_to_arrow(
            schema, whole, address, 0, layout.n, self._staging, self._starts(), categories=layout.categories
        )
        for i, column in enumerate(schema.valued):
            if column.categorical and layout._steps(column):  # 0 would be one of them
                steps = steps_within(rows.column(i), self["mask"])
                rows = rows.set_column(i, rows.schema.field(i).with_type(steps.type), steps)
        return rows

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """A copy travels: whoever unpickles it has arrays of his own."""
        layout = self._format
        schema = layout.schema.with_values({name: of.values for name, of in layout.categories.items()})
        return _unpickled, (type(self), bytes(self._staging), len(self), schema, layout.offsets, layout.drawn)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} rows: {', '.join(self.names)}>"


def _unpickled(kind: type[Batch], data: bytes, n: int, schema: Schema, offsets: tuple[int, ...], drawn: bool) -> Batch:
    known = {column.name: Values(column.values) for column in schema if column.categorical}
    return kind(native.staging(data), BatchFormat.make(n, schema, offsets, known, drawn=drawn))


class DeviceBatch:
    """A batch whose columns and weights are tensors on a device; from a loader with `device`.

    `batch["obs"]` is a tensor (n, *row_shape), `weights` one of float32 (n,). `keys` and `probabilities` stay on the
    host, as NumPy arrays: `update_priorities` takes the keys.
    """

    __slots__ = ("_format", "_tensors", "keys", "probabilities")

    def __init__(self, batch: Batch, tensors: dict[str, Any]) -> None:
        self._format = batch._format
        self._tensors = tensors
        self.keys: npt.NDArray[np.uint64] = batch.keys.copy()  # staging memory goes back once it is copied
        self.probabilities: npt.NDArray[np.float64] = batch.probabilities.copy()

    @classmethod
    def begin(cls, made: Any, device: Device) -> tuple[Any, Any]:
        """Begin to copy a batch, or a dict of tensors that a transform has made of it; the rest is for `finish`."""
        if isinstance(made, Batch):
            tensors, token = device.copy(made.torch())
            return cls(made, tensors), token
        if isinstance(made, dict):
            return device.copy(made)
        raise ConfigError(
            f"transform returned {type(made).__name__}: with device= return the batch, or a dict of tensors"
        )

    @staticmethod
    def finish(made: Any, token: Any, device: Device) -> None:
        """Hand the tensors over to the calling thread."""
        device.hand_over(made if isinstance(made, dict) else made._tensors, token)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a column, or 'weights'.

        Raises:
            UnknownColumn: there is none of that name.
        """
        try:
            return self._tensors[name]  # type: ignore[no-any-return]
        except (KeyError, TypeError):
            raise _unknown(name, self.names) from None

    @property
    def valid(self) -> dict[str, torch.Tensor]:
        """Of each nullable column by name, which rows are not null: bool tensors there, see `Batch.valid`."""
        return {column.name: self[column.validity.name] for column in self._format.schema.nullable}

    def decode(self, name: str) -> npt.NDArray[np.object_]:
        """Return a "category" column as strings, on the host: waits for the copy. See `Batch.decode`.

        Raises:
            UnknownColumn: there is none of that name. ConfigError: a column of another dtype.
        """
        return self._format.decoded(name, lambda column: self[column].cpu().numpy())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors: the columns in order, then 'weights'."""
        return tuple(self._tensors)

    @property
    def weights(self) -> torch.Tensor:
        """Importance weights, divided by the batch's largest; all 1 under a uniform sampler."""
        return self["weights"]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._tensors

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over (name, tensor)."""
        return iter(self._tensors.items())

    def torch(self) -> dict[str, torch.Tensor]:
        """Return every column and 'weights', on the device."""
        return dict(self._tensors)

    def __repr__(self) -> str:
        return f"<DeviceBatch of {len(self)} rows: {', '.join(self.names)}>"
