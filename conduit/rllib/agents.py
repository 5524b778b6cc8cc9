"""Replay for several agents: a table for each module, and a batch with rows of every module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from conduit.rllib.delivery import Deliveries, Nothing, Patience
from conduit.rllib.ingest import Address, Fragment, FragmentWriter
from conduit.rllib.replay import Delivering, PrioritizedReplay, Replay
from conduit.samplers import Prioritized
from conduit.store import Store
from conduit_store.errors import SampleTimeout

__all__ = ["AgentsAddress", "AgentsReplay", "AgentsWriter"]

_ONGOING = 256  # episodes of agents that a writer can have in hand


class AgentsAddress(NamedTuple):
    """Where several agents' experience goes: as `each`, in a table for every module."""

    each: Address

    @property
    def store(self) -> str:
        """The store's name."""
        return self.each.store

    @property
    def runtime_dir(self) -> str:
        """Where that is."""
        return self.each.runtime_dir

    def of(self, module: str) -> Address:
        """The address of one module."""
        return self.each._replace(table_name=f"{self.each.table_name}-{module}")

    def writer(self, store: Store, ongoing: int) -> AgentsWriter:
        """Return a writer for one env runner."""
        return AgentsWriter(store, self)


class AgentsFragment:
    """What travels in place of a multi-agent episode: its agents' fragments, by module."""

    __slots__ = ("modules", "steps")

    def __init__(self, modules: dict[str, list[Fragment]], steps: int) -> None:
        self.modules = modules
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def env_steps(self) -> int:
        """Steps of the environment."""
        return self.steps

    def agent_steps(self) -> int:
        """Steps of all agents together."""
        return sum(fragment.steps for fragments in self.modules.values() for fragment in fragments)


class AgentsWriter:
    """Writes the steps of RLlib's `MultiAgentEpisode`s. For one thread of one process."""

    def __init__(self, store: Store, address: AgentsAddress) -> None:
        self._store = store
        self._address = address
        self.modules: dict[str, FragmentWriter] = {}

    def write(self, episodes: Sequence[Any]) -> list[AgentsFragment]:
        """Append every agent's steps to the table of its module, and return a handle for each episode."""
        written: list[AgentsFragment] = []
        for episode in episodes:
            agents: dict[str, list[Any]] = {}
            for agent, own in episode.agent_episodes.items():
                agents.setdefault(episode.module_for(agent), []).append(own)
            fragments = {module: self._of(module).write(own) for module, own in agents.items()}
            written.append(AgentsFragment({m: found for m, found in fragments.items() if found}, len(episode)))
        return written

    def _of(self, module: str) -> FragmentWriter:
        if module not in self.modules:
            self.modules[module] = FragmentWriter(self._store, self._address.of(module), _ONGOING)
        return self.modules[module]

    def close(self) -> None:
        """Close every module's writer. Idempotent."""
        for writer in self.modules.values():
            writer.close()


class AgentsReplay:
    """What RLlib's training step asks of its `local_replay_buffer`; a `Replay` for each module that has rows.

    As RLlib's buffers do by default, each module draws its rows independently of the others.
    """

    def __init__(
        self, store: Store, address: AgentsAddress, delivery: Delivering, *, saved: bool = False, learners: int = 1
    ) -> None:
        self.store = store
        self.address = address
        self.saved = saved
        self.modules: dict[str, Replay] = {}
        self._delivery = delivery
        self._learners = learners
        self._patience = Patience(delivery.timeout)
        self._writer: AgentsWriter | None = None
        self._added = 0

    def _of(self, module: str) -> Replay:
        if module not in self.modules:
            kind = PrioritizedReplay if isinstance(self.address.each.sampler, Prioritized) else Replay
            address = self.address.of(module)
            self.modules[module] = kind(self.store, address, self._delivery, learners=self._learners)
        return self.modules[module]

    def add(self, episodes: Any) -> None:
        """Count fragments that env runners have written; write episodes of those that have not been told where to."""
        episodes = episodes if isinstance(episodes, list) else [episodes]
        loose = [episode for episode in episodes if not isinstance(episode, AgentsFragment)]
        if loose:
            if self._writer is None:
                self._writer = AgentsWriter(self.store, self.address)
            episodes = [e for e in episodes if isinstance(e, AgentsFragment)] + self._writer.write(loose)
        for episode in episodes:
            self._added += episode.steps
            for module, fragments in episode.modules.items():
                self._of(module).add(fragments)

    def sample(self, num_items: int | None = None, **given: Any) -> list[Any]:
        """Return `num_items` rows of every module that has some to draw, or a share of them for each learner.

        `Deliveries` objects; `Nothing`, at the beginning, where no module has a row to draw.

        Raises:
            What `Replay.sample` raises.
        """
        ready = {name: replay for name, replay in self.modules.items() if replay.table.can_sample(num_items or 1)}
        if not ready and self._patience.lasts():
            return [Nothing() for _ in range(self._learners)]
        if not ready:
            raise SampleTimeout("no module has a row to draw yet: raise num_steps_sampled_before_learning_starts")
        drawn = {name: replay.sample(num_items, **given) for name, replay in ready.items()}
        self._patience.over()
        return [Deliveries({name: shares[i] for name, shares in drawn.items()}) for i in range(self._learners)]

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Set the priorities of the rows of a module delivered last; see `PrioritizedReplay.update_priorities`."""
        self.modules[module_id].update_priorities(priorities)

    def get_metrics(self) -> dict[str, Any]:
        """Nothing: the numbers come into the result once an iteration, not once a step (see `report`)."""
        return {}

    def report(self) -> dict[str, Any]:
        """Environment steps that were added, and the report of each module's replay under its name."""
        modules = {name: replay.report() for name, replay in self.modules.items()}
        return {"num_env_steps_added_lifetime": self._added, **modules}

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Steps stored now, of one module or of all."""
        chosen = self.modules.values() if module_id is None else [self.modules[module_id]]
        return sum(map(len, chosen))

    def __len__(self) -> int:
        return self.get_num_timesteps()

    def get_state(self) -> dict[str, Any]:
        """Every module's rows and counts; see `Replay.get_state`."""
        return {"added": self._added, "modules": {name: replay.get_state() for name, replay in self.modules.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Put back what get_state has returned; see `Replay.set_state`."""
        self._added = state["added"]
        self._patience = Patience(self._delivery.timeout)
        for name, own in state["modules"].items():
            self._of(name).set_state(own)

    def close(self) -> None:
        """Close the store; its memory goes once the env runners have stopped. Idempotent."""
        if self._writer is not None:
            self._writer.close()
        for replay in self.modules.values():
            replay.close()
        self.store.close()
