"""A table: rows of one schema, appended by writers, sampled by readers, in any process."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from conduit import limiting, rows
from conduit.batch import Batch
from conduit.blocks import BlockView
from conduit.categories import categories_of
from conduit.disk import DiskTier
from conduit.extend import Extender
from conduit.histogram import Histogram, histogram
from conduit.limiters import Limiter
from conduit.loader import Loader, LoaderSettings
from conduit.metrics import TableMetrics
from conduit.samplers import Prioritized
from conduit.sampling import Reader
from conduit.schedules import Schedule
from conduit.spec import TableSpec
from conduit.values import as_array, as_keys, as_priorities, as_sequence_priorities, real_number, whole_number
from conduit.views import View, find
from conduit.writer import VectorWriter, Writer
from conduit_store.errors import (
    CapacityError,
    ConduitError,
    ConfigError,
    LockTimeout,
    ReadOnlyStore,
    StaleKey,
    StoreClosed,
)
from conduit_store.native import native
from conduit_store.schema import Schema
from conduit_store.values import as_rows

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa
    from tensordict import TensorDict

    from conduit.store import Store

__all__ = ["Table", "UpdateResult"]


_HUGE_PAGES_FROM = 8 << 20  # bytes of rows: about what a processor finds without a walk through page tables

_exiting = threading.Event()
_populators: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _end_populators() -> None:
    """Wait for threads that touch pages: one that came back from the core after the interpreter's end would abort."""
    _exiting.set()
    for thread in list(_populators):
        thread.join()


class UpdateResult(NamedTuple):
    """What an update did: `applied` to live rows, `stale` for rows that were gone."""

    applied: int
    stale: int


