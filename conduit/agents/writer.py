"""The dicts of a multi-agent environment become steps of each agent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from conduit import rows
from conduit.agents.given import copied, named, number
from conduit.closing import Closing
from conduit.table import Table
from conduit.values import seconds, whole_number
from conduit_store.arrays import Array
from conduit_store.errors import (
    CapacityError,
    ConfigError,
    EpisodeError,
    StoreClosed,
)
from conduit_store.schema import Schema

__all__ = ["AgentWriter"]

_Seen = tuple[str, dict[str, Array]]  # policy, observation by column
_LATER = frozenset({"reward", "terminated", "truncated"})  # known when the agent acts again, or ends


class _Row(NamedTuple):
    """A row that is complete."""

    chain: int
    flags: int
    columns: dict[str, Array]


class _Agent:
    """An agent between its first observation and its end: a chain of its policy's writer."""

    __slots__ = ("acted", "chain", "obs", "policy", "reward", "step")

    def __init__(self, policy: str, chain: int, early: float) -> None:
        self.policy = policy
        self.chain = chain
        self.reward = early  # for its action, so far; before its first, what came early
        self.obs: dict[str, Array] = {}  # the newest
        self.acted = False  # on that observation
        self.step: dict[str, Array] | None = None  # its last action, until the next one or the end


