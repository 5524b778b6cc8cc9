"""What `sample()` returns in place of a list of episodes: a prepared batch on its way to a learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conduit.batch import Batch
from conduit.rllib.n_steps import transitions
from conduit_store.arrays import Array

__all__ = ["Deliveries", "Delivery"]

_NAMES = {"action": "actions", "reward": "rewards", "terminated": "terminateds", "truncated": "truncateds",
          "weights": "weights", "n_step": "n_step", "obs": "obs", "next_obs": "new_obs"}  # fmt: skip


class Delivery:
    """A batch of one module, or a learner's share of it. Pickled, its columns go along."""

    __slots__ = ("_columns", "_n", "_parts")

    def __init__(
        self, batch: Batch, *, steps: Array | None = None, gamma: float = 1.0, parts: tuple[int, int] = (0, 1)
    ) -> None:
        """`steps`: of each row's return, where `batch` has sequences. `parts`: every so manieth row, from which on."""
        first, of = self._parts = parts
        self._n = len(range(first, len(batch), of))
        self._columns = transitions(batch, steps, gamma) if steps is not None else batch

    def __len__(self) -> int:
        return self._n

    def env_steps(self) -> int:
        """Steps that it holds."""
        return self._n

    def agent_steps(self) -> int:
        """Steps that it holds."""
        return self._n

    def columns(self) -> dict[str, Any]:
        """Torch tensors under RLlib's names, with the dtypes of its own learner connector."""
        import torch

        found = self._columns
        if isinstance(found, Batch):
            flat: dict[str, Any] = found.torch(without=("discount",))  # RLlib computes its own
        else:
            flat = {name: torch.from_numpy(values) for name, values in found.items()}
        first, of = self._parts
        if of > 1:
            flat = {name: tensor[first::of] for name, tensor in flat.items()}
        columns: dict[str, Any] = {}
        for name, tensor in flat.items():
            top, _, rest = name.partition("/")
            if rest:
                _nest(columns, _NAMES[top], rest, tensor)
            else:
                columns[_NAMES[name]] = tensor
        columns["rewards"] = columns["rewards"].float()
        columns["n_step"] = columns["n_step"].long()
        return columns

    def training_data(self, module_id: str) -> Any:
        """RLlib's `TrainingData` around a `MultiAgentBatch` of these columns."""
        return _training_data({module_id: self})

    def __reduce__(self) -> tuple[Any, ...]:
        found = self._columns
        names = [name for name in found if name != "discount"]
        first, of = self._parts
        sent = {name: np.ascontiguousarray(found[name][first::of]) for name in names}
        if isinstance(found, Batch):
            sent["weights"] = np.ascontiguousarray(found.weights[first::of])
        return _received, (sent, self._n)


class Deliveries:
    """A delivery for each of several modules."""

    __slots__ = ("modules",)

    def __init__(self, modules: Mapping[str, Delivery]) -> None:
        self.modules = modules

    def __len__(self) -> int:
        return sum(map(len, self.modules.values()))

    def env_steps(self) -> int:
        """Steps that they hold."""
        return len(self)

    def agent_steps(self) -> int:
        """Steps that they hold."""
        return len(self)

    def training_data(self, module_id: str) -> Any:
        """As of a `Delivery`; every module has its own columns."""
        return _training_data(self.modules)


def _training_data(modules: Mapping[str, Delivery]) -> Any:
    from ray.rllib.core.learner.training_data import TrainingData
    from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

    batches = {name: SampleBatch(delivery.columns()) for name, delivery in modules.items()}  # type: ignore[no-untyped-call]
    return TrainingData(batch=MultiAgentBatch(batches, env_steps=sum(map(len, modules.values()))))


def _received(columns: dict[str, Array], n: int) -> Delivery:
    """A delivery in the learner's process. Ray's arrays are read-only, and torch wants none of those: copied."""
    delivery = Delivery.__new__(Delivery)
    delivery._columns = {name: values.copy() for name, values in columns.items()}
    delivery._n, delivery._parts = n, (0, 1)
    return delivery


def _nest(columns: dict[str, Any], name: str, rest: str, tensor: Any) -> None:
    place = columns.setdefault(name, {})
    *path, last = rest.split("/")
    for part in path:
        place = place.setdefault(part, {})
    place[last] = tensor
