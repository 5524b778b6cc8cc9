"""Functions by reference: a store keeps "module:function", never code."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from conduit_store.errors import ConfigError

__all__ = ["load", "name_of"]


def name_of(function: Any) -> str:
    """Return a function as "module:function", by which other processes find it too.

    Raises:
        ConfigError: neither a function of a module nor such a name.
    """
    if isinstance(function, str):
        module, _, name = function.partition(":")
    else:
        module, name = str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))
    if not module or not name or (not isinstance(function, str) and not callable(function)):
        raise ConfigError(f"reward is {function!r}: give a function, or 'module:function'")
    if "<" in name:  # a lambda, or a function within another
        raise ConfigError(
            f"reward is {module}:{name}, which no other process could find: give a function of a module, or any name "
            "of the form 'module:function' and in each process table.use_reward(function)"
        )
    return f"{module}:{name}"


def load(reference: str, where: str) -> Callable[..., Any]:
    """Return the function of that name.

    Raises:
        ConfigError: this process has none; says how to give it.
    """
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"reward function {reference!r} of {where} cannot be imported in this process ({error}): "
            "give it by table.use_reward(function)"
        ) from error
    if not callable(found):
        raise ConfigError(f"reward function {reference!r} of {where} is {found!r}: it cannot be called")
    return found  # type: ignore[no-any-return]
