"""What batches of a window look like: the core's plan, and the schema that goes with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conduit import windows
from conduit.samplers import Prioritized
from conduit.views import View
from conduit_store.native import native
from conduit_store.schema import Column, Schema

__all__ = ["plan_of"]

# Where an output column comes from; the numbers are the core's (plan.hpp, Source).
_ROW, _SUCCESSOR, _N_STEP_SUM, _SEQUENCE, _FIRST, _STACK, _NEXT_STACK, _GOAL, _NEXT_GOAL, _AFTER = range(10)
_TERMINATED, _TRUNCATED, _DISCOUNT, _STEPS, _MASK, _RELABELLED = range(10, 16)
_STRATEGIES = {"future": 1, "final": 2, "episode": 3}  # plan.hpp, Hindsight

Outputs = list[tuple[Column, int, int]]  # column of the batch, source, column of the table


def plan_of(schema: Schema, view: View) -> tuple[native.Plan, Schema]:
    """Return the core's plan of a view's batches, and their schema."""
    window = view.window
    if isinstance(window, windows.Row):
        outputs = [(column, _ROW, index) for index, column in enumerate(schema.columns)]
    elif isinstance(window, windows.Sequence | windows.Episode):
        outputs = _sequence(schema, window)
    else:
        outputs = _steps(schema, window)
    sampler = view.sampler
    goals = window if isinstance(window, windows.Hindsight) else None
    plan = native.Plan(
        outputs=[(source, index, column.row_bytes) for column, source, index in outputs],
        view=view.index,
        before=window.burn_in if isinstance(window, windows.Sequence) else 0,
        steps=view.steps,
        stack=window.k if isinstance(window, windows.FrameStack) else 1,
        last_step=not view.next_obs,
        pad_zeros=isinstance(window, windows.FrameStack) and window.pad == "zeros",
        gamma=view.gamma,
        double_reward=view.episodic and schema.column("reward").dtype == np.float64,
        table_weights=isinstance(sampler, Prioritized) and sampler.normaliser == "table",
        hindsight=_STRATEGIES[goals.strategy] if goals else 0,
        ratio=goals.ratio if goals else 0.0,
        achieved=schema.names.index(goals.achieved) if goals else 0,
    )
    return plan, Schema(tuple(column for column, _, _ in outputs))


def batch_columns(schema: Schema, window: windows.Row | windows.Transition | windows.NStep) -> tuple[Column, ...]:
    """Return the columns of batches of such a window."""
    if isinstance(window, windows.Row):
        return schema.columns
    return tuple(column for column, _, _ in _steps(schema, window))


def _many(column: Column, n: int, name: str = "") -> Column:
    if column.ragged:
        return replace(column, name=name or column.name, places=n)
    return replace(column, name=name or column.name, shape=(n, *column.shape), mutable=False)


def _next(column: Column) -> Column:
    return replace(column, name=f"next_{column.name}")


def _number(name: str, dtype: Any, *shape: int) -> Column:
    return Column(name, np.dtype(dtype), shape)


def _sequence(schema: Schema, window: windows.Sequence | windows.Episode) -> Outputs:
    places = window.burn_in + window.length if isinstance(window, windows.Sequence) else window.max_length
    outputs: Outputs = []
    for index, column in enumerate(schema.columns):
        if (column.values_name or column.name) in window.state:
            outputs.append((column, _FIRST, index))
        else:
            outputs.append((_many(column, places), _SEQUENCE, index))
    if window.next_obs:
        outputs += [(_next(c), _SUCCESSOR, index) for index, c in enumerate(schema.columns) if c in schema.obs]
    return [*outputs, (_number("mask", np.bool_, places), _MASK, 0), (_number("length", np.int32), _STEPS, 0)]


_Steps = windows.Transition | windows.NStep | windows.FrameStack | windows.Hindsight


def _steps(schema: Schema, window: _Steps) -> Outputs:
    stack = window.k if isinstance(window, windows.FrameStack) else 0
    goals = window if isinstance(window, windows.Hindsight) else None
    n = 1 if isinstance(window, windows.Transition) else window.n
    reduced = {"terminated": _TERMINATED, "truncated": _TRUNCATED}
    if n > 1:
        reduced["reward"] = _N_STEP_SUM
    outputs: Outputs = []
    following: Outputs = []
    for index, column in enumerate(schema.columns):
        if column not in schema.obs:
            outputs.append((column, reduced.get(column.name, _ROW), index))
        elif stack:
            outputs.append((_many(column, stack), _STACK, index))
            following.append((_next(_many(column, stack)), _NEXT_STACK, index))
        else:
            goal = goals is not None and column.name == goals.goal
            outputs.append((column, _GOAL if goal else _ROW, index))
            following.append((_next(column), _NEXT_GOAL if goal else _SUCCESSOR, index))
    outputs += [*following, (_number("discount", np.float32), _DISCOUNT, 0), (_number("n_step", np.int32), _STEPS, 0)]
    if goals is not None:
        outputs.append((_number("relabelled", np.bool_), _RELABELLED, 0))
        if n > 1:
            index = schema.names.index(goals.achieved)
            outputs.append((_many(schema.columns[index], n, "achieved"), _AFTER, index))
    return outputs
