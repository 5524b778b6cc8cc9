"""How the keys of a TensorDict and the columns of a table belong together.

Plain rows (a table without windows over episodes): each entry is a column, ("next", "reward") is "next/reward", shapes
and all. Steps of episodes (`obs`, `reward`, `terminated`, `truncated`): observations are stored once, and

    obs, obs/<name>                    observation[, <name>]
    next_obs, next_obs/<name>          next, observation[, <name>]
    reward, terminated, truncated      next, <name>: (rows, 1)
    n_step                             steps_to_next_obs: (rows, 1); what TorchRL's value estimators discount by
    a, a/b                             a; a, b

and `done` beside `terminated` is made of both flags. The same names as in `conduit.exchange.tensordicts`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from conduit.views import View
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError, MissingColumn, SchemaError
from conduit_store.schema import Schema

__all__ = ["Keys", "schema_of"]

Key = tuple[str, ...]
_ENDS = ("terminated", "truncated")
_ONE = ("reward", *_ENDS)  # numbers that TorchRL keeps as (rows, 1)
_TRAJ: Key = ("collector", "traj_ids")
_OURS = ("index", "priority_weight")  # what a buffer puts into a TensorDict beside its rows


def schema_of(rows: TensorDictBase, without: set[Key]) -> Schema:
    """Return a schema of plain rows like these, but for the entries `without`.

    Raises:
        SchemaError: an entry that is no tensor, of a dtype that NumPy lacks, or nothing to store.
    """
    example: dict[str, Any] = {}
    for key, value in _entries(rows).items():
        if key in without or key[0] in _OURS:
            continue
        if not isinstance(value, torch.Tensor):
            raise SchemaError(f"entry {key} is a {type(value).__name__}: rows are stored as tensors")
        example["/".join(key)] = np.zeros(value.shape[1:], _numpy(key, value[:0]).dtype)
    if not example:
        raise SchemaError("the TensorDict has no entry: there is nothing to make columns of")
    return Schema.from_example(example)


class Keys:
    """The keys of one window of a table."""

    def __init__(self, schema: Schema, view: View) -> None:
        if view.many:
            raise ConfigError(
                f"window {view.name!r} gives {view.window}: sequences have no place among TorchRL's transitions. "
                "Give the buffer a window of rows, transitions, n steps or frame stacks, or use table.sample"
            )
        self._schema = schema
        self._steps = view.episodic
        self._names = {key: name for name in schema.names if (key := self.key(name))}

    def key(self, name: str) -> Key:
        """The key of a column of a batch."""
        parts = tuple(name.split("/"))
        if not self._steps:
            return parts
        match parts[0]:
            case "obs":
                return ("observation", *parts[1:])
            case "next_obs":
                return ("next", "observation", *parts[1:])
            case "n_step":
                return ("steps_to_next_obs",)
            case "reward" | "terminated" | "truncated":
                return ("next", *parts)
            case _:
                return parts

    def tensordict(self, tensors: dict[str, torch.Tensor], n: int) -> TensorDict:
        """Return a batch's tensors by key. Shares their memory."""
        made = TensorDict({}, [n])
        for name, tensor in tensors.items():
            if self._steps and name in (*_ONE, "n_step") and tensor.ndim == 1:
                tensor = tensor[:, None]
            made[self.key(name)] = tensor
        if self._steps:
            made["next", "done"] = made["next", "terminated"] | made["next", "truncated"]
        return made

    def columns(self, rows: TensorDictBase) -> dict[str, Any]:
        """Return the columns of rows as `table.extend` takes them. Entries that are no column are left out.

        Steps of episodes are those of one environment after the other: `rows` has batch size [n], or [environments, n].
        Where one environment's steps stop, and the next row is not what they led to, the episode is cut as TorchRL
        cuts it: the last step counts as truncated.

        Raises:
            MissingColumn: an entry is not there. ConfigError: another batch size.
        """
        if rows.ndim != 1 and not self._steps:
            sizes = list(rows.batch_size)
            raise ConfigError(f"rows of batch size {sizes}: give [n], as rows.reshape(-1) is")
        cuts = self._cuts(rows)
        entries = _entries(rows.reshape(-1))
        columns: dict[str, Any] = {}
        for key, name in self._names.items():
            if key not in entries:
                raise MissingColumn(f"column {name!r} is not there: it is the entry {key}")
            columns[name] = self._stored(name, key, entries[key])
        if self._steps:
            columns["truncated"] = columns["truncated"] | (cuts & ~columns["terminated"])
            for column in self._schema.obs:
                key = ("next", *self.key(column.name))
                if key not in entries:
                    raise MissingColumn(f"what the steps led to is not there: the entry {key}")
                columns[f"next_{column.name}"] = entries[key]
        return columns

    def _stored(self, name: str, key: Key, value: Any) -> Any:
        if not self._steps or name not in _ONE:
            return value
        array = _numpy(key, value)
        return array.reshape(len(array), *self._schema.column(name).shape)

    def _cuts(self, rows: TensorDictBase) -> Array:
        """Whether what a step led to is not in the row behind it: where environments or trajectories change."""
        cuts = np.zeros(rows.numel(), np.bool_)
        if not self._steps or not len(cuts):
            return cuts
        if rows.ndim > 1:
            cuts[rows.shape[-1] - 1 :: rows.shape[-1]] = True
        trajectories = rows.get(_TRAJ, None)
        if trajectories is not None:
            numbers = _numpy(_TRAJ, trajectories).reshape(-1)
            cuts[:-1] |= np.diff(numbers) != 0
        return cuts


def _entries(rows: TensorDictBase) -> dict[Key, Any]:
    entries = rows.items(True, True, is_leaf=is_leaf_nontensor)
    return {(key,) if isinstance(key, str) else tuple(key): value for key, value in entries}


def _numpy(key: Key, value: torch.Tensor) -> Array:
    try:
        array: Array = value.detach().cpu().numpy()
    except TypeError as error:
        raise SchemaError(f"entry {key} is {value.dtype}, which NumPy does not have: convert it first") from error
    return array
