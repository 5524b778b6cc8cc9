"""A table's limiter in force: what the core is told of it, how it may change, and what those who waited are told."""

from __future__ import annotations

import math
from typing import Any

from conduit.limiters import Limiter, MinSize, QueueCapacity, SampleToInsertRatio
from conduit.values import whole_number
from conduit_store.errors import AppendTimeout, ConduitError, ConfigError, SampleTimeout
from conduit_store.native import native

__all__ = ["append_stopped", "changed", "check", "in_force", "kind", "limits_inserts", "put", "sample_refused"]

_MAX_TIMES = (1 << 31) - 1
# Why a draw failed (sampler.hpp, SampleStatus) and what stopped an append (writer.hpp, Writer::Stopped).
_TOO_FEW, _NO_MASS, _LIMITED, _USED_UP, _NEVER, _FEW_ROWS = range(1, 7)
STOPPED_BY_LIMITER, STOPPED_FOR_EVER = 2, 3


def kind(limiter: Limiter) -> int:
    """Return the core's number of the limiter (layout.hpp, LimiterKind)."""
    return (MinSize, SampleToInsertRatio, QueueCapacity).index(type(limiter))


def limits_inserts(limiter: Limiter) -> bool:
    """Return whether appends can have to wait for it."""
    return isinstance(limiter, QueueCapacity) or (
        isinstance(limiter, SampleToInsertRatio) and limiter.error_buffer is not None
    )


def check(limiter: Limiter, max_size: int, max_times: int | None, name: str) -> int | None:
    """Refuse what could never let anybody through; return `max_times` as a number.

    Raises:
        ConfigError: says which numbers contradict each other.
    """
    if max_times is not None:
        max_times = whole_number("max_times_sampled", max_times, 1, _MAX_TIMES)
    if limiter.min_size > max_size:
        raise ConfigError(
            f"{limiter} can never let anybody sample: its min_size is more than the {max_size} rows that table "
            f"{name!r} holds at most"
        )
    if isinstance(limiter, QueueCapacity):
        if max_times is None:
            raise ConfigError(
                f"{limiter} needs max_times_sampled: in table {name!r} no row leaves by being sampled, and appends "
                "would wait for ever"
            )
        if limiter.rows > max_size:
            raise ConfigError(
                f"{limiter} is more than table {name!r} holds: {max_size} rows. The oldest would go before it is full"
            )
    if isinstance(limiter, SampleToInsertRatio) and max_times is not None and max_times < limiter.samples_per_insert:
        raise ConfigError(
            f"SampleToInsertRatio({limiter.samples_per_insert:g}) can never be kept: a row of table {name!r} leaves "
            f"after {max_times} deliveries (max_times_sampled)"
        )
    return max_times


def put(limiter: Limiter, max_times: int | None, settings: native.Settings) -> None:
    """Write the limiter into the core's settings."""
    settings.min_size = limiter.min_size
    settings.max_times = max_times or 0
    if isinstance(limiter, SampleToInsertRatio):
        settings.ratio = limiter.samples_per_insert
        settings.error_buffer = math.inf if limiter.error_buffer is None else limiter.error_buffer
    elif isinstance(limiter, QueueCapacity):
        settings.capacity = limiter.rows


def in_force(created: Limiter, settings: native.Settings) -> Limiter:
    """Return the limiter of a table that was created with `created`."""
    if isinstance(created, MinSize):
        return MinSize(settings.min_size)
    if isinstance(created, QueueCapacity):
        return QueueCapacity(settings.capacity)
    buffer = settings.error_buffer
    return SampleToInsertRatio(settings.ratio, settings.min_size, None if math.isinf(buffer) else buffer)


def changed(
    limiter: Limiter,
    *,
    min_size: int | None,
    samples_per_insert: float | None,
    error_buffer: float | None,
    queue_capacity: int | None,
) -> Limiter:
    """Return the limiter with other numbers; None leaves one as it is.

    Raises:
        ConfigError: a number that this limiter does not have, or that is not allowed.
    """
    if isinstance(limiter, MinSize):
        _refuse(limiter, samples_per_insert=samples_per_insert, error_buffer=error_buffer)
        _refuse(limiter, queue_capacity=queue_capacity)
        return limiter if min_size is None else MinSize(whole_number("min_size", min_size, 1, 1 << 28))
    if isinstance(limiter, QueueCapacity):
        _refuse(limiter, samples_per_insert=samples_per_insert, error_buffer=error_buffer, min_size=min_size)
        return limiter if queue_capacity is None else QueueCapacity(queue_capacity)
    _refuse(limiter, queue_capacity=queue_capacity)
    if limiter.error_buffer is None and error_buffer is not None:
        raise ConfigError(
            "error_buffer cannot be given to a limiter that was created without one: its writers do not wait for "
            "anybody. Create the table with an error_buffer, however large"
        )
    return SampleToInsertRatio(
        limiter.samples_per_insert if samples_per_insert is None else samples_per_insert,
        limiter.min_size if min_size is None else min_size,
        limiter.error_buffer if error_buffer is None else error_buffer,
    )


