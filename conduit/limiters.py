"""Limiters: when a table may be sampled. Frozen records, given to `create_table`."""

from __future__ import annotations

from dataclasses import dataclass

from conduit.values import whole_number

__all__ = ["MinSize"]


@dataclass(frozen=True, slots=True)
class MinSize:
    """Sampling waits until the table holds `rows` rows (steps, for episodes).

    Raises:
        ConfigError: rows is less than 1.
    """

    rows: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", whole_number("MinSize.rows", self.rows, 1, 1 << 28))
