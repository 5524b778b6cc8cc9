"""Writers: rows in, one by one or a vector environment's step at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from conduit import rows
from conduit.closing import Closing
from conduit.values import as_priorities, seconds, whole_number
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError, EpisodeError, MissingColumn
from conduit_store.ragged_values import as_ragged, as_ragged_row
from conduit_store.schema import Column, Schema
from conduit_store.values import as_row

if TYPE_CHECKING:
    import numpy.typing as npt

    from conduit.table import Table

__all__ = ["VectorWriter", "Writer"]

_MODES = ("next_step", "same_step", "disabled")


class _Base(Closing):
    """What both writers share: one native writer, closing, naming."""

    def __init__(self, table: Table, chains: int, timeout: float | None) -> None:
        self._table = table
        self._timeout = seconds(timeout)
        self._chain_count = chains
        self._prioritized = table.spec.prioritized
        self._name = table.name
        self._schema = table.schema
        self._nested = any("/" in name for name in table.schema.names)
        table._start_movers()
        self._native = rows.native_writer(table._native, table.spec, chains, table._categories)
        table._store._writers.add(self)

    def _flat(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        flat = Schema.flatten(columns) if self._nested else dict(columns)
        rows.check_names(flat, self._schema)
        return flat

    def _final_columns(self, final_obs: Any) -> dict[str, Any]:
        """A final observation under the names of the obs columns."""
        flat = Schema.flatten({"obs": final_obs}) if self._nested else {"obs": final_obs}
        wanted = [column.name for column in self._schema.obs]
        missing = [name for name in wanted if name not in flat]
        if missing:
            raise MissingColumn(f"final_obs lacks {', '.join(missing)}; give an observation as in append")
        return flat

    def _append(self, n: int, columns: list[Any], **given: Any) -> None:
        rows.append(self._native, self._table.spec, n, columns, timeout=self._timeout, **given)

    def _check_prioritized(self) -> None:
        if not self._prioritized:
            raise rows.not_prioritized(self._name)

    @property
    def closed(self) -> bool:
        """Whether the writer has been closed."""
        return self._native.closed

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        """Keys of the rows that the last append put in, uint64 (1,), of a VectorWriter (num_envs,): for `Table.update`.

        Empty before the first append, and after one that failed; `end` counts as an append.
        """
        return rows.last_keys(self._native)[: self._chain_count]

    def close(self) -> None:
        """Give the open block back. Episodes that have not ended are cut there. Idempotent, never waits."""
        self._native.close()


def _row(column: Column, value: Any) -> Any:
    """One row's value as `rows.buffer` takes it: a list of one where rows vary in length."""
    return [rows.buffer(as_ragged_row(column, value))] if column.ragged else as_row(column, value)


class Writer(_Base):
    """Appends the rows of one environment, or of none. From `table.writer()`; for one thread of one process.

    Pickled, it becomes a new writer of the same table: an open episode stays with the old one.
    """

    def __init__(self, table: Table, *, timeout: float | None = 10.0) -> None:
        super().__init__(table, 1, timeout)

    def append(self, /, *, priority: float | None = None, **columns: Any) -> None:
        """Append one row: a value for every column, nested observations as they come.

        It is visible to others at once; samplers draw it when its window is complete. `priority`: as given
        to update_priorities, in every prioritized window; else the default of each. Waits up to the writer's timeout
        for space and for the limiter; an append that timed out has left nothing and can be tried again.

        Raises:
            EpisodeError: the last row ended its episode and `end` has not been called.
            MissingColumn, UnknownColumn, ShapeMismatch, DtypeMismatch, ValueOutOfRange: nothing was appended.
            PriorityError: not finite or negative. AppendTimeout: says what holds the memory, or what the limiter lacks.
            StoreClosed: this writer or the store was closed. ForkedHandle: it belongs to the parent process.
        """
        if priority is not None:
            self._check_prioritized()
            priority = float(as_priorities([float(priority)], 1)[0])
        result = self._native.append_row(columns, priority, self._timeout)
        if result == 1:
            return
        if result == -1:
            self._append_converted(columns, priority)
        elif result == -2:
            raise EpisodeError(
                f"the last row appended to table {self._name!r} ended its episode: "
                "call end(final_obs) before the next append"
            )
        else:
            raise rows.timed_out(self._native, self._table.spec, self._timeout, 0, 1)

    def _append_converted(self, columns: Mapping[str, Any], priority: float | None) -> None:
        flat = rows.as_values(self._schema, self._flat(columns), self._table._categories)
        arrays = {column.name: _row(column, flat[column.name]) for column in self._schema.columns}
        flags = 0
        if self._table.spec.episodic:
            flags = rows.TERMINATED * bool(arrays["terminated"]) | rows.TRUNCATED * bool(arrays["truncated"])
        given = None if priority is None else np.array([priority], np.float32)
        self._append(1, [rows.buffer(a) for a in arrays.values()], flags=np.array([flags], np.uint8), priorities=given)
        self._native.ended = flags != 0

    def end(self, final_obs: Any) -> None:
        """Close the episode with the observation that its last step led to. It is stored, and never sampled.

        Needed after a row with terminated or truncated; on a running episode it ends it there, as truncation.

        Raises:
            EpisodeError: no step since the last end, or a table without episodes.
            ShapeMismatch, DtypeMismatch, ...: as in append; nothing was appended.
        """
        self._native.check()
        if not self._table.spec.episodic:
            raise EpisodeError(f"table {self._name!r} keeps rows, not episodes: leave end() out")
        if not self._native.chain_open(0):
            raise EpisodeError(f"end() without a step since the last one: append to table {self._name!r} first")
        flat = rows.as_values(Schema(self._schema.obs), self._final_columns(final_obs), self._table._categories)
        columns = [
            rows.buffer(_row(column, flat[column.name])) if column in self._schema.obs else None
            for column in self._schema.columns
        ]
        self._append(1, columns, flags=np.array([rows.FINAL], np.uint8))
        self._native.ended = False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _reopen, (self._table, None, "", self._timeout)

    def __repr__(self) -> str:
        return f"<Writer of table {self._name!r}{', closed' if self.closed else ''}>"