class AgentWriter(Closing):
    """Turns the dicts of a multi-agent environment into steps of each agent. From `AgentTables.writer`.

    Agents act in any order, together or in turns, join and leave. A step of an agent lasts from its action to its next
    one: every reward that comes between belongs to it, and its next observation is the newest one when it acts again,
    or ends. So a step enters the table when that is known, and where an episode is cut into fragments does not matter.
    What is given is copied.
    """

    def __init__(
        self,
        name: str,
        tables: Mapping[str, Table],
        policy_of: Callable[[str], str] | Mapping[str, str] | None,
        max_agents: int,
        timeout: float | None,
    ) -> None:
        self._name = name
        self._tables = tables
        self._policy_of = policy_of
        self._timeout = seconds(timeout)
        self._max_agents = max_agents = whole_number("max_agents", max_agents, 1, 1 << 20)
        for table in tables.values():
            table._start_movers()
        self._writers = {
            p: rows.native_writer(t._native, t.spec, max_agents, t._categories) for p, t in tables.items()
        }
        for table in tables.values():
            table._store._writers.add(self)
        self._free = {policy: list(range(max_agents))[::-1] for policy in tables}
        self._outbox: dict[str, list[_Row]] = {policy: [] for policy in tables}
        self._agents: dict[str, _Agent] = {}
        self._ended: set[str] = set()  # in this episode
        self._early: dict[str, float] = {}  # rewards of agents that are not there yet

    def reset(self, obs: Mapping[str, Any]) -> None:
        """Begin an episode with the observations of the agents that are there. Ends what is running, as truncated.

        Raises:
            What `step` raises.
        """
        self._check_open()
        self._flush()
        gone = [agent for agent in self._agents if agent not in obs]
        seen = self._observed(obs, joining=obs, leaving=gone)
        for agent in list(self._agents):
            self._end(agent, rows.TRUNCATED)
        self._ended.clear()
        self._early.clear()
        self._observe(seen)
        self._flush()

    def step(
        self,
        actions: Mapping[str, Any],
        obs: Mapping[str, Any],
        rewards: Mapping[str, float] | None = None,
        terminated: Mapping[str, bool] | None = None,
        truncated: Mapping[str, bool] | None = None,
        **columns: Mapping[str, Any],
    ) -> None:
        """Take one step of the environment: who acted, and what came of it.

        `obs`: of agents that have a new one. `rewards`: of any agent; those of one that has not acted yet count for
        its first action. `terminated`, `truncated`: agents that end here, "__all__" for every one; their `obs`, if
        given, is their final observation, else the newest they had. `columns`: further columns of the acting agents'
        tables, each a dict by agent (their logits, say).

        Raises:
            EpisodeError: an agent acts without a new observation, or is rewarded after its end.
            CapacityError: more agents of one policy than max_agents.
            ConfigError: an agent whose policy has no table.
            MissingColumn, UnknownColumn, ShapeMismatch, DtypeMismatch, ValueOutOfRange: see Schema.
                After all of these nothing has changed.
            AppendTimeout: no space in time. The step has been taken; what is not in yet goes in with the next call.
        """
        self._check_open()
        self._flush()
        given = {agent: number(agent, reward) for agent, reward in (rewards or {}).items()}
        self._check(actions, given)
        acted = {agent: self._action(agent, action, columns) for agent, action in actions.items()}
        ending = named(terminated, self._agents) | named(truncated, self._agents)
        joining = [agent for agent in obs if agent not in self._agents and agent not in ending]
        seen = self._observed({a: obs[a] for a in obs if a in self._agents or a in joining}, joining)
        for agent, step in acted.items():
            self._act(agent, step)
        for agent, reward in given.items():
            if agent in self._agents:
                self._agents[agent].reward += reward
            elif agent not in self._ended:
                self._early[agent] = self._early.get(agent, 0.0) + reward
        self._observe(seen)
        cut = named(truncated, self._agents)
        dead = named(terminated, self._agents)
        for agent in [agent for agent in self._agents if agent in ending]:
            self._end(agent, rows.TERMINATED * (agent in dead) | rows.TRUNCATED * (agent in cut))
        self._flush()

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"this writer of {self._name!r} is closed: call tables.writer() for a new one")

    def _check(self, actions: Mapping[str, Any], rewards: Mapping[str, float]) -> None:
        for agent in actions:
            state = self._agents.get(agent)
            if state is None or state.acted:
                why = "acted on its last one" if state else "ended" if agent in self._ended else "never had one"
                raise EpisodeError(f"agent {agent!r} acts without a new observation: it has {why}")
        for agent, reward in rewards.items():
            if reward and agent in self._ended:
                raise EpisodeError(
                    f"agent {agent!r} gets a reward of {reward} after its end: give it with the step that ends it"
                )

    def _action(self, agent: str, action: Any, columns: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
        """All columns of a step but those that the future decides."""
        schema = self._tables[self._agents[agent].policy].schema
        given = {"action": action, **{name: by_agent[agent] for name, by_agent in columns.items() if agent in by_agent}}
        flat = Schema.flatten(given)
        wanted = [column for column in schema.columns if column.name not in _LATER and column not in schema.obs]
        of_step = Schema(tuple(wanted))
        rows.check_names(flat, of_step)
        whole = rows.as_values(of_step, flat, self._tables[self._agents[agent].policy]._categories)
        return {column.name: copied(column, whole[column.name]) for column in wanted}

    def _observed(
        self, obs: Mapping[str, Any], joining: Collection[str], leaving: Collection[str] = ()
    ) -> dict[str, _Seen]:
        """Policy and observation of each agent, checked; that those `joining` find room is checked too."""
        seen: dict[str, _Seen] = {}
        for agent, value in obs.items():
            policy = self._policy(agent) if agent in joining else self._agents[agent].policy
            table = self._tables[policy]
            of_obs = Schema(table.schema.obs)
            flat = Schema.flatten({"obs": value})
            rows.check_names(flat, of_obs)
            whole = rows.as_values(of_obs, flat, table._categories)
            seen[agent] = policy, {column.name: copied(column, whole[column.name]) for column in of_obs}
        for policy in self._tables:
            staying = [state for agent, state in self._agents.items() if agent not in joining and agent not in leaving]
            after = sum(seen[agent][0] == policy for agent in joining) + sum(s.policy == policy for s in staying)
            if after > self._max_agents:
                raise CapacityError(
                    f"{after} agents of policy {policy!r} at a time: this writer was made for {self._max_agents}. "
                    "Raise max_agents"
                )
        return seen

    def _policy(self, agent: str) -> str:
        given = self._policy_of
        policy = agent if given is None else given.get(agent) if isinstance(given, Mapping) else given(agent)
        if policy not in self._writers:
            raise ConfigError(
                f"agent {agent!r} belongs to policy {policy!r}, which has no table; there are {', '.join(self._tables)}"
            )
        return str(policy)

    def _observe(self, seen: Mapping[str, _Seen]) -> None:
        for agent, (policy, value) in seen.items():
            state = self._agents.get(agent)
            if state is None:
                self._ended.discard(agent)
                state = self._agents[agent] = _Agent(policy, self._free[policy].pop(), self._early.pop(agent, 0.0))
            state.obs, state.acted = value, False

    def _act(self, agent: str, step: dict[str, Array]) -> None:
        state = self._agents[agent]
        if state.step is not None:
            self._post(state, state.step, 0)
            state.reward = 0.0
        state.step = state.obs | step
        state.acted = True

    def _end(self, agent: str, flags: int) -> None:
        """The agent's last step, with its flags, and the observation that it led to."""
        state = self._agents.pop(agent)
        if state.step is not None:
            self._post(state, state.step, flags)
            self._outbox[state.policy].append(_Row(state.chain, rows.FINAL, state.obs))
        self._free[state.policy].append(state.chain)
        self._ended.add(agent)

    def _post(self, state: _Agent, step: dict[str, Array], flags: int) -> None:
        schema = self._tables[state.policy].schema
        later: dict[str, Any] = {
            "reward": np.asarray(state.reward, schema.column("reward").dtype),
            "terminated": np.asarray(flags & rows.TERMINATED != 0),
            "truncated": np.asarray(flags & rows.TRUNCATED != 0),
        }
        self._outbox[state.policy].append(_Row(state.chain, flags, step | later))

    def _flush(self) -> None:
        """Append what is complete, a policy at a time."""
        for policy, waiting in self._outbox.items():
            if not waiting:
                continue
            table, n = self._tables[policy], len(waiting)
            columns: list[Array] = []
            for column in table.schema.columns:
                blank = np.zeros(column.shape, column.dtype)
                columns.append(rows.buffer(np.stack([row.columns.get(column.name, blank) for row in waiting])))
            rows.append(
                self._writers[policy], table.spec, n, columns, timeout=self._timeout, whole=True,
                flags=np.array([row.flags for row in waiting], np.uint8),
                chains=np.array([row.chain for row in waiting], np.int32),
            )  # fmt: skip
            waiting.clear()

    @property
    def closed(self) -> bool:
        """Whether the writer has been closed."""
        return all(writer.closed for writer in self._writers.values())

    def close(self) -> None:
        """End what is running, as truncated, and give the open blocks back. Idempotent; waits up to the timeout.

        Raises:
            AppendTimeout: no space for the last steps; they are lost.
        """
        if self.closed:
            return
        try:
            self._flush()
            for agent in list(self._agents):
                self._end(agent, rows.TRUNCATED)
            self._flush()
        except StoreClosed:
            pass
        finally:
            for writer in self._writers.values():
                writer.close()

    def __repr__(self) -> str:
        return f"<AgentWriter of {self._name!r}: {len(self._agents)} agents there>"
