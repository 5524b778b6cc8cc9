"""A table: rows of one schema, appended by writers, sampled by readers, in any process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from conduit.batch import Batch
from conduit.loader import Loader, LoaderSettings
from conduit.table_inspection import TableInspection
from conduit.table_settings import TableSettings
from conduit.table_updates import TableUpdates, UpdateResult
from conduit.values import as_keys
from conduit.writer import VectorWriter, Writer
from conduit_store.errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa
    from tensordict import TensorDict

__all__ = ["Table", "UpdateResult"]


class Table(TableUpdates, TableSettings, TableInspection):
    """A table as this process sees it; from `store.create_table` or `store.table`. Safe in any thread.

    Pickled by name: in another process it attaches again.
    """

    # Here: rows in and out. The other methods are in the base classes, by subject; those do not use each other, and all
    # stand on table_handle.py.

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

    def rows(self, keys: Any, *, window: str | None = None) -> Batch:
        """Copy out the windows of given rows, in the order of `keys` (uint64). `window`: as in `sample`.

        Nothing is drawn: the batch's probabilities are NaN and its weights 1.

        Raises:
            StaleKey: a row is gone or not complete yet; names the first. UnknownWindow: says which there are.
        """
        return self._reader(window).read(as_keys(keys))

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
