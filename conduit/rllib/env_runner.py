"""An env runner that writes what it collects into the store, and returns handles."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from conduit.rllib.agents import AgentsAddress, AgentsReplay, AgentsWriter
from conduit.rllib.ingest import Address, FragmentWriter
from conduit.rllib.replay import Replay
from conduit.rllib.rollouts import EpisodeWriter, QueueAddress, Rollouts
from conduit.store import Store

__all__ = ["StoringEnvRunner", "storing"]


class StoringEnvRunner:
    """Mixed into an env runner class. Until it has been told where to write, it is that class and nothing else."""

    _conduit_store: Store | None = None
    _conduit_writer: FragmentWriter | AgentsWriter | EpisodeWriter | None = None
    _conduit_source: Rollouts | Replay | AgentsReplay | None = None

    def conduit_connect(self, address: Address | AgentsAddress | QueueAddress) -> None:
        """Write to the store at `address` from now on.

        Raises:
            StoreNotFound, AttachTimeout, AttachRefused: see Store.attach.
        """
        self.conduit_disconnect()
        os.environ.setdefault("CONDUIT_RUNTIME_DIR", address.runtime_dir)
        self._conduit_store = Store.attach(address.store)
        self._conduit_writer = address.writer(self._conduit_store, max(1, int(self.num_envs)))  # type: ignore[attr-defined]

    def conduit_close_with_it(self, source: Rollouts | Replay | AgentsReplay) -> None:
        """Close `source` when this env runner, the driver's own, is stopped: learners may be elsewhere."""
        self._conduit_source = source

    def conduit_disconnect(self) -> None:
        """Let go of the store. Idempotent."""
        if self._conduit_writer is not None:
            self._conduit_writer.close()
            self._conduit_writer = None
        if self._conduit_store is not None:
            self._conduit_store.close()
            self._conduit_store = None

    def sample(self, **given: Any) -> Any:
        """Collect as the class mixed into does; return a handle for each fragment."""
        episodes = super().sample(**given)  # type: ignore[misc]
        if self._conduit_writer is None:
            return episodes
        return self._conduit_writer.write(episodes)

    def stop(self) -> None:
        """Let go of the store, and stop."""
        self.conduit_disconnect()
        if self._conduit_source is not None:
            self._conduit_source.close()
        super().stop()  # type: ignore[misc]


@cache
def storing(base: type) -> type:
    """Return `base` as an env runner that can write into a store."""
    if issubclass(base, StoringEnvRunner):
        return base
    return type(f"Storing{base.__name__}", (StoringEnvRunner, base), {"__module__": __name__})
