"""CQL: rows from files in the form that a learner takes them in. Ray's data sets and their actors are not needed.

RLlib reads a folder in order, makes an episode of each row and sends it through the learner connector. Here rows come
shuffled, each once an epoch, as columns, and tensors share their memory: see conduit.offline.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import conduit.offline
from conduit import windows
from conduit.exchange import formats
from conduit_store.errors import ConfigError

__all__ = ["OfflineRows", "Reading", "reading"]

_MODULE = "default_policy"  # the only one: RLlib reads no data of several agents either
_OURS = {"new_obs": "next_obs", "actions": "action", "rewards": "reward", "terminateds": "terminated",
         "truncateds": "truncated"}  # fmt: skip
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()} | {"obs": "obs"}
_ROLES = ("obs", "action", "reward", "terminated", "truncated")  # of columns that are read
_STEPS = 4096  # decoded together


class Reading(NamedTuple):
    """What `attach` was asked for."""

    buffer: str | int  # memory of the shuffle
    prefetch: int  # batches


class OfflineRows:
    """What an algorithm asks of its `offline_data`. A class of RLlib's, by name alone, is mixed in: see `reading`.

    `config.input_` is a file or folder of Parquet or Arrow IPC, with RLlib's column names or those of `table.export`; a
    checkpoint of a store; or what else can be imported, as RLlib's episodes: these are decoded once, into a temporary
    file. `config.input_read_method_kwargs` go to `conduit.offline.open`.

    Raises:
        What `conduit.offline.open` raises.
    """

    conduit_reading: Reading

    def __init__(self, config: Any) -> None:
        self._decoded: tempfile.TemporaryDirectory[str] | None = None  # gone with this object
        given = config.input_
        path = Path(given if isinstance(given, str) else given[0])
        # as RLlib says it: its name of a column -> that of the file
        schema = {ours: config.input_read_schema.get(theirs, theirs) for theirs, ours in _OURS.items()}
        schema |= {"obs": config.input_read_schema.get("obs", "obs")}
        settings = {"seed": config.seed or 0, "buffer": self.conduit_reading.buffer, **config.input_read_method_kwargs}
        self.data = self._open(path, {theirs: ours for ours, theirs in schema.items()}, settings)
        self.spaces: Any = None  # set by the algorithm, like those behind it; none is needed
        self.module_spec: Any = None
        self.learner_handles: Any = None
        self.locality_hints: Any = None
        self._shares: list[_Share] = []

    def _open(self, path: Path, names: Mapping[str, str], settings: dict[str, Any]) -> conduit.offline.Dataset:
        from conduit.offline.saved import is_checkpoint

        if path.exists() and not is_checkpoint(path):
            kind = formats.format_of_path(path, None)
            if kind not in ("parquet", "arrow"):
                path = self._decode(path, kind)
            elif "schema" not in settings and "rename" not in settings:
                settings |= _columns(path, names)
        return conduit.offline.open(path, window=windows.Transition(), **settings)

    def _decode(self, path: Path, kind: str) -> Path:
        """Write the steps of another format into an Arrow file, a piece at a time."""
        import pyarrow as pa

        self._decoded = tempfile.TemporaryDirectory(prefix="conduit-")
        source: formats.Source = formats.load(kind).Source(path)
        file = Path(self._decoded.name) / "steps.arrow"
        try:
            with pa.ipc.new_file(file, source.schema) as writer:
                for piece in source.pieces(source.schema.names, _STEPS):
                    writer.write_table(piece)
        finally:
            source.close()
        return file

    def sample(
        self, num_samples: int, return_iterator: bool = False, num_shards: int = 1, module_state: Any = None
    ) -> list[_Share]:
        """Return for each learner what it iterates over; the same at every call, so that each goes on where it was.

        An epoch has every row once, over all learners. With several learners rows that do not make a batch for each
        of them wait for another epoch. RLlib's other arguments do not apply: batches depend on no module.
        """
        of = max(1, num_shards)
        if len(self._shares) != of:
            self._shares = [_Share(self.data, i, of, self.conduit_reading.prefetch) for i in range(of)]
        return self._shares


class _Share:
    """A learner's share of the batches. Stands in for Ray's `DataIterator`; pickled, it opens the files by itself."""

    def __init__(self, data: conduit.offline.Dataset, first: int, of: int, prefetch: int) -> None:
        self.data, self.first, self.of, self.prefetch = data, first, of, prefetch

    def iter_torch_batches(self, *, batch_size: int, device: Any = None, **_: Any) -> _Epochs:
        """Return batches of tensors; each time that one iterates over them they are another epoch."""
        return _Epochs(self, batch_size, device)


class _Epochs:
    def __init__(self, share: _Share, batch_size: int, device: Any) -> None:
        self._share, self._batch_size, self._device = share, batch_size, device
        self._epoch = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        share, epoch = self._share, self._epoch
        self._epoch += 1
        loader = share.data.loader(
            self._batch_size, first_epoch=epoch, drop_last=share.of > 1, prefetch=max(share.prefetch, share.of)
        )
        mine: Any = None
        rounds = 0
        with loader:
            for i, batch in enumerate(loader):
                if i % share.of == share.first:
                    mine = batch
                if i % share.of == share.of - 1:  # a batch is there for every learner
                    rounds += 1
                    yield self._tensors(mine)
        if not rounds:  # RLlib would ask for another epoch, for ever
            raise ConfigError(
                f"{share.data!r} has no batch of {self._batch_size} rows for each of {share.of} learners. Lower "
                "train_batch_size_per_learner"
            )

    def _tensors(self, batch: conduit.offline.OfflineBatch) -> dict[str, Any]:
        """Under RLlib's names, with the dtypes of its learner connector: no float64."""
        import torch

        tensors: dict[str, Any] = {}
        for name, tensor in batch.torch().items():
            top, _, rest = name.partition("/")
            if top in _THEIRS:
                tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
                tensors["/".join(filter(None, (_MODULE, _THEIRS[top], rest)))] = tensor.to(self._device)
        return tensors


