"""A learner that takes a prepared batch where RLlib's takes episodes."""

from __future__ import annotations

from functools import cache
from typing import Any

from conduit.rllib.replay import Delivery, Replay

__all__ = ["BatchLearner", "taking_batches"]

REPLAY = "conduit_replay"


class BatchLearner:
    """Mixed into an RLlib Learner class. Overrides `update`, and what saves and shuts down."""

    _conduit_replay: Replay | None = None

    def conduit_connect(self, replay: Replay) -> None:
        """Save, restore and close `replay` with this learner."""
        self._conduit_replay = replay

    def update(self, *given: Any, training_data: Any = None, **named: Any) -> Any:
        """Update from a `Delivery`, whose columns become the train batch as they are; all else as the class does."""
        if training_data is not None and training_data.episodes:
            first = training_data.episodes[0]
            if isinstance(first, Delivery):
                training_data = first.training_data(next(iter(self.module.keys())))  # type: ignore[attr-defined]
        return super().update(*given, training_data=training_data, **named)  # type: ignore[misc]

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
