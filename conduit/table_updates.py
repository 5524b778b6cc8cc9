"""Rows of a table changed where they are: priorities, mutable columns; and all of them dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conduit import rows
from conduit.samplers import Prioritized
from conduit.table_handle import TableHandle
from conduit.values import as_array, as_keys, as_priorities, as_sequence_priorities, real_number
from conduit_store.errors import ConfigError
from conduit_store.values import as_rows

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["TableUpdates", "UpdateResult"]


class UpdateResult(NamedTuple):
    """What an update did: `applied` to live rows, `stale` for rows that were gone."""

    applied: int
    stale: int


class TableUpdates(TableHandle):
    """The methods of `Table` that change rows which are there."""

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

    def priorities(self, keys: Any, *, window: str | None = None) -> npt.NDArray[np.float32]:
        """Return the priorities of rows as they were given, float32 (n,) for `keys` uint64 (n,).

        `window`: whose priorities, as in `sample`; 1 where it is sampled uniformly.

        NaN where the row is gone; also where it was appended without a priority and its window is not complete
        yet: the default, the largest priority of the live rows, is filled in when it is.
        """
        key_array = as_keys(keys)
        return np.array(self._native.priorities(self._view(window).index, key_array, len(key_array)), np.float32)

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
        applied, stale = self._native.rewrite(key_array, n, indices, arrays)
        return UpdateResult(applied, stale)

    def clear(self) -> None:
        """Drop every row. Keys of dropped rows stay stale for ever.

        An open episode goes on with its writer's next append, as one whose first rows have been evicted: what comes is
        not its beginning.
        """
        self._check_writable()
        self._native.clear()
