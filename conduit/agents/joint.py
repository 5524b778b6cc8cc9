"""Joint steps: one row for what all agents did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conduit import rows
from conduit.agents.given import ALL, copied, named, number
from conduit.closing import Closing
from conduit.table import Table
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError, EpisodeError, StoreClosed, UnknownColumn, did_you_mean
from conduit_store.schema import Column, Schema
from conduit_store.spaces import columns_of_space

__all__ = ["JointWriter", "joint_schema"]


def joint_schema(observation_spaces: Mapping[str, Any], action_spaces: Mapping[str, Any]) -> Schema:
    """Make the schema of a table whose rows are steps of all agents together, from their gymnasium spaces.

    Sampling such a table gives every agent's part of the same steps, as centralised critics and value mixing need them.
    Columns: obs/<agent>, action/<agent>, rewards/<agent>, terminateds/<agent>, truncateds/<agent> and present/<agent>
    (bool: it acted), and of the whole: reward (their sum), terminated, truncated. Episodic: any window serves.

    Raises:
        SchemaError: a space without a fixed width. ConfigError: the two name different agents.
    """
    if set(observation_spaces) != set(action_spaces) or not observation_spaces:
        raise ConfigError(
            f"observation spaces of {', '.join(observation_spaces) or 'nobody'} and action spaces of "
            f"{', '.join(action_spaces) or 'nobody'}: give both of the same agents"
        )
    slashed = [agent for agent in observation_spaces if "/" in agent]
    if slashed:
        raise ConfigError(f"agent {slashed[0]!r} has a / in its name, which separates parts of column names: rename it")
    columns: list[Column] = []
    for role, spaces in (("obs", observation_spaces), ("action", action_spaces)):
        for agent, space in spaces.items():
            columns += columns_of_space(f"{role}/{agent}", space)
    for agent in observation_spaces:
        columns.append(Column(f"rewards/{agent}", np.dtype(np.float32)))
        columns += [Column(f"{name}/{agent}", np.dtype(np.bool_)) for name in ("terminateds", "truncateds", "present")]
    columns.append(Column("reward", np.dtype(np.float32)))
    columns += [Column(name, np.dtype(np.bool_)) for name in ("terminated", "truncated")]
    return Schema(tuple(columns))


class JointWriter(Closing):
    """Writes the dicts of a multi-agent environment as joint steps, into a table of a `joint_schema`.

    An agent that is not there has zeros, and `present` false. One environment; for one thread of one process.
    """

    def __init__(self, table: Table, *, timeout: float | None = 10.0) -> None:
        """Make a writer of `table`.

        Raises:
            ConfigError: the table's schema is not one that joint_schema makes. ReadOnlyStore, StoreClosed.
        """
        names = table.schema.names
        self._agents = [name.removeprefix("present/") for name in names if name.startswith("present/")]
        if not self._agents or not table.spec.episodic:
            raise ConfigError(f"table {table.name!r} has {', '.join(names)}: create it with agents.joint_schema()")
        self._writer = table.writer(timeout=timeout)
        self._table = table
        self._obs: dict[str, Array] | None = None  # by column, zeros for agents that are not there

    def reset(self, obs: Mapping[str, Any]) -> None:
        """Begin an episode. Ends one that is running, as truncated, where it stands.

        Raises:
            UnknownColumn: an agent that the schema has not.
        """
        self._writer._native.check()
        following = self._filled("obs", obs)
        self._finish()
        self._obs = following

    def step(
        self,
        actions: Mapping[str, Any],
        obs: Mapping[str, Any],
        rewards: Mapping[str, float] | None = None,
        terminated: Mapping[str, bool] | None = None,
        truncated: Mapping[str, bool] | None = None,
    ) -> None:
        """Append one step of the environment. The episode ends with "__all__", or when every agent in `obs` has ended.

        Raises:
            EpisodeError: no reset before it. UnknownColumn: an agent that the schema has not.
            MissingColumn, ShapeMismatch, DtypeMismatch, AppendTimeout: see Writer.append; nothing was appended.
        """
        self._writer._native.check()
        if self._obs is None:
            raise EpisodeError(f"step() without an episode: call reset(obs) first (table {self._table.name!r})")
        self._known(rewards or {})
        earned = {agent: number(agent, reward) for agent, reward in (rewards or {}).items()}
        following = self._filled("obs", obs)
        dead, cut = named(terminated, self._agents), named(truncated, self._agents)
        over = bool((terminated or {}).get(ALL) or (truncated or {}).get(ALL)) or (
            bool(dead | cut) and all(agent in dead | cut for agent in obs)
        )
        only_cut = bool(cut) and not (terminated or {}).get(ALL)
        row: dict[str, Any] = {
            **self._obs,
            **self._filled("action", actions),
            "reward": sum(earned.values()),
            "terminated": over and not only_cut,
            "truncated": over and only_cut,
        }
        for agent in self._agents:
            row[f"rewards/{agent}"] = earned.get(agent, 0.0)
            row[f"terminateds/{agent}"] = agent in dead
            row[f"truncateds/{agent}"] = agent in cut
            row[f"present/{agent}"] = agent in actions
        self._writer.append(**row)
        self._obs = following
        if over:
            self._finish()

    def _known(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        for agent in given:
            if agent not in self._agents:
                raise UnknownColumn(
                    f"agent {agent!r} is not in table {self._table.name!r}, which has {', '.join(self._agents)}."
                    f"{did_you_mean(agent, self._agents)}"
                )
        return given

    def _filled(self, role: str, given: Mapping[str, Any]) -> dict[str, Array]:
        """Columns of a role by flat name: what is given, checked and copied, and zeros of agents that are not there."""
        flat = Schema.flatten({role: dict(self._known(given))})
        columns = [column for column in self._table.schema.columns if column.name.partition("/")[0] == role]
        there = [column for column in columns if column.name.split("/")[1] in given]
        if there:
            rows.check_names(flat, Schema(tuple(there)))
        return {c.name: copied(c, flat[c.name]) if c in there else np.zeros(c.shape, c.dtype) for c in columns}

    def _finish(self) -> None:
        if self._obs is not None and self._writer._native.chain_open(0):
            self._writer.end({name.removeprefix("obs/"): value for name, value in self._obs.items()})
        self._obs = None

    def close(self) -> None:
        """End what is running, as truncated, and close. Idempotent."""
        if self._writer.closed:
            return
        try:
            self._finish()
        except StoreClosed:
            pass
        finally:
            self._writer.close()