class Table:
    """A table as this process sees it; from `store.create_table` or `store.table`. Safe in any thread.

    Pickled by name: in another process it attaches again.
    """

    def __init__(self, store: Store, core: native.Table) -> None:
        self._store = store
        self._native = core
        self._spec = TableSpec.from_json(core.spec.decode())
        self._layout = self._spec.block_layout()
        self._categories = categories_of(core, self._spec)
        self._disk: DiskTier | None = None
        if self._spec.tiered:
            self._disk = DiskTier(core, self._spec, store._disk_path(self._spec), write=not store.read_only)
            self._disk.start()
        self._readers: dict[str, Reader] = {}
        if self._spec.queue is None:
            self._readers = {
                view.name: Reader(core, self._spec, view, self._categories) for view in self._spec.views
            }
        self._first = next(iter(self._readers.values()), None)
        self._extender = Extender(self)
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()  # those of queues too
        self._populating: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The table's name within its store."""
        return self._spec.name

    @property
    def schema(self) -> Schema:
        """Columns of the stored rows."""
        return self._spec.schema

    @property
    def batch_schema(self) -> Schema:
        """Columns of sampled batches, of the first window."""
        return self._reader(None).schema

    @property
    def batch_schemas(self) -> dict[str, Schema]:
        """Columns of sampled batches, by window. A window that was given without a name is called "default"."""
        return {name: reader.schema for name, reader in self._readers.items()}

    def _schema_now(self) -> Schema:
        """The schema with the categories that there are now: in a table made of it they have the same numbers."""
        return self.schema.with_values({name: of.values for name, of in self._categories.items()})

    def categories(self, name: str) -> tuple[str, ...]:
        """Return the values that a "category" column has until now, by their numbers. They are only ever added to.

        Raises:
            UnknownColumn: no such column. ConfigError: it has another dtype. StoreClosed: the store was closed here.
        """
        column = self.schema.column(name)
        if not column.categorical:
            raise ConfigError(f"column {name!r} of table {self.name!r} is {column.dtype_name}: it has no categories")
        return self._categories[name].values

    @property
    def max_size(self) -> int:
        """The most rows (steps, for episodes) that are live at a time."""
        return self._spec.max_size

    @property
    def spec(self) -> TableSpec:
        """All settings the table was created with."""
        return self._spec

    def __len__(self) -> int:
        """Live rows (steps, for episodes) now, exact.

        Raises:
            StoreClosed: the store was closed here.
        """
        return self._native.steps()

    @overload
    def writer(
        self, num_envs: None = None, *, autoreset: str = "next_step", timeout: float | None = 10.0
    ) -> Writer: ...
    @overload
    def writer(self, num_envs: int, *, autoreset: str = "next_step", timeout: float | None = 10.0) -> VectorWriter: ...
    def writer(
        self, num_envs: int | None = None, *, autoreset: str = "next_step", timeout: float | None = 10.0
    ) -> Writer | VectorWriter:
        """Return a writer: for rows one by one, or with `num_envs` for the steps of a vector environment.

        `autoreset`: the vector environment's mode, as gymnasium names them: "next_step", "same_step" or
        "disabled". `timeout`: seconds that an append may wait for space; None waits for ever.
        A writer belongs to one thread of one process. Close it, or use it in a `with`.

        Raises:
            ReadOnlyStore, StoreClosed: this attach cannot write.
            ConfigError: num_envs less than 1, an unknown mode, a mode without num_envs, or a plain table with it.
        """
        if num_envs is None:
            if autoreset != "next_step":
                raise ConfigError(f"autoreset={autoreset!r} is of vector environments: give num_envs too, or leave it")
            return Writer(self, timeout=timeout)
        return VectorWriter(self, num_envs, autoreset=autoreset, timeout=timeout)

    @overload
    def extend(
        self, columns: Any, *, priorities: Any = None, timeout: float | None = 10.0, return_keys: Literal[False] = False
    ) -> int: ...
    @overload
    def extend(
        self, columns: Any, *, priorities: Any = None, timeout: float | None = 10.0, return_keys: Literal[True]
    ) -> npt.NDArray[np.uint64]: ...
    def extend(
        self, columns: Any, *, priorities: Any = None, timeout: float | None = 10.0, return_keys: bool = False
    ) -> int | npt.NDArray[np.uint64]:
        """Append whole arrays: a mapping of columns, an Arrow table or record batch, or a TensorDict.

        Every column has shape (n, *row_shape). `priorities`: float (n,), finite and not negative.
        For episodes the rows are consecutive steps of one environment; where one is terminated or truncated,
        `next_obs` (of all n rows; only those of the ends are stored) must be among the columns. An episode
        that has not ended goes on with the next call from this process.
        Waits up to `timeout` seconds for space and for the limiter, which lets rows in piece by piece. Returns n, or
        with `return_keys` the keys of the n rows, uint64 (n,): what `update` and `rows` take.
        Nothing is appended if it raises, but for AppendTimeout and LockTimeout, whose messages say how many are in.

        Raises:
            MissingColumn, UnknownColumn, ShapeMismatch, DtypeMismatch, ValueOutOfRange: see Schema.
            CapacityError: more rows than the table holds. PriorityError: with the first bad position.
            AppendTimeout: says what holds the memory or what the limiter lacks, and how many rows are in.
        """
        put: int | npt.NDArray[np.uint64] = self._extender.extend(columns, priorities, timeout, keys=return_keys)
        return put

    def sample(
        self, n: int, *, window: str | None = None, timeout: float | None = 10.0, stream: int | None = None
    ) -> Batch:
        """Draw `n` windows as the window's sampler says, and copy them out.

        `window`: by which of the table's windows, by name; the first if None.
        Columns have shape (n, *row_shape) and are private to the caller. Draws are a function of the table's
        seed, the random stream and how many batches this stream has delivered. `stream`: one of the caller's own
        (a worker's rank, say), counted apart; else each process and attach gets the next free one.
        Waits up to `timeout` seconds (None: for ever) while the limiter forbids sampling or no row can be drawn;
        nothing is consumed then. Other threads run meanwhile.

        Raises:
            SampleTimeout: names the limiter and what it lacks.
            ConfigError: n is no whole number from 1 on, or more than the limiter or `max_times_sampled` can ever be
            sure to let through; at once.
            CapacityError: more rows than the table holds, by a sampler that draws each at most once.
            UnknownWindow: says which there are.
            StoreClosed: the store was closed here, also while waiting.
            LockTimeout: a stopped process holds the index lock; names it.
        """
        return self._reader(window).sample(n, timeout, stream)

    def loader(
        self,
        batch_size: int,
        *,
        window: str | None = None,
        prefetch: int | str = "auto",
        max_priority_drift: float | None = None,
        device: Any = None,
        transform: Callable[[Batch], Any] | None = None,
        timeout: float | None = 10.0,
        stream: int | None = None,
        max_staging: str | int = "256MiB",
    ) -> Loader:
        """Return a loader: `for batch in table.loader(256): ...` prepares batches while you compute.

        Batch b of a stream has the rows that `sample(batch_size, stream=stream)` gives as its b-th, at any depth, as
        long as the table does not change. `stream` is the loader's alone while it lives. `window`: as in `sample`.
        `prefetch`: batches prepared ahead; 0 prepares each at the call. "auto" follows p95(preparation) / computing,
        plus one, as far as `max_staging` bytes of buffers and the semantics allow: a prioritized table without
        `max_priority_drift` prepares one ahead, with one of 0 none.
        `max_priority_drift`: largest total variation distance, for each draw, between the distribution drawn from
        and that at hand-over. Batches beyond it are drawn again. 0 is exact: as if drawn when handed over.
        `transform`: called with each Batch in a thread of the loader; the loader then yields what it returns.
        `device`: "cuda:0", say; the loader yields batches of tensors there, copied on a side stream from pinned
        memory. `timeout`: seconds that `next` waits for rows; None waits for ever.

        Raises:
            ConfigError: a number that is not allowed, no such device, batches that do not fit in max_staging, or
                max_priority_drift where max_times_sampled counts draws.
            UnknownWindow: says which there are.
            MissingExtra: device without torch. StoreClosed: the store was closed here.
        """
        settings = LoaderSettings(
            batch_size=batch_size,
            window=window,
            prefetch=prefetch,
            max_priority_drift=max_priority_drift,
            device=device,
            transform=transform,
            timeout=timeout,
            stream=stream,
            max_staging=max_staging,
        )
        return Loader(self, settings)

    def rows(self, keys: Any, *, window: str | None = None) -> Batch:
        """Copy out the windows of given rows, in the order of `keys` (uint64). `window`: as in `sample`.

        Nothing is drawn: the batch's probabilities are NaN and its weights 1.

        Raises:
            StaleKey: a row is gone or not complete yet; names the first. UnknownWindow: says which there are.
        """
        return self._reader(window).read(as_keys(keys))

    def update_priorities(
        self, keys: Any, priorities: Any, *, window: str | None = None, mask: Any = None, eta: float | None = None
    ) -> UpdateResult:
        """Set the priorities of sampled rows, as given: the table raises them to alpha.

        `window`: whose priorities, as in `sample`; each prioritized window has its own. For sequences `priorities` may
        be (n, steps), such as absolute TD errors: a sequence gets eta * max + (1 - eta) * mean over those steps that
        `mask` bool (n, steps) has, all if None; `eta` is the sampler's if None.

        `keys` uint64 (n,) from `batch.keys`, `priorities` float (n,). All or nothing where a priority is not
        finite or negative. Keys of rows that are gone are counted, not applied. Of equal keys the last wins.

        Raises:
            PriorityError: with the first bad position and value. ConfigError: the window's sampler is uniform.
            ShapeMismatch: keys and priorities differ in length. UnknownWindow: says which there are.
        """
        view = self._view(window)
        if not view.prioritized:
            raise rows.not_prioritized(self.name, "" if window is None else view.name)
        key_array = as_keys(keys)
        n = len(key_array)
        priorities = as_array("priorities", priorities)
        if priorities.ndim == 2:
            assert isinstance(view.sampler, Prioritized)
            chosen = view.sampler.eta if eta is None else real_number("eta", eta, 0.0, 1.0)
            values = as_sequence_priorities(priorities, mask, n, chosen)
        elif mask is not None or eta is not None:
            raise ConfigError("mask and eta belong to priorities by step: give priorities of shape (n, steps)")
        else:
            values = as_priorities(priorities, n)
        applied, stale = self._native.update(view.index, key_array, values, len(key_array))
        return UpdateResult(applied, stale)

    def update(self, keys: Any, values: Mapping[str, Any] | None = None, /, **columns: Any) -> UpdateResult:
        """Rewrite mutable columns of live rows: `table.update(keys, reward=rewards)`.

        `keys` uint64 (n,), from a batch, a writer or `extend`; of each column numbers of shape (n,). Names that are
        no Python names go into a mapping, `{"info/score": scores}`. Whoever draws or reads from then on gets the new
        numbers; a batch that another thread or a loader is making meanwhile holds old and new ones. Each number is
        whole. Keys of rows that are gone are counted, not applied. Of equal keys the last wins. Waits for the table's
        lock only. A null that gets a number is null no more; a number does not become null.

        Raises:
            ConfigError: a column is not mutable, or none is given. UnknownColumn: says which there are.
            ShapeMismatch, DtypeMismatch, ValueOutOfRange: see Schema; nothing was changed.
            ReadOnlyStore, StoreClosed: this attach cannot write. LockTimeout: a stopped process holds the index lock.
            DiskError: numbers rewritten before may not have reached the disk (once in each process, here or in a
                sample); nothing was changed. Or a page there cannot be read: some may have been.

        Example:
            >>> reward = conduit.Column("reward", "float32", mutable=True)
            >>> schema = conduit.Schema((conduit.Column("x", "int64"), reward))
            >>> table = store.create_table("late", schema, 100)
            >>> keys = table.extend({"x": [1, 2], "reward": [0.0, 0.0]}, return_keys=True)
            >>> table.update(keys, reward=[0.5, 1.5])
            UpdateResult(applied=2, stale=0)
            >>> table.rows(keys)["reward"].tolist()
            [0.5, 1.5]
        """
        given = {**(values or {}), **columns}
        key_array = as_keys(keys)
        n = len(key_array)
        names = self.schema.names
        indices: list[int] = []
        arrays: list[Any] = []
        for name, numbers in given.items():
            column = self.schema.column(name)
            if not column.mutable or column.values_name is not None:
                can = ", ".join(c.name for c in self.schema.valued if c.mutable) or "none"
                raise ConfigError(
                    f"column {name!r} of table {self.name!r} is not mutable; {can} can be rewritten. Declare it: "
                    f"Column({name!r}, {str(column.dtype)!r}, mutable=True)"
                )
            indices.append(names.index(name))
            of = self._categories.get(name)
            arrays.append(rows.buffer(as_rows(column, numbers, n) if of is None else of.encode(numbers, n)))
            if column.nullable:  # behind the number: who finds it valid finds the number too
                indices.append(names.index(column.validity.name))
                arrays.append(np.ones(n, np.bool_))
        if not given:
            raise ConfigError("update() got no columns: give table.update(keys, column=numbers)")
        self._start_movers()  # which find out whether the disk takes them
        applied, stale = self._native.rewrite(key_array, n, indices, arrays)
        return UpdateResult(applied, stale)

    def use_reward(self, function: Callable[[Any, Any], Any], *, window: str | None = None) -> None:
        """Give the reward function of a Hindsight window, in this process, instead of importing it by its name.

        `window`: as in `sample`; the first Hindsight window if None.

        Raises:
            ConfigError: it is no Hindsight window, or there is none. UnknownWindow: says which there are.
        """
        readers = self._readers.values() if window is None else [self._reader(window)]
        found = next((reader.relabelling for reader in readers if reader.relabelling is not None), None)
        if found is None or not callable(function):
            what = f"window {window!r}" if window is not None else "a window"
            raise ConfigError(f"use_reward({function!r}): give a function, and {what} of kind Hindsight needs it")
        found.use(function)

    def priorities(self, keys: Any, *, window: str | None = None) -> npt.NDArray[np.float32]:
        """Return the priorities of rows as they were given, float32 (n,) for `keys` uint64 (n,).

        `window`: whose priorities, as in `sample`; 1 where it is sampled uniformly.

        NaN where the row is gone; also where it was appended without a priority and its window is not complete
        yet: the default, the largest priority of the live rows, is filled in when it is.
        """
        key_array = as_keys(keys)
        return np.array(self._native.priorities(self._view(window).index, key_array, len(key_array)), np.float32)

    @property
    def limiter(self) -> Limiter:
        """The limiter in force: as created, or as `reconfigure` left it."""
        return limiting.in_force(self._spec.limiter, self._native.settings())

    def can_sample(self, n: int, *, window: str | None = None) -> bool:
        """Return whether `sample(n)` would go through now. Counts nothing and holds nothing: another may be quicker.

        Raises:
            ValueError: n < 1. UnknownWindow: says which there are. StoreClosed: the store was closed here.
        """
        return self._native.can_sample(self._view(window).index, whole_number("n", n, 1, (1 << 31) - 1))

    def can_insert(self, n: int) -> bool:
        """Return whether the limiter would let `n` rows in now, without a wait. Counts nothing and holds nothing.

        Raises:
            ValueError: n < 1. StoreClosed: the store was closed here.
        """
        return self._native.can_insert(whole_number("n", n, 1, (1 << 31) - 1))

    def reconfigure(
        self,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        eps: float | None = None,
        min_size: int | None = None,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        queue_capacity: int | None = None,
        max_times_sampled: int | None = None,
        window: str | None = None,
    ) -> None:
        """Change settings for every process at once: all that is given, or nothing. Who waits obeys the new ones.

        A new alpha or eps re-weighs all rows. A new `samples_per_insert` is for the inserts to come: the cursor stays
        where it is. A lower `max_times_sampled` lets rows leave at once that have been drawn as often.
        Which kind of limiter a table has, and whether it counts how often a row is sampled, is chosen at creation.

        `window`: whose alpha, beta and eps, as in `sample`; all else is the table's.

        Raises:
            ConfigError: a number that is not allowed, that contradicts another or that this table does not have.
            UnknownWindow: says which there are. ReadOnlyStore, StoreClosed: this attach cannot change the table.
        """
        core, spec, view = self._native, self._spec, self._view(window)
        by_priority = isinstance(view.sampler, Prioritized)
        if not by_priority and not (alpha is beta is eps is None):
            what = f"table {self.name!r}" if window is None else f"window {view.name!r} of table {self.name!r}"
            raise ConfigError(f"{what} is not sampled by priority: it has no alpha, beta or eps to change")
        if beta is not None and isinstance(view.sampler, Prioritized) and isinstance(view.sampler.beta, Schedule):
            raise ConfigError(f"beta of table {self.name!r} follows {view.sampler.beta}: it cannot be set as well")
        if isinstance(beta, Schedule):
            raise ConfigError(f"beta is {beta}: a schedule is given to the sampler, at create_table")
        if max_times_sampled is not None and spec.max_times_sampled is None:
            raise ConfigError(f"table {self.name!r} was created without max_times_sampled: it counts no deliveries")
        self._check_writable()
        while True:
            settings = core.settings()
            chances = settings.view(view.index)
            chances.alpha = real_number("alpha", chances.alpha if alpha is None else alpha, 0.0, 4.0)
            chances.beta = real_number("beta", chances.beta if beta is None else beta, 0.0, 1.0)
            chances.eps = real_number("eps", chances.eps if eps is None else eps, 0.0, 1e30)
            limiter = limiting.changed(
                limiting.in_force(spec.limiter, settings), min_size=min_size, samples_per_insert=samples_per_insert,
                error_buffer=error_buffer, queue_capacity=queue_capacity,
            )  # fmt: skip
            times = (settings.max_times or None) if max_times_sampled is None else max_times_sampled
            limiting.put(limiter, limiting.check(limiter, self.max_size, times, self.name), settings)
            if core.reconfigure(settings):
                return  # else another process has changed something meanwhile

    def clear(self) -> None:
        """Drop every row. Keys of dropped rows stay stale for ever.

        An open episode goes on with its writer's next append, as one whose first rows have been evicted: what comes is
        not its beginning.
        """
        self._check_writable()
        self._native.clear()

    def blocks(self) -> list[BlockView]:
        """Return the blocks that hold live rows, oldest first, each pinned. See `block`.

        A process may have 2,048 views of blocks at a time. Of tables of more blocks `iter_blocks` has one at a time.

        Raises:
            CapacityError: more than the views that this process may still take; none is kept.
            ConfigError: the table's remover takes rows out one by one, and so it has no blocks of several rows.
        """
        views: list[BlockView] = []
        try:
            views.extend(self.iter_blocks())
        except CapacityError as error:
            views.clear()  # which the error would keep
            count = len(self._native.live_blocks())
            raise CapacityError(
                f"table {self.name!r} has {count:,} blocks, and {error}. Iterate over table.iter_blocks(), which pins "
                "one at a time"
            ) from error
        return views

    def iter_blocks(self) -> Iterator[BlockView]:
        """Iterate over the blocks that held live rows at the call, oldest first; each is pinned when its turn comes.

        A view lets go of its block when it and all made from it are gone. Blocks that are evicted before their turn are
        left out.

        Raises:
            ConfigError: as in `blocks`.
        """
        self._check_blocks()
        return self._pinned(self._native.live_blocks())

    def _pinned(self, blocks: list[int]) -> Iterator[BlockView]:
        for index in blocks:
            with contextlib.suppress(StaleKey):  # its last row was evicted meanwhile
                yield self.block(index)

    def block(self, index: int) -> BlockView:
        """Return block `index`, pinned: its bytes stay in place until the view and all made from it are gone.

        A pinned block is not reused; a writer that finds no other waits, and then says who holds it.

        Raises:
            StaleKey: the block holds no live row. ConfigError: as in `blocks`.
        """
        self._check_blocks()
        return BlockView(index, self.schema, self._layout, self._native.pin_block(index), self._categories)

    def export(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,
        *,
        compression: str | None = None,
        overwrite: bool = False,
        progress: bool | Callable[[int, int | None], None] = False,
    ) -> int:
        """Write the rows to a file or folder that others read, oldest first; return how many.

        `format`: "parquet", "arrow" (IPC file), "arrow-stream", "numpy" (.npz), "minari", "rllib" or "tensordict"; by
        the path's suffix if None. `compression`: the format's own name of one, "none", or what is good for it if None.
        `progress`: True shows a bar on stderr; a function is called with rows done, and of how many.
        Columns, dtypes and shapes are the table's, bools are bools. Steps of episodes also get `episode` and `step`
        (int64), and `final_obs`, null but where an episode stops: no row of its own, so that rows are steps. With
        priorities, `priority` are those of the first window that has some. See `conduit.exchange.frame`.

        Other processes go on. The rows are those that were there at the call; each is whole; those that are evicted
        before their turn are left out. An episode whose beginning has been evicted begins with what is left. Memory
        stays bounded whatever the table holds (some pieces of 32 MiB). The file is written aside and renamed when it is
        whole.

        Example:
            >>> table.export("replay.parquet")
            50_000
            >>> duckdb.sql("select episode, sum(reward) from 'replay.parquet' group by episode")

        Raises:
            NameTaken: the path is there, and `overwrite` is false. ConfigError: no such format, folder or compression.
            MissingExtra: the format needs a package; names the extra. StoreClosed, LockTimeout: see `sample`.
        """
        from conduit.exchange import transfer

        return transfer.export(self, path, format, compression=compression, overwrite=overwrite, progress=progress)

    def to_arrow(self) -> pa.RecordBatchReader:
        """Return the rows as a stream of Arrow record batches, in the form and with the promises of `export`.

        Example:
            >>> rows = table.to_arrow()
            >>> duckdb.sql("select max(reward) from rows")
        """
        from conduit.exchange import transfer

        return transfer.reader(self)

    def to_numpy(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all rows as arrays by name, as `export` writes them to .npz files (`conduit.exchange.npz`).

        `final_obs` has only the rows of ended episodes, and `final_row` says to which rows they belong.
        """
        from conduit.exchange import transfer

        return transfer.arrays(self)

    def to_tensordict(self) -> TensorDict:
        """Return copies of all rows as a TensorDict in TorchRL's layout (`conduit.exchange.tensordicts`).

        Raises:
            MissingExtra: tensordict is not installed. ConfigError: a table without episodes, or a dtype torch lacks.
        """
        from conduit.exchange import transfer

        return transfer.tensordict(self)  # type: ignore[no-any-return, unused-ignore]

    def import_from(
        self,
        source: Any,
        format: str | None = None,
        *,
        rename: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
        progress: bool | Callable[[int, int | None], None] = False,
    ) -> int:
        """Append the rows of a file or folder, or of what is in memory; return how many.

        `source`: a path; or a mapping of arrays, Arrow data (of pandas, Polars or DuckDB too), a TensorDict. `format`:
        as of `export`; told by suffix and content if None. `rename`: columns by their names there, such as
        `{"observations": "obs"}`. Columns that the table does not have are left out. `timeout`: seconds that an append
        may wait for space and for the limiter.
        Where the table has episodes: rows belong together by `episode`, in the order of `step`; without it all are of
        one environment. An episode ends with a row that has a `final_obs`; or a `next_obs`, where it is terminated or
        truncated. One that just stops keeps its steps, and the last is never drawn.
        Other processes go on, and see rows as they come. Memory stays bounded. What is in when it raises stays.

        Raises:
            SourceNotFound, ExchangeError: no such file; damaged, cut off, or of another format.
            MissingColumn: a column of the table is not there. DtypeMismatch, ShapeMismatch: does not fit, or a null;
                says where. EpisodeError: steps in another order, or an end without its final observation; with the row.
            ConfigError, MissingExtra, PriorityError, AppendTimeout, ReadOnlyStore, StoreClosed: as they say.
        """
        from conduit.exchange import transfer

        return transfer.import_from(self, source, format, rename=rename, timeout=timeout, progress=progress)

    def info(self, *, window: str | None = None) -> TableMetrics:
        """Return the table's counts, times and sizes.

        `window`: of which ready rows and priorities are told, as in `sample`; all else is of the table as a whole.

        Raises:
            UnknownWindow: says which there are.
        """
        core = self._native
        told, tier = core.info(self._view(window).index), core.tier() if self._disk is not None else None
        return TableMetrics.from_native(
            self.name, self.max_size, self._spec.limiter, core.data_bytes, core.control_bytes, told, tier
        )

    def histogram(self, what: str, *, bins: int | Sequence[float] = 20, window: str | None = None) -> Histogram:
        """Return how a number is spread over the live rows: `counts` int64 (bins,), `edges` float64 (bins + 1,).

        `what`: "priority" as given (of `window`, as in `sample`), "age" (rows appended since, in eviction order),
        "times_sampled" (where the table counts it), or a column of single numbers. `bins`: how many equal ones between
        the least and the largest, or their edges.
        Rows whose number is not finite are left out: a priority that was not given is not known before the row's
        window is complete. Final observations are no rows. A copy of the numbers is made: the table's lock is held
        for some milliseconds a million rows, all else holds up nobody.

        Example:
            >>> counts, edges = table.histogram("age", bins=10)

        Raises:
            UnknownColumn: says what there is. UnknownWindow: says which there are.
            ConfigError: a column of arrays, priorities or counts that the table does not keep, bins that are not
                allowed.
        """
        return histogram(self._native, self._spec, what, bins, self._view(window))

    def verify(self) -> None:
        """Recompute everything that is derived (leaves, sums, counts) and compare. Takes milliseconds a million rows.

        Raises:
            ConduitError: what disagrees.
        """
        wrong = self._native.verify()
        if wrong:
            raise ConduitError(f"table {self.name!r} is not consistent: {'; '.join(wrong)}")

    def describe(self) -> str:
        """Return one line: rows, bytes, blocks."""
        layout, core = self._layout, self._native
        varies = bool(self.schema.ragged)
        most = "up to " if varies else ""
        blocks = f"{layout.blocks:,} blocks of {most}{layout.rows:,} rows ({layout.block_bytes / 1024:,.0f} KiB)"
        return (
            f"table {self.name!r}: {self.max_size:,} rows of {self.schema.row_bytes:,} bytes"
            f"{' in the mean' if varies else ''} in "
            f"{f'{layout.blocks:,} slots' if self._spec.slots else blocks}: "
            f"{core.data_bytes / 2**20:,.1f} MiB of rows, {core.control_bytes / 2**20:,.1f} MiB of index"
        )

    def _check_blocks(self) -> None:
        if self._spec.slots:
            raise ConfigError(
                f"table {self.name!r} takes rows out one by one ({self._spec.remover}), and so has no zero-copy "
                "blocks. Use table.rows(keys), which copies, or removers.Fifo()"
            )

    def _view(self, window: str | None) -> View:
        return find(self._spec.views, window, self.name)

    def _reader(self, window: str | None) -> Reader:
        if window is None and self._first is not None:
            return self._first
        return self._readers[self._view(window).name]

    def _check_writable(self) -> None:
        if self._store.read_only:
            raise ReadOnlyStore(
                f"store {self._store.name!r} is attached read-only: attach with read_only=False to change "
                f"table {self.name!r}"
            )

    def _populate(self, step: int = 16 << 20) -> None:
        """Touch the pages of the rows in the background, so that appends do not meet untouched ones.

        Those of large tables are put into huge pages meanwhile, and their index too: pages.hpp says why.
        """
        core, attachment = self._native, self._store._native
        offset, end = core.data_offset, core.data_offset + core.data_bytes
        join = core.data_bytes >= _HUGE_PAGES_FROM

        def populate() -> None:
            with contextlib.suppress(StoreClosed):
                for at in range(0, core.control_bytes if join else 0, step):
                    if _exiting.is_set():
                        return
                    core.join_index(at, step)
                for at in range(offset // step * step, end, step):
                    if _exiting.is_set():
                        return
                    first = max(at, offset)
                    attachment.populate(first, min(at + step, end) - first, join)

        self._populating = threading.Thread(target=populate, name=f"conduit-populate-{self.name}", daemon=True)
        _populators.add(self._populating)
        self._populating.start()

    def _close_loaders(self) -> None:
        for loader in list(self._loaders):
            loader.close()

    def _start_movers(self) -> None:
        if self._disk is not None:
            self._disk.start()

    def _close(self) -> None:
        if self._populating is not None:
            self._populating.join()  # it stops at its next slice
        if self._disk is not None:
            self._disk.stop()
        self._extender.close()
        if self._spec.queue is not None:
            with contextlib.suppress(LockTimeout, StoreClosed):  # a stopped process has the lock: time ends them
                self._native.end_leases()
        for reader in self._readers.values():
            reader.close()
        self._native.close()

    def __reduce__(self) -> tuple[Any, tuple[str, bool, str]]:
        return _shared_table, (self._store.name, self._store.read_only, self.name)

    def __repr__(self) -> str:
        if self._store.closed:
            return f"<Table {self.name!r} of a closed store>"
        info = self.info()
        share = info.rows / self.max_size
        return f"<Table {self.name!r} {share:.0%} of {self.max_size:,} rows, {info.blocks_pinned} blocks pinned>"


def _shared_table(store: str, read_only: bool, name: str) -> Table:
    from conduit.store import _shared

    return _shared(store, read_only).table(name)
