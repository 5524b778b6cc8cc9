"""Removers: which row leaves a full table when another comes. Frozen records, given to `create_table`.

`Fifo` is the default, and what tables are built for: rows lie in blocks, as in Arrow record batches, and memory comes
back by block. `Lifo` and `LowestPriority` take rows out one by one, so every row is a block of its own. Such a table
has no zero-copy blocks, no episodes (only `windows.Row`), about 100 bytes of index a row, and each append takes the
table's lock for a moment.

The row that leaves is chosen among those that are in before the new one is: a new row is never the one that makes room
for itself. So a full `Lifo` table keeps its oldest rows and the newest, and in a full `LowestPriority` table a row of
low priority stays until another comes.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fifo", "Lifo", "LowestPriority", "Remover"]


@dataclass(frozen=True, slots=True)
class Fifo:
    """The oldest row leaves."""


@dataclass(frozen=True, slots=True)
class Lifo:
    """The newest row leaves."""


@dataclass(frozen=True, slots=True)
class LowestPriority:
    """The row of the lowest priority, as given, leaves; of several the oldest.

    Priorities are those of the first prioritized window. If none is, the table keeps priorities for the first
    window all the same: give them with the rows, and change them by `update_priorities`; draws do not depend on them.

        store.create_table("best", schema, 1_000, sampler=samplers.Uniform(), remover=removers.LowestPriority())
    """


Remover = Fifo | Lifo | LowestPriority