def _refuse(limiter: Limiter, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is no number of {limiter}: the kind of limiter is chosen at create_table")


def sample_refused(
    created: Limiter, name: str, window: object, n: int, timeout: float | None, state: native.SampleState
) -> ConduitError:
    """Return the error of a sample that was not let through within `timeout` seconds, or never can be."""
    now = state.limiter
    limiter = in_force(created, now.settings)
    if state.status == _NEVER:
        return ConfigError(
            f"sample({n:,}) of table {name!r} can never be let through: {_never(limiter, n, now.settings.max_times)}"
        )
    head = f"table {name!r} may not be sampled after {timeout} s"
    if state.status == _TOO_FEW:
        return SampleTimeout(
            f"{head}: {limiter} lacks {limiter.min_size - now.live_steps} rows, {now.live_steps} are there. Check that "
            "writers run, or lower min_size"
        )
    if state.status == _LIMITED and isinstance(limiter, SampleToInsertRatio):
        low = now.settings.low
        kept = "" if low == 0 else f" and {_number(low)} is the least that may be left"
        more = max(1, math.ceil((n - (now.cursor - low)) / limiter.samples_per_insert - 1e-9))
        return SampleTimeout(
            f"{head}: {_ratio(limiter, now)} leaves {_number(now.cursor)}, {n:,} asked{kept}; {more:,} more inserts "
            f"are needed{f'. {now.reserved:,} samples are on their way to readers' if now.reserved else ''}"
        )
    if state.status == _USED_UP:
        return SampleTimeout(
            f"{head}: the {now.live_steps:,} rows that are there may not be delivered {n:,} times any more, each "
            f"{now.settings.max_times:,} times at most (max_times_sampled). Check that writers run, or sample fewer"
        )
    if state.status == _FEW_ROWS:
        return SampleTimeout(
            f"a batch of {n:,} rows, each once, was not to be had from table {name!r} within {timeout} s: "
            f"{state.found:,} rows can be drawn, {now.live_steps:,} are there. Draw fewer, or check that writers run"
        )
    return SampleTimeout(
        f"table {name!r} has no row to draw after {timeout} s: {now.live_steps} rows are there, and their priorities "
        f"add up to {state.total:g}. Rows of priority 0 are never drawn, and {window} needs the steps that follow a row"
    )


def append_stopped(
    created: Limiter, name: str, timeout: float | None, done: int, n: int, stopped: int, now: native.LimiterState
) -> ConduitError:
    """Return the error of an append that the limiter let in as far as `done` rows of `n`."""
    limiter = in_force(created, now.settings)
    if stopped == STOPPED_FOR_EVER:
        return ConfigError(
            f"{n:,} rows can never go into table {name!r} together: {_never(limiter, n)}. Nothing was appended"
        )
    head = f"table {name!r} takes no more rows after {timeout} s"
    tail = f"{done:,} of {n:,} rows are in"
    if isinstance(limiter, SampleToInsertRatio):
        over = now.cursor + limiter.samples_per_insert - now.settings.high
        return AppendTimeout(
            f"{head}: {_ratio(limiter, now)} leaves {_number(now.cursor)}, at most {_number(now.settings.high)} may be "
            f"left after an insert; {max(1, math.ceil(over - 1e-9)):,} more samples are needed. {tail}. Check that "
            "learners sample, or raise error_buffer"
        )
    return AppendTimeout(
        f"{head}: {limiter} is reached, {now.live_steps:,} rows wait to be sampled {now.settings.max_times:,} times "
        f"each. {tail}. Check that learners sample, or raise the capacity"
    )


def _ratio(limiter: SampleToInsertRatio, now: native.LimiterState) -> str:
    ratio = _number(limiter.samples_per_insert)
    shift = now.cursor - (now.inserts * limiter.samples_per_insert - now.samples)
    carried = "" if abs(shift) < 1e-6 else f" {'+' if shift > 0 else '-'} {_number(abs(shift))} of earlier ratios"
    return f"SampleToInsertRatio({ratio}): {now.inserts:,} inserted x {ratio} - {now.samples:,} sampled{carried}"


def _never(limiter: Limiter, n: int, max_times: int = 0) -> str:
    if isinstance(limiter, SampleToInsertRatio) and limiter.error_buffer is not None:
        ratio, buffer = _number(limiter.samples_per_insert), _number(limiter.error_buffer)
        return (
            f"the cursor of SampleToInsertRatio({ratio}, error_buffer={buffer}) moves within "
            f"{_number(2 * limiter.error_buffer)}, and both {n:,} and the other side's next step must fit in that. "
            "Raise error_buffer or ask for fewer"
        )
    if max_times > 0:
        times = f"max_times_sampled={max_times:,}"
        return f"{limiter} and max_size hold fewer rows, each for {times} deliveries. Ask for fewer"
    return f"{limiter} and max_size hold fewer rows. Ask for fewer"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-6 else f"{value:,.3f}"
