"""A table as the replay buffer of TorchRL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from conduit.loader import Loader
from conduit.store import Store
from conduit.table import Table
from conduit.views import View, find
from conduit.windows import Row
from conduit_store.errors import ConfigError, MissingColumn, MissingExtra, NameTaken, ShapeMismatch, UnknownTable
from conduit_store.schema import Schema

try:
    import torch
    from tensordict import TensorDictBase
    from torchrl.envs import Compose, Transform

    from conduit.torchrl import saving
    from conduit.torchrl.keys import Keys, schema_of
    from conduit.torchrl.parts import Call, Storage
except ImportError as error:
    raise MissingExtra(f"conduit.torchrl needs {error.name}: run `pip install 'conduit-edp[torchrl]'`") from error

__all__ = ["ReplayBuffer"]


class ReplayBuffer:
    """A table that TorchRL's trainers, collectors and losses use as their replay buffer. Safe in any thread.

    `where`: a table; or a store, and the table is made in it with the first rows: as plain rows with a column for each
    entry of the TensorDict, of at most `max_size` rows, with `sampler` (Uniform() if None) and `settings`, as of
    `store.create_table`. Where the store has a table `name`, it is that. A table of steps of episodes stores each
    observation once, and its windows (n steps, frame stacks) are what is sampled; see `conduit.torchrl.keys`.
    `batch_size`: of `sample()` and of iteration. `window`: as of `table.sample`. `prefetch`: batches of that size
    prepared ahead by a thread, a number or "auto", and `max_priority_drift`: both as of `table.loader`.
    `transform`: applied to what is sampled, and its inverse to what is added. `priority_key`: where losses put TD
    errors; of several numbers a row the largest counts. `timeout`: seconds that rows are waited for, and space.
    Pickled by name, with its transforms: in another process it writes to and draws from the same table.

    Example:
        >>> sampler = conduit.samplers.Prioritized(0.7, 0.5)
        >>> buffer = conduit.torchrl.ReplayBuffer(store, "replay", 10_000, sampler=sampler, batch_size=32)
        >>> keys = buffer.extend(TensorDict({"observation": torch.randn(100, 4)}, [100]))
        >>> batch = buffer.sample()
        >>> batch["td_error"] = torch.rand(32)
        >>> buffer.update_tensordict_priority(batch)

    Raises:
        ConfigError: settings beside a table, a store without max_size, or a window of sequences.
        NameTaken: the store has a table of that name with other settings than those given.
        UnknownWindow: says which there are.
    """

    def __init__(
        self,
        where: Table | Store,
        name: str = "replay",
        max_size: int | None = None,
        *,
        batch_size: int | None = None,
        sampler: Any = None,
        window: str | None = None,
        prefetch: int | str = 0,
        max_priority_drift: float | None = None,
        transform: Transform | Callable[[Any], Any] | None = None,
        priority_key: str | tuple[str, ...] = "td_error",
        timeout: float | None = 10.0,
        **settings: Any,
    ) -> None:
        self._window, self._timeout = window, timeout
        self._batch_size, self._prefetch, self._drift = batch_size, prefetch, max_priority_drift
        self.priority_key = priority_key
        compose: Any = Compose
        self._transform: Any = compose()
        self._table: Table | None = None
        self._keys: Keys | None = None
        self._loader: Loader | None = None
        self._lock = threading.Lock()  # one loader, whoever asks first
        if isinstance(where, Table):
            if max_size is not None or sampler is not None or settings:
                raise ConfigError(
                    f"table {where.name!r} has its settings: max_size, sampler and others go with a store"
                )
            self._store, self._name, self._max_size = where._store, where.name, where.max_size
            self._settings: dict[str, Any] = {}
            self._use(where)
        elif isinstance(where, Store):
            if max_size is None:
                raise ConfigError("a buffer in a store needs max_size, the most rows that it holds")
            self._store, self._name, self._max_size = where, name, max_size
            self._settings = {"sampler": sampler, **settings}
            self._found()
        else:
            raise ConfigError(f"a buffer of a {type(where).__name__}: give a table, or a store and max_size")
        if transform is not None:
            self.append_transform(transform)

    # ---- the table

    @property
    def table(self) -> Table:
        """The table.

        Raises:
            UnknownTable: it is made with the first rows, and there were none yet.
        """
        found = self._found()
        if found is None:
            raise UnknownTable(f"buffer {self._name!r} has no table yet: it is made with the first rows")
        return found

    def _found(self) -> Table | None:
        if self._table is None:
            try:
                table = self._store.table(self._name)
            except UnknownTable:
                return None
            self._check(table)
            self._use(table)
        return self._table

    def _check(self, table: Table) -> None:
        """A table that was there has the settings that were given."""
        for field, given in {"max_size": self._max_size, **self._settings}.items():
            has = getattr(table.spec, field, None)
            if given is not None and has != given:
                raise NameTaken(
                    f"table {self._name!r} is there with {field}={has!r}, not {given!r}: give the table itself, or "
                    "another name"
                )

    def _use(self, table: Table) -> None:
        self._keys = Keys(table.schema, find(table.spec.views, self._window, table.name))
        self._table = table

    def _made(self, schema: Schema) -> Table:
        """The table, made where there is none. Of several processes that make it one does, and all use it."""
        found = self._found()
        if found is None:
            settings = {"window": Row(), **self._settings}
            self._use(self._store.create_table(self._name, schema, self._max_size, exist_ok=True, **settings))
        return self.table

    @property
    def _view(self) -> View:
        return find(self.table.spec.views, self._window, self._name)

    # ---- in

    def extend(self, data: TensorDictBase, *, update_priority: bool | None = None) -> torch.Tensor:
        """Append rows, a TensorDict of batch size [n]; return their keys, int64 (n,), also put into it as "index".

        Of steps of episodes [environments, n] too, see `conduit.torchrl.keys`. Priorities are taken from `priority_key`
        where it is there, unless `update_priority` is false.

        Raises:
            SchemaError and its kinds, MissingColumn: see `Schema`. ConfigError: another batch size.
            AppendTimeout, StoreClosed, ReadOnlyStore, PriorityError: as `table.extend`.
        """
        inverted = self._transform.inv(data) if len(self._transform) else data
        if inverted is None:  # a transform that gathers rows has none to give yet
            return torch.zeros(0, dtype=torch.int64)
        key = (self.priority_key,) if isinstance(self.priority_key, str) else self.priority_key
        if self._found() is None:
            if inverted.ndim != 1:
                raise ConfigError(f"rows of batch size {list(inverted.batch_size)}: give [n], as data.reshape(-1) is")
            self._made(schema_of(inverted, {key}))
        table = self.table
        assert self._keys is not None
        columns = self._keys.columns(inverted)
        priorities = None
        if update_priority is not False and self._view.prioritized and key in inverted.keys(True):
            priorities = _largest(inverted.reshape(-1).get(key))
        found = table.extend(columns, priorities=priorities, timeout=self._timeout, return_keys=True)
        keys = torch.from_numpy(found.view(np.int64).copy())
        if not data.is_locked and len(keys) == data.numel():
            data.set("index", keys.view(data.batch_size))
        return keys

    def add(self, data: TensorDictBase) -> torch.Tensor:
        """Append one row, a TensorDict without batch size; return its key, int64 (). See `extend`."""
        keys = self.extend(data.unsqueeze(0))
        return keys[0] if len(keys) else keys

    def empty(self, empty_write_count: bool = True) -> None:
        """Drop every row, for all processes. `write_count` goes on counting."""
        if self._found() is not None:
            self.table.clear()

    # ---- out

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw rows as the window's sampler says: a TensorDict [batch_size], "index" and "priority_weight" in it.

        `batch_size`: the buffer's if None. With `return_info` also a dict of those two and of "probability".
        The memory is the caller's. Waits up to the buffer's timeout while nothing can be drawn.

        Raises:
            ConfigError: no batch_size, here or of the buffer. UnknownTable: nothing was added yet.
            SampleTimeout, StoreClosed, CapacityError: as `table.sample`.
        """
        n = self._batch_size if batch_size is None else batch_size
        if n is None:
            raise ConfigError("no batch_size: give it to the buffer, or to sample()")
        if self._prefetch != 0 and n == self._batch_size:
            batch = self._prepared().next()
        else:
            batch = self.table.sample(n, window=self._window, timeout=self._timeout)
        assert self._keys is not None
        made: Any = self._keys.tensordict(batch.torch(without=("weights",)), len(batch))
        info = {
            "index": torch.from_numpy(batch.keys.view(np.int64)),
            "priority_weight": torch.from_numpy(batch.weights),
            "probability": torch.from_numpy(batch.probabilities),
        }
        if len(self._transform):
            made = self._transform(made)
        made.set("index", info["index"])
        made.set("priority_weight", info["priority_weight"])
        return (made, info) if return_info else made

    def _prepared(self) -> Loader:
        with self._lock:
            if self._loader is None:
                assert self._batch_size is not None
                self._loader = self.table.loader(
                    self._batch_size, window=self._window, prefetch=self._prefetch, max_priority_drift=self._drift,
                    timeout=self._timeout,
                )  # fmt: skip
            return self._loader

    def __iter__(self) -> Iterator[Any]:
        """Batches without end."""
        while True:
            yield self.sample()

    def next(self) -> Any:
        """Return the next batch."""
        return self.sample()

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Return whether `sample` would go through now."""
        n = self._batch_size if batch_size is None else batch_size
        return n is not None and self._found() is not None and self.table.can_sample(n, window=self._window)

    # ---- priorities

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set the priorities of rows by their keys, int64 (n,) as in "index". Those of rows that are gone are counted.

        `priority`: (n, ...); of several numbers a row the largest counts.

        Raises:
            PriorityError, ConfigError, ShapeMismatch: as `table.update_priorities`.
        """
        keys = torch.as_tensor(index, dtype=torch.int64).reshape(-1).cpu().numpy().view(np.uint64)
        values = torch.as_tensor(priority)
        values = values.reshape(1) if values.ndim == 0 else values
        if len(values) != len(keys):
            raise ShapeMismatch(f"{len(keys)} keys and priorities of shape {tuple(values.shape)}: give one a key")
        self.table.update_priorities(keys, _largest(values), window=self._window)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of sampled rows from `priority_key`. Nothing happens where rows are drawn uniformly.

        Raises:
            MissingColumn: a TensorDict without "index" or `priority_key`. PriorityError: as `table.update_priorities`.
        """
        if not self._view.prioritized:
            return
        for key in ("index", self.priority_key):
            if data.get(key, None) is None:
                raise MissingColumn(f"the TensorDict has no {key!r}: give a sampled one, after the loss has seen it")
        self.update_priority(data.get("index"), data.get(self.priority_key))

    # ---- what trainers look at

    def __len__(self) -> int:
        found = self._found()
        return 0 if found is None else len(found)

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch where none are asked for."""
        return self._batch_size

    @property
    def max_size(self) -> int:
        """The most rows that are live at a time."""
        return self._max_size

    @property
    def write_count(self) -> int:
        """Rows that were ever appended, by all processes."""
        found = self._found()
        return 0 if found is None else found.info().appended

    @property
    def storage(self) -> Storage:
        """The rows, as TorchRL asks after a storage."""
        return Storage(self)

    _storage = storage  # collectors look at it

    @property
    def sampler(self) -> Any:
        """The sampler's settings, of `conduit.samplers`."""
        return self._view.sampler

    @property
    def writer(self) -> ReplayBuffer:
        """The buffer: any process writes to it."""
        return self

    def share(self, shared: bool = True) -> ReplayBuffer:
        """Return the buffer: it is shared."""
        return self

    # ---- transforms

    @property
    def transform(self) -> Any:
        """The transforms of what is sampled, a `torchrl.envs.Compose`."""
        return self._transform

    def append_transform(self, transform: Transform | Callable[[Any], Any]) -> ReplayBuffer:
        """Apply a transform, or a function of a TensorDict, to what is sampled, after those that are there."""
        return self.insert_transform(len(self._transform), transform)

    def insert_transform(self, index: int, transform: Transform | Callable[[Any], Any]) -> ReplayBuffer:
        """Apply a transform, or a function of a TensorDict, as the one at `index`."""
        made: Any = transform if isinstance(transform, Transform) else Call(transform)
        self._transform.insert(index, made.eval())
        return self

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Return rows and priorities, copied into one tensor of Arrow's stream format, and the transforms' state.

        Not the keys, nor where the random streams are: `store.checkpoint` keeps all, and needs no copy in memory.
        """
        return saving.state_of(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Put rows and priorities in place of what the table has, which is made where there is none.

        Raises:
            ExchangeError: no state of such a buffer. MissingColumn, DtypeMismatch, ShapeMismatch: of another table.
            AppendTimeout: no space in time.
        """
        saving.load_state(self, state_dict)

    def dumps(self, path: str | Path) -> None:
        """Write what `state_dict` gives to a folder, rows as an Arrow file. Memory stays bounded."""
        saving.write(self, Path(path))

    def loads(self, path: str | Path) -> None:
        """Read what `dumps` has written, as `load_state_dict` does, with the same errors."""
        saving.read(self, Path(path))

    dump = dumps  # the names under which TorchRL's checkpoints look for them
    load = loads

    # ---- the end, and other processes

    def close(self) -> None:
        """Stop preparing batches. The table stays, for everybody. Idempotent."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": None, "_table": None, "_keys": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._found()

    def __repr__(self) -> str:
        rows = len(self)
        return f"<conduit.torchrl.ReplayBuffer {self._name!r}: {rows:,} of {self._max_size:,} rows>"


def _largest(values: Any) -> Any:
    """One priority a row, float32 (n,)."""
    array = torch.as_tensor(values).detach().to(torch.float32).cpu()
    return array.reshape(len(array), -1).amax(1).numpy() if array.numel() else np.zeros(len(array), np.float32)
