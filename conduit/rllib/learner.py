"""Learners that take a prepared batch, or handles of episodes, where RLlib's take episodes."""

from __future__ import annotations

import dataclasses
import os
from functools import cache
from typing import Any

from conduit.rllib.agents import AgentsReplay
from conduit.rllib.bootstrap import install
from conduit.rllib.delivery import Deliveries, Delivery, Nothing, begin
from conduit.rllib.episodes import opened
from conduit.rllib.replay import Replay
from conduit.rllib.rollouts import QueueAddress
from conduit.store import Store
from conduit_store.errors import SampleTimeout

__all__ = ["BatchLearner", "EpisodeLearner", "opening_episodes", "taking_batches"]

REPLAY = "conduit_replay"


class BatchLearner:
    """Mixed into an RLlib Learner class. Overrides `update`, its making of a batch, saving and shutting down."""

    _conduit_replay: Replay | AgentsReplay | None = None
    _conduit_batch: Any = None  # made from a delivery, and on its way through RLlib's update

    def conduit_connect(self, replay: Replay | AgentsReplay | None) -> None:
        """Save, restore and close `replay` with this learner; None in a process of its own."""
        self._conduit_replay = replay

    def update(self, *given: Any, training_data: Any = None, **named: Any) -> Any:
        """Update from a `Delivery`, whose columns become the train batch as they are; all else as the class does.

        From `Nothing`, make no update: of its results there are the modules' names, whose weights RLlib hands on.
        """
        if training_data is not None and training_data.episodes:
            first = training_data.episodes[0]
            if isinstance(first, Nothing):
                return {name: {} for name in self.module.keys()}  # type: ignore[attr-defined]  # noqa: SIM118
            if isinstance(first, Delivery | Deliveries):
                training_data = self._from_delivery(first)
        return super().update(*given, training_data=training_data, **named)  # type: ignore[misc]

    def _from_delivery(self, delivery: Delivery | Deliveries) -> Any:
        training_data = delivery.training_data(next(iter(self.module.keys())))  # type: ignore[attr-defined]
        for name, columns in training_data.batch.policy_batches.items():
            begin(columns, self.module[name])  # type: ignore[attr-defined]
        self._conduit_batch = training_data.batch
        return training_data

    def _make_batch_if_necessary(self, training_data: Any) -> Any:
        """A delivery's batch is tensors already: RLlib need not look whether to convert them."""
        if training_data.batch is not None and training_data.batch is self._conduit_batch:
            self._conduit_batch = None
            if self._device.type == "cpu":  # type: ignore[attr-defined]
                return training_data.batch
        return super()._make_batch_if_necessary(training_data)  # type: ignore[misc]

    def get_state(self, components: Any = None, *, not_components: Any = None, **given: Any) -> Any:
        """The class's state and, where the config asks for it, the replay."""
        state = super().get_state(components, not_components=not_components, **given)  # type: ignore[misc]
        replay = self._conduit_replay
        if replay is not None and replay.saved and self._check_component(REPLAY, components, not_components):  # type: ignore[attr-defined]
            state[REPLAY] = replay.get_state()
        return state

    def set_state(self, state: Any) -> None:
        """Restore what get_state has saved."""
        super().set_state(state)  # type: ignore[misc]
        if self._conduit_replay is not None and REPLAY in state:
            self._conduit_replay.set_state(state[REPLAY])

    def shutdown(self) -> None:
        """Shut down as the class does, and close the replay."""
        super().shutdown()  # type: ignore[misc]
        if self._conduit_replay is not None:
            self._conduit_replay.close()


@cache
def taking_batches(base: type) -> type:
    """Return `base` as a learner that takes prepared batches."""
    if issubclass(base, BatchLearner):
        return base
    return type(f"Batch{base.__name__}", (BatchLearner, base), {"__module__": __name__})


class EpisodeLearner:
    """Mixed into the Learner class of an on-policy algorithm. Overrides its making of a batch, and shutting down.

    All behind that is RLlib's: connectors, advantages, minibatches, the learner thread of APPO and IMPALA. One piece of
    its connectors is replaced, by one that does the same for episodes that come out of a queue.
    """

    _conduit_store: Store | None = None
    _conduit_extends = False  # opened episodes have the step that RLlib's own piece would add

    def conduit_connect(self, address: QueueAddress) -> None:
        """Open the episodes of the store at `address` from now on.

        Raises:
            StoreNotFound, AttachTimeout, AttachRefused: see Store.attach.
        """
        os.environ.setdefault("CONDUIT_RUNTIME_DIR", address.runtime_dir)
        self._conduit_store = Store.attach(address.store)
        self._conduit_extends = install(self._learner_connector)  # type: ignore[attr-defined]

    def _make_batch_if_necessary(self, training_data: Any) -> Any:
        """Handles become the episodes that they stand for."""
        if training_data.episodes:
            episodes = opened(training_data.episodes, extended=self._conduit_extends)
            if not episodes:
                raise SampleTimeout(
                    f"all {len(training_data.episodes)} episodes of this batch were given up before it was their turn: "
                    "raise max_size or sample_timeout of attach()"
                )
            training_data = dataclasses.replace(training_data, episodes=episodes)
        return super()._make_batch_if_necessary(training_data)  # type: ignore[misc]

    def shutdown(self) -> None:
        """Shut down as the class does, and let go of the store."""
        super().shutdown()  # type: ignore[misc]
        if self._conduit_store is not None:
            self._conduit_store.close()
            self._conduit_store = None


@cache
def opening_episodes(base: type) -> type:
    """Return `base` as a learner that opens handles of episodes."""
    if issubclass(base, EpisodeLearner):
        return base
    return type(f"Opening{base.__name__}", (EpisodeLearner, base), {"__module__": __name__})
