"""A table for each agent or policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from conduit.agents.writer import AgentWriter
from conduit.batch import Batch
from conduit.store import Store
from conduit.table import Table
from conduit_store.errors import ConfigError, UnknownTable, did_you_mean
from conduit_store.schema import Schema

__all__ = ["AgentTables", "attach", "create"]


def create(store: Store, name: str, schemas: Mapping[str, Schema], max_size: int, **settings: Any) -> AgentTables:
    """Create a table `name.policy` for each entry of `schemas`, with the settings of `Store.create_table`.

    Policies may be agents themselves, or shared by several: `AgentTables.writer` says which agent is whose.

    Raises:
        ConfigError: no schema, or one without episode roles. And what `Store.create_table` raises; tables created
            before the one that failed stay.
    """
    if not isinstance(schemas, Mapping) or not all(isinstance(schema, Schema) for schema in schemas.values()):
        raise ConfigError(f"schemas are {schemas!r}: give a mapping of policies to schemas")
    if not schemas:
        raise ConfigError("agents.create() got no schemas: give one for each policy")
    for policy, schema in schemas.items():
        if not schema.is_episodic:
            raise ConfigError(
                f"the schema of policy {policy!r} has {', '.join(schema.names)}: steps of agents need obs, reward, "
                "terminated and truncated, and no next_obs"
            )
        if schema.ragged:
            names = ", ".join(column.name for column in schema.ragged)
            raise ConfigError(f"the schema of policy {policy!r} has {names}, whose rows vary in length: agents' do not")
        if schema.column("reward").nullable:
            raise ConfigError(
                f"the reward of policy {policy!r} is nullable, and agents' rewards are summed: make it plain"
            )
    tables = {p: store.create_table(f"{name}.{p}", schema, max_size, **settings) for p, schema in schemas.items()}
    return AgentTables(name, tables)


def attach(store: Store, name: str) -> AgentTables:
    """Return the tables that `create` made under `name`, maybe in another process.

    Raises:
        UnknownTable: there are none.
    """
    prefix = f"{name}."
    tables = {full.removeprefix(prefix): store.table(full) for full in store.tables() if full.startswith(prefix)}
    if not tables:
        has = ", ".join(store.tables()) or "none"
        raise UnknownTable(f"store {store.name!r} has no tables {prefix}*; it has {has}")
    return AgentTables(name, tables)


class AgentTables(Mapping[str, Table]):
    """Tables by policy. From `create` or `attach`; pickled by name, as tables are."""

    def __init__(self, name: str, tables: Mapping[str, Table]) -> None:
        self.name = name
        self._tables = dict(tables)

    def __getitem__(self, policy: str) -> Table:
        """Return a policy's table.

        Raises:
            UnknownTable: there is none; names those that there are. A KeyError too.
        """
        try:
            return self._tables[policy]
        except KeyError:
            raise _NoPolicy(
                f"no policy {policy!r} under {self.name!r}; there are {', '.join(self._tables)}."
                f"{did_you_mean(policy, list(self._tables))}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def writer(
        self, policy_of: Callable[[str], str] | Mapping[str, str] | None = None, *, max_agents: int = 64,
        timeout: float | None = 10.0,
    ) -> AgentWriter:  # fmt: skip
        """Return a writer for one environment. For one thread of one process.

        `policy_of`: which policy an agent belongs to, as a mapping or a function; None: agents are policies.
        `max_agents`: of one policy at a time. `timeout`: seconds that an append may wait for space.

        Raises:
            ReadOnlyStore, StoreClosed: this attach cannot write. ConfigError: max_agents less than 1.
        """
        return AgentWriter(self.name, self._tables, policy_of, max_agents, timeout)

    def sample(self, n: int | Mapping[str, int], *, timeout: float | None = 10.0) -> dict[str, Batch]:
        """Draw a batch of each policy's table, independently: `n` windows of each, or of those that `n` names.

        Raises:
            What `Table.sample` raises, for the first policy that has not enough; nothing of that policy is consumed.
        """
        wanted = n if isinstance(n, Mapping) else dict.fromkeys(self, n)
        return {policy: self[policy].sample(count, timeout=timeout) for policy, count in wanted.items()}

    def __repr__(self) -> str:
        return f"<AgentTables {self.name!r}: {', '.join(self)}>"


class _NoPolicy(UnknownTable, KeyError):
    __str__ = UnknownTable.__str__  # KeyError would show the message quoted
