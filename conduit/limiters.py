"""Limiters: how far the inserts and samples of a table may run apart. Frozen records, given to `create_table`."""

from __future__ import annotations

from dataclasses import dataclass

from conduit.values import real_number, whole_number
from conduit_store.errors import ConfigError

__all__ = ["Limiter", "MinSize", "QueueCapacity", "SampleToInsertRatio"]

_MOST_ROWS = 1 << 28


@dataclass(frozen=True, slots=True)
class MinSize:
    """Sampling waits until the table holds `rows` rows (steps, for episodes). Appends never wait for it.

    Raises:
        ConfigError: rows is less than 1.
    """

    rows: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", whole_number("MinSize.rows", self.rows, 1, _MOST_ROWS))

    @property
    def min_size(self) -> int:
        """Rows that the table must hold before it is sampled."""
        return self.rows

    def __str__(self) -> str:
        return f"MinSize({self.rows})"


@dataclass(frozen=True, slots=True)
class SampleToInsertRatio:
    """Each row appended allows `samples_per_insert` rows to be sampled; whoever runs ahead waits.

    With cursor = inserts * samples_per_insert - samples, and steps counting as rows for episodes:

    - `sample(n)` waits until the table holds `min_size` rows and cursor - n is at least
      min_size * samples_per_insert - error_buffer;
    - an append waits until cursor + samples_per_insert is at most min_size * samples_per_insert + error_buffer. It goes
      in without waiting while the table holds fewer than `min_size` rows or none that can be drawn.

    Without an `error_buffer` appends never wait, and samples may use up all that was inserted: cursor - n >= 0.
    A sample counts when it is drawn; what is never delivered (a batch of a loader that was closed, a reader that was
    killed) no longer counts. `clear` begins the counts anew.

        limiter=conduit.limiters.SampleToInsertRatio(4, min_size=1_000, error_buffer=4_000)

    Source: A. Cassirer et al., "Reverb: a framework for experience replay", 2021.

    Raises:
        ConfigError: samples_per_insert not above 0, min_size less than 1, or an error_buffer below both 1 and
            samples_per_insert, in which neither a sample nor an insert would always fit.
    """

    samples_per_insert: float
    min_size: int = 1
    error_buffer: float | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "samples_per_insert", real_number("samples_per_insert", self.samples_per_insert, 1e-9, 1e9))
        put(self, "min_size", whole_number("min_size", self.min_size, 1, _MOST_ROWS))
        if self.error_buffer is None:
            return
        put(self, "error_buffer", real_number("error_buffer", self.error_buffer, 0.0, 1e15))
        least = max(1.0, self.samples_per_insert)
        if self.error_buffer < least:
            raise ConfigError(
                f"SampleToInsertRatio({self.samples_per_insert:g}) with error_buffer={self.error_buffer:g} could let "
                f"nobody through: an insert moves the cursor by {self.samples_per_insert:g} and a sample by 1 at "
                f"least. Give an error_buffer of {least:g} or more, or none"
            )

    def __str__(self) -> str:
        buffer = "" if self.error_buffer is None else f", error_buffer={self.error_buffer:g}"
        return f"SampleToInsertRatio({self.samples_per_insert:g}, min_size={self.min_size}{buffer})"


@dataclass(frozen=True, slots=True)
class QueueCapacity:
    """An append waits while the table holds `rows` rows. For tables with `max_times_sampled`: sampling makes room.

    Raises:
        ConfigError: rows is less than 1.
    """

    rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", whole_number("QueueCapacity.rows", self.rows, 1, _MOST_ROWS))

    @property
    def min_size(self) -> int:
        """Rows that the table must hold before it is sampled."""
        return 1

    def __str__(self) -> str:
        return f"QueueCapacity({self.rows})"


Limiter = MinSize | SampleToInsertRatio | QueueCapacity