def _columns(path: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """Return which columns of a file are read, and our names of them, as arguments of `conduit.offline.open`.

    `names`: ours by those of the file. What `table.export` wrote says it itself.

    Raises:
        ConfigError: observations that RLlib has compressed.
    """
    from conduit.offline.groups import pieces_of, read
    from conduit_store.schema import Schema

    pieces, schemas = pieces_of(path)
    fields = next(iter(schemas.values()))
    if b"conduit" in (fields.metadata or {}):
        return {}
    rename = {theirs: ours for theirs, ours in names.items() if theirs in fields.names and theirs != ours}
    first = read(next(piece for piece in pieces if piece.rows), fields.names, 1)
    columns = []
    for place, theirs in enumerate(str(name) for name in fields.names):
        name = rename.get(theirs, theirs)
        if name.partition("/")[0] in _ROLES:
            columns.append(_column(name, fields.field(place), first.column(theirs), path))
    return {"schema": Schema(tuple(columns)), "rename": rename}


def _column(name: str, field: Any, first: Any, path: Path) -> Any:
    """The column of a field: lists, and tensors as Ray's data sets write them, have the shape of their first row."""
    import numpy as np
    import pyarrow as pa

    from conduit_store.arrow import column_of_field
    from conduit_store.column import Column

    kind = field.type
    if isinstance(kind, pa.ExtensionType):  # Ray's
        shape, kind = tuple(kind.shape), kind.storage_type
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        shape = np.shape(first[0].as_py())
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        raise ConfigError(
            f"column {field.name!r} of {path} is {kind}: probably compressed by RLlib. Record with "
            "output_compress_columns=[], or whole episodes with output_write_episodes=True"
        )
    else:
        return column_of_field(field.with_name(name))
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return Column(name, np.dtype(kind.to_pandas_dtype()), shape)


@cache
def reading(settings: Reading) -> type:
    """Return RLlib's class of offline data with this one in its place."""
    from ray.rllib.offline.offline_data import OfflineData

    return type("ConduitOfflineData", (OfflineRows, OfflineData), {"__module__": __name__, "conduit_reading": settings})
