"""Checkpoints: a store in a folder of files, and back. The format is described in docs/checkpoints.md.

    manifest.py   what a checkpoint says of itself        index.py      what is saved of blocks and rows; keys
    parts.py      Arrow files, summed as they are written loading.py    their bytes, held against their sums
    taking.py     a running store -> a folder             work.py       one table of it
    reading.py    a folder -> checked arrays
    restoring.py  a folder -> a store                     reshaping.py  rows for a table of another shape
    migrations.py formats of manifests                    commands.py   the command line

`store.checkpoint(path)` and `Store.restore(path, name)` are what most callers need; `verify(path)` checks every byte.
"""

from conduit.checkpoints.reading import verify
from conduit.checkpoints.reshaping import Changes
from conduit.checkpoints.taking import CheckpointInfo

__all__ = ["Changes", "CheckpointInfo", "verify"]