class VectorWriter(_Base):
    """Appends the steps of `num_envs` environments that step together. From `table.writer(num_envs=N)`.

    Rows go in step by step, environment by environment. Autoreset modes are gymnasium's:

    - "next_step": the call after an environment's end carries its final observation as `obs` and is no step
      (its action and reward are dropped); the episode after that begins with the following call;
    - "same_step": the call that ends an environment's episode must carry `final_obs`;
    - "disabled": after an end, `end(final_obs, mask)` must be called before the next append.
    """

    def __init__(
        self, table: Table, num_envs: int, *, autoreset: str = "next_step", timeout: float | None = 10.0
    ) -> None:
        num_envs = whole_number("num_envs", num_envs, 1, 1 << 20)
        if autoreset not in _MODES:
            raise ConfigError(f"autoreset is {autoreset!r}: give one of {', '.join(_MODES)}")
        if not table.spec.episodic:
            raise ConfigError(
                f"table {table.name!r} keeps rows, not episodes: use table.extend for whole batches of rows"
            )
        super().__init__(table, num_envs, timeout)
        self._n = num_envs
        self._mode = autoreset
        self._chains = np.arange(num_envs, dtype=np.int32)
        self._ended = np.zeros(num_envs, np.bool_)

    def append(self, /, *, final_obs: Any = None, priorities: Any = None, **columns: Any) -> None:
        """Append one step of every environment: arrays of shape (num_envs, *row_shape).

        `final_obs` ("same_step" only): what the ended environments' last steps led to, shape (num_envs, ...)
        or gymnasium's object array of one entry an environment; others are ignored. `priorities`: float (num_envs,).

        Raises:
            EpisodeError: an environment has ended and its final observation is missing.
            ConfigError: the limiter can never let so many environments' steps in together.
            And what `Writer.append` raises; nothing is appended then.
        """
        self._native.check()
        arrays, _ = rows.as_columns(self._schema, self._flat(columns), self._table._categories, self._n)
        if priorities is not None:
            self._check_prioritized()
        given = None if priorities is None else as_priorities(priorities, self._n)
        flags = (
            arrays["terminated"].astype(np.uint8) * rows.TERMINATED
            | arrays["truncated"].astype(np.uint8) * rows.TRUNCATED
        )
        if final_obs is not None and self._mode != "same_step":
            raise ConfigError(f"final_obs belongs to autoreset='same_step'; this writer was made for {self._mode!r}")
        if self._mode == "next_step":
            flags[self._ended] = rows.FINAL
            self._write(arrays, flags, given, self._chains)
            self._ended = (flags & (rows.TERMINATED | rows.TRUNCATED)) != 0
        elif self._mode == "same_step":
            self._same_step(arrays, flags, given, final_obs)
        else:
            if self._ended.any():
                raise EpisodeError(
                    f"environments {np.flatnonzero(self._ended).tolist()} have ended: "
                    "call end(final_obs, mask) before the next append"
                )
            self._write(arrays, flags, given, self._chains)
            self._ended = flags != 0

    def _same_step(self, arrays: dict[str, Array], flags: Array, priorities: Array | None, final_obs: Any) -> None:
        ended = np.flatnonzero(flags)
        if not len(ended):
            self._write(arrays, flags, priorities, self._chains)
            return
        if final_obs is None:
            raise EpisodeError(
                f"environments {ended.tolist()} have ended and final_obs is missing: pass infos['final_obs']"
            )
        finals = self._finals(final_obs, ended)
        joined = {c.name: rows.joined(c, [arrays[c.name], finals[c.name]]) for c in self._schema}
        flags = np.concatenate([flags, np.full(len(ended), rows.FINAL, np.uint8)])
        if priorities is not None:
            priorities = np.concatenate([priorities, np.zeros(len(ended), np.float32)])
        self._write(joined, flags, priorities, np.concatenate([self._chains, ended.astype(np.int32)]))

    def end(self, final_obs: Any, mask: Any = None) -> None:
        """Close the episodes of the environments in `mask` (bool (num_envs,); None: all that have ended).

        `final_obs` has shape (num_envs, ...), or is an object array of one entry an environment.

        Raises:
            EpisodeError: an environment in the mask has no step since its last end.
        """
        self._native.check()
        chosen = self._ended if mask is None else np.asarray(mask, np.bool_)
        if chosen.shape != (self._n,):
            raise ConfigError(f"mask has shape {chosen.shape}: give one bool an environment, ({self._n},)")
        envs = np.flatnonzero(chosen)
        idle = [int(env) for env in envs if not self._native.chain_open(int(env))]
        if idle:
            raise EpisodeError(f"environments {idle} have no step since their last end: leave them out of the mask")
        if len(envs):
            finals = self._finals(final_obs, envs)
            flags = np.full(len(envs), rows.FINAL, np.uint8)
            self._write(finals, flags, None, envs.astype(np.int32))
            self._ended = self._ended & ~chosen

    def _finals(self, final_obs: Any, envs: npt.NDArray[np.intp]) -> dict[str, Array]:
        """Rows that hold just the final observations of `envs`."""
        flat = self._final_columns(_by_column(final_obs, envs))
        return {
            column.name: self._chosen(column, flat[column.name], envs)
            if column in self._schema.obs
            else rows.blank(column, len(envs))
            for column in self._schema.columns
        }

    def _chosen(self, column: Column, values: Any, envs: npt.NDArray[np.intp]) -> Any:
        """The rows of `envs`, from those of all environments."""
        n, of = self._n, self._table._categories.get(column.name)
        objects = isinstance(values, np.ndarray) and values.dtype == object
        if objects or of is not None:
            if len(values) != n:
                raise ConfigError(f"final_obs has {len(values)} entries: give one an environment, {n}")
            given = [values[env] for env in envs]
            if of is not None:
                return of.encode(given)
            return as_ragged(column, given) if column.ragged else np.stack([as_row(column, value) for value in given])
        made = rows.as_column(column, values, n)
        return [made[env] for env in envs] if isinstance(made, list) else made[np.asarray(envs)]

    def _write(self, arrays: dict[str, Array], flags: Array, priorities: Array | None, chains: Array) -> None:
        columns = [rows.buffer(arrays[column.name]) for column in self._schema.columns]
        self._append(len(flags), columns, flags=flags, priorities=priorities, chains=chains, whole=True)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _reopen, (self._table, self._n, self._mode, self._timeout)

    def __repr__(self) -> str:
        return f"<VectorWriter of {self._n} environments, table {self._name!r}{', closed' if self.closed else ''}>"


def _by_column(final_obs: Any, envs: npt.NDArray[np.intp]) -> Any:
    """Gymnasium gives dict and tuple observations as one an environment; turn them into one dict of columns."""
    if not isinstance(final_obs, np.ndarray) or final_obs.dtype != object or not len(envs):
        return final_obs
    if not isinstance(final_obs[envs[0]], Mapping | tuple):
        return final_obs
    columns: dict[str, Array] = {}
    for env in envs:
        for name, value in Schema.flatten({"obs": final_obs[env]}).items():
            column = columns.setdefault(name.removeprefix("obs/"), np.empty(len(final_obs), object))
            column[env] = value
    return columns


def _reopen(table: Table, num_envs: int | None, mode: str, timeout: float | None) -> Writer | VectorWriter:
    if num_envs is None:
        return Writer(table, timeout=timeout)
    return VectorWriter(table, num_envs, autoreset=mode, timeout=timeout)
