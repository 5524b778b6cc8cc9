"""Schemas: what one row of a table holds, and where a schema can come from.

Only NumPy is imported here; pyarrow and gymnasium are imported by the constructors that need them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .column import Column, shown
from .errors import SchemaError, UnknownColumn, did_you_mean

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["Column", "Schema"]


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order. Immutable, hashable, equal by value, pickled by value.

    Before each nullable column a validity column is put where it is not among those given, see Column.

    Raises:
        SchemaError: no column, two columns with the same name, or a validity column of none that is nullable.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _with_validity(_checked(self.columns)))
        if not self.columns:
            raise SchemaError("a schema with 0 columns cannot hold rows. Give at least 1 column")
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(f"column {name!r} is given {names.count(name)} times. Give each name once")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns; of rows that vary in length the mean, as planned."""
        return sum(column.row_bytes + math.ceil(column.mean_bytes) for column in self.columns)

    @cached_property
    def ragged(self) -> tuple[Column, ...]:
        """The columns whose rows vary in length."""
        return tuple(column for column in self.columns if column.ragged)

    @cached_property
    def nullable(self) -> tuple[Column, ...]:
        """The columns whose rows may be null."""
        return tuple(column for column in self.columns if column.nullable)

    @cached_property
    def valued(self) -> tuple[Column, ...]:
        """The columns but those that say which rows of others are null: what Arrow data has, which says it itself."""
        return tuple(column for column in self.columns if column.values_name is None)

    def with_values(self, values: Mapping[str, Sequence[str]]) -> Schema:
        """Return the schema with other `values` of columns of categories, by name."""
        columns = (replace(c, values=tuple(values[c.name])) if c.name in values else c for c in self.columns)
        return Schema(tuple(columns))

    @cached_property
    def obs(self) -> tuple[Column, ...]:
        """The columns named 'obs' or below 'obs/'."""
        return tuple(c for c in self.valued if _in_role(c.name, "obs"))

    @cached_property
    def is_episodic(self) -> bool:
        """Whether rows are steps of episodes.

        True with observation columns, a reward, `terminated` and `truncated` (bool, one a row), and no
        `next_obs`: the next observation is then found in the next row. Otherwise rows are stored and returned
        as they are.
        """
        by_name = self._by_name
        ends = [by_name.get(name) for name in ("terminated", "truncated")]
        return (
            bool(self.obs)
            and "reward" in by_name
            and all(c is not None and c.dtype == np.bool_ and c.shape == () for c in ends)
            and not any(_in_role(name, "next_obs") for name in self.names)
        )

    def column(self, name: str) -> Column:
        """Return the column called `name`.

        Raises:
            UnknownColumn: there is none; says which there are and the closest.
        """
        try:
            return self._by_name[name]
        except (KeyError, TypeError):  # of a name that cannot be hashed
            hint = did_you_mean(name, self.names)
            raise UnknownColumn(f"no column {name!r}; the schema has {', '.join(self.names)}.{hint}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __reduce__(self) -> tuple[type[Schema], tuple[tuple[Column, ...]]]:
        return Schema, (self.columns,)  # without the cached values

    @classmethod
    def from_spaces(
        cls, observation_space: object, action_space: object, *, reward_dtype: npt.DTypeLike = np.float32
    ) -> Schema:
        """Make an episodic schema from the gymnasium spaces of one environment.

        Columns: obs (nested: obs/camera, obs/0/camera), action (or action/...), reward of `reward_dtype`,
            terminated and truncated (bool). Box, Discrete, MultiDiscrete, MultiBinary and nested Dict and
            Tuple have a fixed width and are taken.

        Raises:
            SchemaError: a space without a fixed width (Text, Graph, Sequence, ...), or not a gymnasium space.
            MissingExtra: gymnasium is not installed.
        """
        from .spaces import columns_of_space

        return cls(
            (
                *columns_of_space("obs", observation_space),
                *columns_of_space("action", action_space),
                Column("reward", np.dtype(reward_dtype)),
                Column("terminated", np.dtype(np.bool_)),
                Column("truncated", np.dtype(np.bool_)),
            )
        )

    @classmethod
    def from_example(cls, example: Mapping[str, object]) -> Schema:
        """Make a schema from one row: a mapping of names to arrays, scalars or tensors, nested as deep as you
        like.

        Dtypes are taken as they are. A Python float becomes float64, an int int64, a bool bool. One row does not
        tell whether others are as long: columns whose rows vary in length are given by hand,
        `Schema((Column("tokens", "int32", (None,), mean_length=512), ...))`.

        Raises:
            SchemaError: a name that is not allowed; DtypeMismatch, ShapeMismatch, ValueOutOfRange: a value
                that no column holds.
        """
        from .values import example_array

        arrays = {name: example_array(name, value) for name, value in cls.flatten(example).items()}
        return cls(tuple(Column(name, array.dtype, array.shape) for name, array in arrays.items()))

    @classmethod
    def from_arrow(
        cls, schema: pa.Schema, *, mean_lengths: Mapping[str, float] | None = None, nullable: Iterable[str] = ()
    ) -> Schema:
        """Make a schema from Arrow fields.

        bool and arrow.bool8 become bool; fixed-size lists and fixed-shape tensors, nested too, become a
        shape. Lists, strings and binary, large ones and views too, become columns whose rows vary in length; a
        dictionary of strings becomes categories (where `mean_lengths` names it, strings), any other what it stands for.
        Arrow marks every field nullable unless told otherwise: that says nothing about its data, so columns are
        nullable where `nullable` names them. Metadata is not kept.
        `mean_lengths`: of columns whose rows vary in length, see Column.

        Raises:
            DtypeMismatch: a type that no column holds, or that NumPy cannot hold exactly; names the field.
            UnknownColumn: `mean_lengths` or `nullable` names none.
            SchemaError, ShapeMismatch: a name, a length or a shape that is not allowed.
            MissingExtra: pyarrow is not installed.
        """
        from .arrow import column_of_field

        lengths = dict(mean_lengths or {})
        may = set(nullable)
        columns = [column_of_field(field, lengths.pop(field.name, None)) for field in schema]
        made = cls(tuple(replace(column, nullable=column.name in may) for column in columns))
        for name in (*lengths, *may):
            made.column(name)  # raises
        return made

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema of a block.

        Fields are nullable where columns are; a bool is an arrow.bool8, a shape an arrow.fixed_shape_tensor. Rows that
        vary in length are a large_list, large_string or large_binary: of 64-bit offsets. Categories are a dictionary of
        strings.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        return self._arrow

    def to_json(self) -> str:
        """Return the schema as JSON, from which `from_json` makes an equal one."""
        columns = [{"name": c.name, "dtype": c.dtype_name, "shape": list(c.shape), **c.options} for c in self.columns]
        return json.dumps({"columns": columns})

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Make the schema that `to_json` wrote.

        Raises:
            SchemaError: not JSON, a missing or unknown field, or columns that are not allowed.
        """
        try:
            document = json.loads(text)
            if set(document) != {"columns"}:
                raise SchemaError(f"schema JSON has the fields {sorted(document)}, expected only 'columns'")
            return cls(tuple(Column(**{**fields, "shape": tuple(fields["shape"])}) for fields in document["columns"]))
        except SchemaError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise SchemaError(
                f"{str(text)[:60]!r} is not a schema ({error}). Give the text that Schema.to_json returned"
            ) from error

    @staticmethod
    def flatten(mapping: Mapping[str, Any]) -> dict[str, object]:
        """Return nested mappings and tuples as one dict, with names such as 'obs/camera' and 'obs/0'.

        Lists are values, not nesting.

        Raises:
            SchemaError: a key that is not a string, or two values with the same flat name.
        """
        if not isinstance(mapping, Mapping):
            raise SchemaError(f"got a {type(mapping).__name__}: give a mapping of column names to values")
        flat: dict[str, object] = {}
        for name, value in mapping.items():
            if not isinstance(name, str):
                raise SchemaError(f"column name {name!r} is a {type(name).__name__}. Use a string")
            if isinstance(value, tuple):
                value = {str(index): element for index, element in enumerate(value)}
            entries = _flat_below(name, value) if isinstance(value, Mapping) else {name: value}
            for full_name, leaf in entries.items():
                if full_name in flat:
                    raise SchemaError(f"column {full_name!r} is given 2 times, once nested. Give each name once")
                flat[full_name] = leaf
        return flat

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def _arrow(self) -> pa.Schema:
        from .arrow import schema_to_arrow

        return schema_to_arrow(self)


def _checked(columns: Any) -> tuple[Column, ...]:
    given = tuple(columns) if isinstance(columns, list | tuple) else (columns,)
    for column in given:
        if not isinstance(column, Column):
            raise SchemaError(
                f"a schema consists of Columns, got {shown(column)}. Give Schema((Column('x', 'float32'), ...)), or "
                "use Schema.from_example"
            )
    return given


def _with_validity(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Put a validity column right before each column that needs one: the one given, or a new one.

    Before, so that whoever copies a row's columns in their order has its validity first: a number that is written after
    it was null is written before its validity is, see `Table.update`.
    """
    given = {of: column for column in columns if (of := column.values_name) is not None}
    whole: list[Column] = []
    for column in columns:
        if column.nullable:
            whole.append(given.pop(column.name) if column.name in given else column.validity)
        if column.values_name is None:
            whole.append(column)
    for orphan in given.values():
        raise SchemaError(f"column {orphan.name!r} belongs to a nullable column, which there is none of. Leave it out")
    return tuple(whole)


def _flat_below(name: str, value: Mapping[str, Any]) -> dict[str, object]:
    return {f"{name}/{below}": leaf for below, leaf in Schema.flatten(value).items()}


def _in_role(name: str, role: str) -> bool:
    return name == role or name.startswith(role + "/")
