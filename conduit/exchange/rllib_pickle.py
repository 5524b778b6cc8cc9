"""Columns that RLlib's `pack` has compressed: base64 of an LZ4 frame of a pickle.

A pickle may call whatever its writer wanted. Here it makes arrays, numbers and what nests them, and nothing else: what
it calls is ours and does not reach NumPy's own unpickling, and anything else that it names is refused.
"""

from __future__ import annotations

import base64
import io
import pickle
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from conduit_store.arrays import Array

__all__ = ["unpacked"]

_PLAIN = re.compile(r"[biuf][1248]")


def unpacked(text: str) -> Any:
    """Return what has been packed: arrays, numbers, and lists, tuples and dicts of them.

    Raises:
        ValueError: it is something else, or damaged.
    """
    try:
        packed = base64.b64decode(text, validate=True)
        with pa.input_stream(pa.py_buffer(packed), compression="lz4") as stream:
            return _opened(_Unpickler(io.BytesIO(stream.read())).load())
    except Exception as error:  # a pickle's reader raises anything
        raise ValueError(f"a packed column cannot be read ({str(error) or type(error).__name__})") from error


class _Dtype:
    """A dtype on its way out of a pickle."""

    __slots__ = ("made",)

    def __init__(self, text: Any, *_: Any) -> None:
        if not isinstance(text, str) or _PLAIN.fullmatch(text) is None:
            raise ValueError(f"an array of dtype {text!r} holds no plain numbers")
        self.made = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        if state[1] == ">":
            self.made = self.made.newbyteorder(">")


class _Rows:
    """An array on its way out of a pickle."""

    __slots__ = ("made",)

    def __init__(self, *_: Any) -> None:
        self.made: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.made = _array(data, dtype, shape, "F" if fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: Any = "C") -> Array:
    sizes = tuple(shape)
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
        raise ValueError("an array without its bytes or dtype")
    made: Array = np.ndarray(sizes, dtype.made, data, order="F" if order == "F" else "C")
    if made.nbytes != len(data):
        raise ValueError(f"{len(data):,} bytes of an array of {made.nbytes:,}")
    return made.astype(made.dtype.newbyteorder("="), copy=False)


def _made_from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Rows:
    rows = _Rows()
    rows.made = _array(data, dtype, shape, order)
    return rows


def _scalar(dtype: Any, data: Any) -> _Rows:
    return _made_from_buffer(data, dtype, (), "C")


def _encoded(text: Any, *_: Any) -> bytes:
    made: bytes = text.encode("latin-1")  # how protocol 2 writes bytes
    return made


def _nothing(*_: Any) -> None:
    raise ValueError("an array of no form that RLlib writes")


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _nothing,  # only named, as an argument
    ("numpy.multiarray", "_reconstruct"): _Rows,
    ("numpy.multiarray", "scalar"): _scalar,
    ("numpy.numeric", "_frombuffer"): _made_from_buffer,
    ("_codecs", "encode"): _encoded,
    ("collections", "OrderedDict"): dict,
}


class _Call:
    """One of those: nothing that a pickle could change for others."""

    __slots__ = ("_what",)

    def __init__(self, what: tuple[str, str]) -> None:
        self._what = what

    def __call__(self, *given: Any) -> Any:
        return _KNOWN[self._what](*given)


class _Unpickler(pickle._Unpickler):
    """The one in Python: its memo is as large as what is in it, not as the largest number that a pickle names."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def load_bytearray8(self) -> None:
        """Python's makes room for what a pickle promises before it looks whether that is there."""
        size = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        data = self.read(size)  # type: ignore[attr-defined]
        if len(data) != size:
            raise ValueError(f"{len(data):,} bytes where {size:,} were due")
        self.append(data)  # type: ignore[attr-defined]

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def find_class(self, module: str, name: str) -> Any:
        what = module.replace("numpy.core", "numpy").replace("numpy._core", "numpy"), name
        if what not in _KNOWN:
            raise ValueError(f"it holds {module}.{name}: only arrays and numbers are read")
        return _Call(what)


def _opened(value: Any) -> Any:
    if isinstance(value, _Rows):
        return value.made
    if isinstance(value, dict):
        return {name: _opened(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_opened(inner) for inner in value)
    if not isinstance(value, bool | int | float):
        raise ValueError(f"it holds a {type(value).__name__}: only arrays and numbers are read")
    return value
