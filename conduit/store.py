"""The store: all the experience of one run on one node, in shared memory, found by its name."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from conduit import creation, limiters, opening, removers, samplers, windows
from conduit.disk import Disk
from conduit.opening import Opened
from conduit.queue import Queue
from conduit.queue_settings import QueueSettings
from conduit.spec import TableSpec
from conduit.store_handle import StoreHandle, open_stores
from conduit.table import Table
from conduit.values import check_flags, seconds
from conduit_store import memory
from conduit_store.errors import NameTaken, StoreNotFound
from conduit_store.schema import Schema

if TYPE_CHECKING:
    from conduit.checkpoints import Changes, CheckpointInfo

__all__ = ["Store"]

logger = logging.getLogger("conduit")


class Store(StoreHandle):
    """A store as this process sees it. Made by `create`, `attach` or `open_or_create`; safe in any thread.

    Every process that holds a store for writing also answers those that attach, so the store outlives its
    creator; its memory goes with the last process. Passed to another process (multiprocessing, Ray, DataLoader
    workers) it attaches again by name. A forked child goes on using it with a process slot of its own.
    """

    # What it holds and how it is closed: store_handle.py.

    @classmethod
    def create(cls, name: str, host_memory: str | int | None = None, *, max_processes: int = 256) -> Self:
        """Create the store `name`.

        `host_memory`: what its tables may take together, as "4GiB" or bytes; half of what is available if None.
        It is checked here and reserved when tables are created, so a table never meets a missing page later.
        `max_processes`: how many may be attached at a time.

        Raises:
            NameTaken: a live store has this name.
            OutOfHostMemory: the machine or a cgroup has less than that left.
            ConfigError: a name or number that is not allowed.
            UnsupportedPlatform: not Linux, or a kernel without what shared memory here needs.
        """
        return cls._unserved(opening.create(name, host_memory, max_processes))._serve()

    @classmethod
    def attach(cls, name: str, *, read_only: bool = False, timeout: float | None = 10.0) -> Self:
        """Attach to the live store `name`, from any process of the same user.

        With `read_only` the rows are mapped read-only: a stray write faults here instead of corrupting them.
        Blocks up to `timeout` seconds (None: for ever) while those that hold the store do not answer.

        Raises:
            StoreNotFound: no such store; names those that exist.
            AttachTimeout: nobody answered in time. AttachRefused: it belongs to another user.
            LayoutMismatch: it was made by another build.
            CapacityError: every process slot is held by a live process.
            ConfigError: a name, flag or timeout that is not allowed.
        """
        check_flags(read_only=read_only)
        store = cls._unserved(opening.attach(name, read_only=read_only, timeout=seconds(timeout)))
        if store._server is not None:
            store._server.start()
            store._native.tidy(store._control_fd, store._data_fd)
        return store

    @classmethod
    def open_or_create(
        cls,
        name: str,
        host_memory: str | int | None = None,
        *,
        max_processes: int = 256,
        timeout: float | None = 10.0,
    ) -> Self:
        """Attach to the store `name` if it lives, else create it. For reruns and notebooks.

        Raises:
            What `attach` and `create` raise, but for StoreNotFound and NameTaken.
        """
        while True:
            try:
                return cls.attach(name, timeout=timeout)
            except StoreNotFound:
                pass
            try:
                return cls.create(name, host_memory, max_processes=max_processes)
            except NameTaken:  # another process was quicker
                continue

    @classmethod
    def _unserved(cls, opened: Opened) -> Self:
        """The store, but that whoever attaches waits until `_serve` is called."""
        try:
            return cls(opened)
        except BaseException:
            opened.abandon()
            raise

    def _serve(self) -> Self:
        assert self._server is not None
        self._server.start()
        logger.info("store %r: up to %.1f MiB for tables", self._name, self._host_memory / 2**20)
        return self

    def create_table(
        self,
        name: str,
        schema: Schema,
        max_size: int,
        *,
        sampler: samplers.Sampler | Mapping[str, samplers.Sampler] | None = None,
        window: windows.Window | Mapping[str, windows.Window] | None = None,
        limiter: limiters.Limiter | None = None,
        remover: removers.Remover | None = None,
        max_writers: int = 8,
        mean_episode_length: float = 25.0,
        max_times_sampled: int | None = None,
        disk: Disk | None = None,
        seed: int = 0,
        exist_ok: bool = False,
    ) -> Table:
        """Create a table of at most `max_size` rows (steps, for episodes) and reserve its memory.

        `sampler`: Uniform() if None. `window`: what it will be sampled with; if None, Transition() for a schema
        with episode roles (obs, reward, terminated, truncated and no next_obs), else Row(). Up to four windows over
        the same rows may be given by name, `{"short": NStep(3), "long": NStep(10)}`, and then a sampler for each by
        the same names, or one for all; `table.sample(n, window="long")`. The first is the one used where none is named.
        `remover`: which row leaves a full table, Fifo() (the oldest) if None. `conduit.removers` says what others cost.
        `max_writers`: how many writers are expected at a time. More are let in, but their open blocks then push
        old rows out early; once every block of a small table is somebody's open one, appends of others wait.
        `mean_episode_length`: episodes keep one final observation each; shorter ones than this push old rows out early
        too. `evicted_early` in the metrics counts such rows.
        `limiter`: MinSize(1) if None. `max_times_sampled`: a row leaves once it has been drawn so often, counted where
        it is drawn: what a killed reader or a closed loader had drawn and not delivered is lost. Such a table keeps
        room for twice its rows, since memory comes back by block.
        `disk`: where rows go that memory has no room for, `conduit.Disk(folder, host_memory)`; nowhere if None.
        `seed`: of all draws. `exist_ok`: return the table if it is there with the very same settings.

        Raises:
            NameTaken: the table exists (with other settings, if `exist_ok`).
            ConfigError: settings that are not allowed or contradict each other.
            OutOfHostMemory: it does not fit in the store, the machine or a cgroup.
            DiskError: the folder of `disk` cannot be written.
            ReadOnlyStore: this attach is read-only.
        """
        if window is None:
            window = windows.Transition() if isinstance(schema, Schema) and schema.is_episodic else windows.Row()
        spec = TableSpec(
            name, schema, max_size, samplers.Uniform() if sampler is None else sampler, window,
            limiters.MinSize() if limiter is None else limiter, max_writers, mean_episode_length, seed,
            max_times_sampled, removers.Fifo() if remover is None else remover, disk=disk,
        )  # fmt: skip
        return creation.create(self, spec, exist_ok=exist_ok)

    def create_queue(
        self,
        name: str,
        schema: Schema,
        max_size: int,
        *,
        consumers: Sequence[str] = ("default",),
        max_staleness: int | None = None,
        lease_timeout: float = 60.0,
        max_writers: int = 8,
        disk: Disk | None = None,
        exist_ok: bool = False,
    ) -> Queue:
        """Create a queue: rows that are each delivered until acknowledged, and then never again.

        It holds at most `max_size` rows that are not acknowledged by every consumer group; appends wait for room.
        `consumers`: names of up to eight groups; each gets every row, and the processes of one group share them.
        `lease_timeout`: seconds after which a delivery that was not acknowledged goes back. `max_staleness`: rows carry
        the version of the policy that made them, in an int64 column `policy_version` that is added to the schema;
        versions more than this behind `queue.policy_version` are neither taken in nor delivered. `max_writers`, `disk`:
        as of a table; a backlog that memory has no room for waits on disk, those rows first that are delivered last.
        `exist_ok`: return the queue if it is there with the very same settings.

        Raises:
            NameTaken: a table or queue of that name exists (with other settings, if `exist_ok`).
            ConfigError: settings that are not allowed. OutOfHostMemory: it does not fit.
            DiskError: the folder of `disk` cannot be written. ReadOnlyStore: this attach is read-only.

        Example:
            >>> queue = store.create_queue("rollouts", conduit.Schema.from_example({"x": 1}), 1_000)
            >>> queue.extend({"x": np.arange(64)})
            64
            >>> batch = queue.sample(32)
            >>> batch["x"].sum(), batch.ack()
            (496, 32)
        """
        settings = QueueSettings(consumers, max_staleness, lease_timeout)
        spec = TableSpec(
            name, settings.complete(schema), max_size, samplers.Uniform(), windows.Row(), limiters.MinSize(),
            max_writers, 25.0, 0, queue=settings, disk=disk,
        )  # fmt: skip
        creation.create(self, spec, exist_ok=exist_ok)
        return self.queue(name)

    def import_table(
        self,
        name: str,
        source: Any,
        max_size: int | None = None,
        *,
        format: str | None = None,
        schema: Schema | None = None,
        rename: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
        progress: bool | Callable[[int, int | None], None] = False,
        **settings: Any,
    ) -> Table:
        """Create a table with the rows of a file or folder, or of what is in memory, and return it.

        `source`, `format`, `rename`, `timeout`, `progress`: as of `Table.import_from`. `max_size`: all rows fit if
        None; of a smaller table the newest stay. `schema`: the columns to keep, with the dtypes that they are to have;
        all of the source if None. `settings`: further ones of `create_table`.

        Example:
            >>> table = store.import_table("expert", "expert.parquet", window=conduit.windows.NStep(3))

        Raises:
            What `Table.import_from` and `create_table` raise. A table that had been created by then is empty.
        """
        from conduit.exchange import transfer

        return transfer.import_table(
            self, name, source, max_size, format=format, schema=schema, rename=rename, timeout=timeout,
            progress=progress, settings=settings,
        )  # fmt: skip

    def checkpoint(
        self,
        path: str | os.PathLike[str],
        *,
        tables: Sequence[str] | None = None,
        keep: int = 1,
        progress: Callable[[int, int], object] | None = None,
    ) -> CheckpointInfo:
        """Write all tables and queues, or those of `tables`, as they are at one moment, into the folder `path`.

        Everybody goes on meanwhile: the locks of all tables are held for microseconds (and a millisecond a million rows
        of tables without replacement or with `max_times_sampled`, and of queues); a writer that comes to reuse a block
        that is not written yet waits for it. Only what the newest checkpoint of the folder does not have is written.
        `keep`: how many of the newest stay there. `progress(done, total)`: called with bytes, now and then. The files
        are Arrow IPC; see docs/checkpoints.md.

        The checkpoint is there once this returns. Killed, interrupted or out of disk before that, the folder has those
        that it had.

        Raises:
            CheckpointError: the folder cannot be written, or is full. CheckpointBusy: another checkpoint of this store
            is being taken, by any process, or one into this folder. CheckpointLapsed: this process was stopped, or the
            disk stood still, for two seconds while writers waited for blocks. ReadOnlyStore, StoreClosed: this attach
            cannot.
            UnknownTable: says which there are.

        Example:
            >>> store.checkpoint("/data/run1", keep=3).number
            1
        """
        from conduit.checkpoints.taking import take  # pyarrow

        self._native.check()
        return take(self, path, tables, keep, progress)

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        name: str | None = None,
        host_memory: str | int | None = None,
        *,
        tables: Mapping[str, Changes] | None = None,
        number: int | None = None,
        max_processes: int = 256,
        progress: Callable[[int, int], object] | None = None,
    ) -> Self:
        """Create a store from a checkpoint: rows, priorities, limiters, random streams and queues as at its cut.

        What follows is as if there had been no interruption: the same appends, updates and draws give the same batches
        with the same keys. Random streams are taken up again in the order in which they were begun, each at its first
        batch that had not been delivered. Writers that were at work are gone: their open episodes end where they were
        (a last step without successor is never drawn), and new writers go on in their half-filled blocks
        (but where rows vary in length: there they begin new ones, so that later keys differ). Deliveries of
        queues that had not been acknowledged wait again. Batches that a loader had drawn ahead and not handed over are
        drawn again; but those without replacement, or of a table with `max_times_sampled`, stay counted as drawn.

        `name`: the store's own if None. `host_memory`: as in `create`; what the saved store had if None, or more if
        its tables need that. `tables`: what is to be different, see `conduit.checkpoints.Changes`. `number`: of the
        checkpoints that the folder keeps, the newest if None. `progress(done, total)`: called with bytes, now and then.
        Every file is held against its checksum. Nobody else can attach before all of it is there. The store refers to
        no file: the checkpoint may be changed or deleted afterwards.

        Raises:
            CheckpointNotFound: no checkpoint is there. CheckpointDamaged: names the file and what is wrong with it.
            ConfigError: changes that contradict each other, or a column that cannot become what is asked.
            CheckpointError: a queue that is to hold fewer rows than wait in it.
            NameTaken, OutOfHostMemory, UnsupportedPlatform: as in `create`.

        Example:
            >>> store = conduit.Store.restore("/data/run1")
            >>> from conduit import checkpoints
            >>> bigger = {"replay": checkpoints.Changes(max_size=2_000_000)}
            >>> store = conduit.Store.restore("/data/run1", "run2", "8GiB", tables=bigger)
        """
        from conduit.checkpoints.restoring import restore  # pyarrow

        asked = None if host_memory is None else memory.parse_bytes(host_memory)
        store = restore(
            lambda store_name, budget: cls._unserved(opening.create(store_name, budget, max_processes)),
            path, name, asked, tables or {}, number, progress,
        )  # fmt: skip
        assert isinstance(store, cls)
        return store._serve()

    def __reduce__(self) -> tuple[Any, tuple[str, bool]]:
        return _shared, (self._name, self.read_only)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._native.tables())} tables"
        return f"<Store {self._name!r} {state}, up to {self._host_memory / 2**20:,.0f} MiB>"


def _shared(name: str, read_only: bool) -> Store:
    """The one store of that name that unpickled handles of this process share."""
    store = open_stores.get((name, read_only))
    if not isinstance(store, Store) or store.closed:
        store = Store.attach(name, read_only=read_only)
    return store
