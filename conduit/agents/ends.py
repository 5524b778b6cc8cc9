"""Dicts of ends, as multi-agent environments give them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

__all__ = ["ALL", "named"]

ALL = "__all__"  # in dicts of ends: every agent that is there


def named(ends: Mapping[str, bool] | None, there: Collection[str]) -> set[str]:
    """The agents that a dict of ends speaks of, by name or by "__all__"."""
    if not ends:
        return set()
    named = {agent for agent, end in ends.items() if end and agent != ALL}
    return named | set(there) if ends.get(ALL) else named
