"""How a table's rows are cut into blocks, and where the columns of a block lie."""

from __future__ import annotations

import math
from typing import NamedTuple

from .errors import ConfigError
from .schema import Schema

__all__ = ["ALIGN", "BlockLayout", "plan", "plan_slots"]

ALIGN = 64  # bytes: a cache line, and what Arrow recommends
_SLOT_ALIGN = 8  # of the columns of a single row
_SLOT_SPARES = 256  # rows that may have left and still be read; small tables have a quarter of their size, at least 16
_MIN_ROWS = 8
_MAX_PACKED_BYTES = 64 << 10  # of blocks that are decompressed as a whole for a row
_MAX_BLOCK_BYTES = 8 << 20  # a block is the unit of transfer and of checkpoints: seconds must not hang on one
_OPEN_SHARE = 24  # the blocks that writers hold open take at most this part of a table
# Where rows vary in length: the same share, smaller in large tables; the memory that may go unused where a block takes
# no more rows because the other half of it, rows or values, is full; and what is left over at its end, in rows.
_MOST_OPEN_SHARE = 96
_UNUSED = 0.01
_LEFT_OVER = 0.5


class BlockLayout(NamedTuple):
    """`blocks` blocks of `rows` rows; column i at byte `offsets[i]` of its block, `row_bytes[i]` a row.

    Where rows vary in length these are int64 ends, one more than rows, and `values` says where the elements begin.
    """

    rows: int
    blocks: int
    block_bytes: int
    offsets: tuple[int, ...]
    row_bytes: tuple[int, ...]
    values: int = 0

    @property
    def data_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.blocks * self.block_bytes


def plan(
    schema: Schema,
    max_size: int,
    *,
    max_writers: int,
    mean_episode_length: float | None,
    holes: bool = False,
    host_bytes: int | None = None,
    packed: bool = False,
) -> BlockLayout:
    """Choose a block size, and count the blocks that `max_size` rows need.

    Beside the rows themselves there is room for one open block a writer and one block that is half evicted,
    together at most 1/24 of a table, and, for episodes, for one final observation every `mean_episode_length`
    steps. `holes`: rows also leave in the middle of a block, which gives its memory back when the last has left: room
    for twice the rows. Where rows vary in length there is room for as many of the mean length, which every such column
    must say. `host_bytes`: what the blocks in memory take at most, where others lie on disk; then they are small enough
    for open ones to be that share of these. `packed`: and are compressed there.

    Raises:
        ConfigError: a number that is not positive.
    """
    for name, value in (("max_size", max_size), ("max_writers", max_writers)):
        if value < 1:
            raise ConfigError(f"{name} is {value}: give at least 1")
    if mean_episode_length is not None and not mean_episode_length >= 1:
        raise ConfigError(f"mean_episode_length is {mean_episode_length}: an episode has at least 1 step")
    spare = max_writers + 1
    open_share, least = _OPEN_SHARE, _MIN_ROWS
    if schema.ragged:  # smaller blocks leave more over, larger ones keep more open
        open_share = max(_OPEN_SHARE, min(int(math.sqrt(max_size / spare)), _MOST_OPEN_SHARE))
        least = max(_MIN_ROWS, min(2 * _MIN_ROWS, max_size // 64))
    shared = max_size if host_bytes is None else min(max_size, host_bytes // schema.row_bytes)
    rows = max(least, shared // (open_share * spare))
    most = _MAX_PACKED_BYTES if packed else _MAX_BLOCK_BYTES
    rows = max(1, min(rows, most // schema.row_bytes))
    finals = 0 if mean_episode_length is None else int(max_size / mean_episode_length) + 1
    room = (max_size + finals) * (2 if holes else 1)
    blocks = -(-room // rows) + spare
    values = 0
    if schema.ragged:
        rows, values = _with_values(schema, rows)
    row_bytes = tuple(column.row_bytes for column in schema.columns)
    offsets: list[int] = []
    end = 0
    for column in schema.columns:
        offsets.append(end)
        end += -(-column.row_bytes * (rows + column.ragged) // ALIGN) * ALIGN
    return BlockLayout(rows, blocks, end + values, tuple(offsets), row_bytes, end if values else 0)


def _with_values(schema: Schema, rows: int) -> tuple[int, int]:
    """Return how many rows a block of `rows` rows of the mean length takes at most, and the bytes of its values."""
    fixed = sum(column.row_bytes for column in schema.columns)
    varying = sum(column.mean_bytes for column in schema.columns)
    # Which of the two is full first is chance: the cheaper one gets room to spare.
    more_rows = min(1.0, _UNUSED * (1 + varying / fixed))
    more_values = min(1.0, _UNUSED * (1 + fixed / varying))
    values = math.ceil(varying * (rows * (1 + more_values) + _LEFT_OVER))
    return math.ceil(rows * (1 + more_rows)) + 1, (-(-values // ALIGN) + len(schema.ragged)) * ALIGN


def plan_slots(schema: Schema, max_size: int, *, max_writers: int) -> BlockLayout:
    """Lay out a table whose rows leave one by one: blocks of one row.

    Beside `max_size` rows there is room for one a writer, and for rows that have left and are still being copied by a
    reader: 1/24 of the table, 256 at least, in small tables a quarter and 16 at least.

    Raises:
        ConfigError: a number that is not positive.
    """
    for name, value in (("max_size", max_size), ("max_writers", max_writers)):
        if value < 1:
            raise ConfigError(f"{name} is {value}: give at least 1")
    row_bytes = tuple(column.row_bytes for column in schema.columns)
    offsets: list[int] = []
    end = 0
    for nbytes in row_bytes:
        offsets.append(end)
        end += -(-nbytes // _SLOT_ALIGN) * _SLOT_ALIGN
    spare = max_writers + max(16, min(_SLOT_SPARES, max_size // 4), max_size // _OPEN_SHARE)
    return BlockLayout(1, max_size + spare, end, tuple(offsets), row_bytes)
