"""Columns from gymnasium spaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from .column import Column
from .errors import MissingExtra, SchemaError

__all__ = ["columns_of_space"]


def columns_of_space(name: str, space: object) -> tuple[Column, ...]:
    """Return the columns that hold one element of `space`; nested spaces give names such as 'obs/camera' and
    'obs/0'.

    Raises:
        SchemaError: a space without a fixed width, an empty one, or not a gymnasium space; names where it is.
        MissingExtra: gymnasium is not installed.
    """
    try:
        from gymnasium import spaces
    except ImportError as error:
        raise MissingExtra(
            "Schema.from_spaces needs gymnasium, which is not installed. Run `pip install gymnasium`, or "
            "use Schema.from_example"
        ) from error

    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _nested(name, space)
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        assert space.shape is not None  # these four always have one
        return (Column(name, np.dtype(space.dtype), tuple(space.shape)),)
    if isinstance(space, spaces.Space):
        raise SchemaError(
            f"space {name!r} is a {type(space).__name__}, whose elements have no fixed width. Wrap the "
            "environment so that it is a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of "
            "these"
        )
    raise SchemaError(
        f"space {name!r} is a {type(space).__module__}.{type(space).__name__}, not a gymnasium space. Give "
        "env.observation_space and env.action_space of a gymnasium environment"
    )


def _nested(name: str, space: Any) -> tuple[Column, ...]:
    # gymnasium's Dict has keys and its Tuple positions; both iterate in a fixed order.
    parts = space.spaces.items() if hasattr(space.spaces, "items") else enumerate(space.spaces)
    columns = tuple(column for key, part in parts for column in columns_of_space(f"{name}/{key}", part))
    if not columns:
        raise SchemaError(f"space {name!r} is an empty {type(space).__name__}: there is nothing to store. Leave it out")
    return columns
