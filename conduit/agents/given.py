"""What multi-agent environments give: dicts of ends, rewards, arrays that they use again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from conduit_store.arrays import Array
from conduit_store.errors import DtypeMismatch, ValueOutOfRange
from conduit_store.schema import Column
from conduit_store.values import as_row

__all__ = ["ALL", "copied", "named", "number"]

ALL = "__all__"  # in dicts of ends: every agent that is there


def named(ends: Mapping[str, bool] | None, there: Collection[str]) -> set[str]:
    """The agents that a dict of ends speaks of, by name or by "__all__"."""
    if not ends:
        return set()
    named = {agent for agent, end in ends.items() if end and agent != ALL}
    return named | set(there) if ends.get(ALL) else named


def number(agent: str, reward: Any) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        raise DtypeMismatch(f"the reward of agent {agent!r} is {reward!r}: give a number") from None
    if np.isfinite(value) and abs(value) > float(np.finfo(np.float32).max):
        raise ValueOutOfRange(f"the reward of agent {agent!r} is {value:g}, beyond float32")
    return value


def copied(column: Column, value: Any) -> Array:
    return np.array(as_row(column, value))  # environments reuse their arrays
