"""Formats of checkpoints: which this build writes, and how manifests of older ones become those of today.

A change of what a manifest says, of what a file of a checkpoint has or of what any of it means is a new format: raise
FORMAT, and say in `_STEPS` how the one before is read. What must be done to files is done by whoever reads them, told
by what the step puts into the manifest. tests/data keeps a checkpoint of each format, and they are restored for ever.

    1   the first
    2   `build`: which version of conduit-edp wrote it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conduit import __version__
from conduit_store.errors import CheckpointDamaged, CheckpointNewer

__all__ = ["FORMAT", "to_today"]

FORMAT = 2


def _without_build(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "build": "unknown"}


# What a manifest of each format says, in the words of the next one.
_STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _without_build}


def to_today(fields: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a manifest in today's format.

    Raises:
        CheckpointNewer: it is of a later one; names both, and who wrote it. CheckpointDamaged: of none that there was.
    """
    found = fields["format"]
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise CheckpointDamaged(f"checkpoint {number} has format {found!r}, and formats are numbers from 1 on")
    if found > FORMAT:
        raise CheckpointNewer(
            f"checkpoint {number} has format {found}, written by conduit-edp {fields.get('build', 'unknown')}; this is "
            f"{__version__}, which reads formats 1 to {FORMAT}. Use that version, or a later one"
        )
    for step in range(found, FORMAT):
        fields = _STEPS[step](fields)
    return fields
