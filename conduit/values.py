"""Keys and priorities as callers give them, as the arrays that the core takes."""

from __future__ import annotations

import math
import operator
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conduit_store.arrays import Array
from conduit_store.column import shown
from conduit_store.errors import ConfigError, DtypeMismatch, PriorityError, ShapeMismatch
from conduit_store.native import native

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "as_array", "as_keys", "as_path", "as_priorities", "as_sequence_priorities", "check_flags", "check_function",
    "check_name", "real_number", "seconds", "whole_number",
]  # fmt: skip

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_MOST_PATH, _MOST_NAME = 4095, 255  # bytes that Linux takes
_SMALLEST = np.float32(1e-45)


def as_array(what: str, given: Any) -> Array:
    """Return what a caller gave as an array; a tensor may be on a device and carry a gradient.

    Raises:
        ShapeMismatch: lists of different lengths.
    """
    if type(given) is not np.ndarray and hasattr(given, "detach"):
        given = given.detach().cpu()
    try:
        return np.asarray(given)
    except ValueError as error:
        raise ShapeMismatch(f"{what} are no array ({error}): give one number a row") from error


def as_keys(keys: Any) -> npt.NDArray[np.uint64]:
    """Return keys as a contiguous uint64 array (n,).

    Raises:
        DtypeMismatch: not integers. ShapeMismatch: not one-dimensional.
    """
    array = as_array("keys", keys)
    if array.dtype != np.uint64:
        if array.size == 0:
            array = array.astype(np.uint64)
        elif array.dtype.kind not in "iu" or (array.dtype.kind == "i" and array.min() < 0):
            raise DtypeMismatch(f"keys are {array.dtype}: give the uint64 keys of a batch, as they came")
        else:
            array = array.astype(np.uint64)
    if array.ndim != 1:
        raise ShapeMismatch(f"keys have shape {array.shape}: give one key a row, shape (n,)")
    return np.ascontiguousarray(array)


def as_priorities(priorities: Any, n: int) -> npt.NDArray[np.float32]:
    """Return priorities as a contiguous float32 array (n,); what is too small for float32 becomes its smallest.

    Raises:
        ShapeMismatch: not n of them. PriorityError: NaN, infinite, negative, or beyond float32.
    """
    given = as_array("priorities", priorities)
    if given.dtype.kind not in "fiu":
        raise PriorityError(f"priorities are {given.dtype}: give floats")
    if given.shape != (n,):
        raise ShapeMismatch(f"priorities have shape {given.shape}, {n} rows need shape ({n},)")
    if given.dtype == np.float32 and given.flags.c_contiguous:
        bad = native.first_bad_priority(given, n)
        if bad < n:
            raise _bad_priority(given, bad, n)
        return given
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(given, np.float32)
    good = np.isfinite(values) & (given >= 0)  # the sign as given: a small negative number rounds to zero
    if not good.all():
        raise _bad_priority(given, int(np.argmin(good)), n)
    lost = (values == 0) & (given != 0)
    return np.where(lost, _SMALLEST, values) if lost.any() else values


def as_sequence_priorities(priorities: Any, mask: Any, n: int, eta: float) -> npt.NDArray[np.float32]:
    """Return eta * max + (1 - eta) * mean over the steps of each sequence that `mask` has, float32 (n,).

    `priorities` (n, steps), `mask` bool of the same shape or None for all. What lies outside of the mask is not looked
    at; a sequence without any step gets 0.

    Raises:
        ShapeMismatch: other shapes. PriorityError: NaN, infinite or negative within the mask.
    """
    given = as_array("priorities", priorities)
    if given.ndim != 2 or len(given) != n or given.shape[1] == 0:
        raise ShapeMismatch(f"priorities have shape {given.shape}, {n} sequences need shape ({n}, steps)")
    if given.dtype.kind not in "fiu":
        raise PriorityError(f"priorities are {given.dtype}: give floats")
    valid = np.ones(given.shape, bool) if mask is None else as_array("mask", mask)
    if valid.dtype != np.bool_ or valid.shape != given.shape:
        raise ShapeMismatch(f"mask is {valid.dtype} of shape {valid.shape}: give bool {given.shape}, as the priorities")
    bad = valid & ~((given >= 0) & np.isfinite(given))
    if bad.any():
        row, at = (int(i) for i in np.argwhere(bad)[0])
        raise PriorityError(
            f"priority {given[row, at]} of step {at} at position {row} of {n}: give finite numbers from 0 to 3.4e38. "
            "None was applied"
        )
    values = np.where(valid, given, 0).astype(np.float64)
    return as_priorities(eta * values.max(1) + (1 - eta) * values.sum(1) / np.maximum(valid.sum(1), 1), n)


def _bad_priority(given: Array, at: int, n: int) -> PriorityError:
    return PriorityError(
        f"priority {given[at]} at position {at} of {n}: give finite numbers from 0 to 3.4e38. None was applied"
    )


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int from `low` to `high`.

    Raises:
        ConfigError: it is no integer, or outside.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if isinstance(value, bool) or not low <= number <= high:
        raise ConfigError(f"{name} is {value!r}: give a whole number from {low:,} to {high:,}")
    return number


def check_flags(**flags: object) -> None:
    """Refuse what is no bool.

    Raises:
        ConfigError: names the first.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigError(f"{name} is {flag!r}: give True or False")


def check_function(name: str, value: object) -> None:
    """Refuse what cannot be called, but for None.

    Raises:
        ConfigError: says what it is.
    """
    if value is not None and not callable(value):
        raise ConfigError(f"{name} is {value!r}: give a function, or None")


def check_name(what: str, name: object) -> None:
    """Refuse names of tables and windows that are not plain words.

    Raises:
        ConfigError: says what is allowed.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{what} name {name!r} is not allowed: 1 to 63 letters, digits and _ . -, "
            "beginning with a letter, a digit or _"
        )


def as_path(path: object) -> Path:
    """Return a path that a file system may have.

    Raises:
        ConfigError: no str, bytes or PathLike, a zero character in it, or too long.
    """
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
        encoded = os.fsencode(text)
    except (TypeError, UnicodeError) as error:
        raise ConfigError(f"path is {shown(path)}: give a str or a PathLike ({error})") from None
    if b"\0" in encoded:
        raise ConfigError(f"path {shown(text)} has a zero character in it, which no file system takes")
    if len(encoded) > _MOST_PATH or any(len(name) > _MOST_NAME for name in encoded.split(b"/")):
        raise ConfigError(
            f"path {shown(text)} has {len(encoded):,} bytes: file systems take {_MOST_PATH:,}, and {_MOST_NAME} a name"
        )
    return Path(text)


def real_number(name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a float from `low` to `high`.

    Raises:
        ConfigError: it is no number, NaN, or outside.
    """
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        raise ConfigError(f"{name} is {value!r}: give a number from {low:g} to {high:g}")
    return number


def seconds(timeout: Any) -> float | None:
    """Return a timeout: None (wait for ever) or seconds of at least 0.

    Raises:
        ConfigError: negative, NaN or no number.
    """
    if timeout is None or (timeout.__class__ is float and timeout >= 0.0):
        return timeout
    return real_number("timeout", timeout, 0.0, math.inf)
