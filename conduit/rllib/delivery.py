"""What `sample()` returns in place of a list of episodes: a prepared batch on its way to a learner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from conduit.batch import Batch
from conduit.rllib.n_steps import transitions
from conduit.rllib.sequences import BEGINS
from conduit_store.arrays import Array

__all__ = ["Deliveries", "Delivery", "Nothing", "Patience", "begin"]

_NAMES = {"action": "actions", "reward": "rewards", "terminated": "terminateds", "truncated": "truncateds",
          "weights": "weights", "n_step": "n_step", "obs": "obs", "next_obs": "new_obs"}  # fmt: skip


class Delivery:
    """A batch of one module, or a learner's share of it. Pickled, its columns go along."""

    __slots__ = ("_columns", "_n", "_parts", "_stacks")

    def __init__(
        self,
        batch: Batch | dict[str, Array],
        *,
        steps: Array | None = None,
        gamma: float = 1.0,
        parts: tuple[int, int] = (0, 1),
        stacks: Mapping[str, Any] | None = None,
    ) -> None:
        """`steps`: of each row's return, where `batch` has sequences. `parts`: every so manieth row, from which on.

        Of a recurrent module `batch` is what `sequences` made, and a row a sequence. `stacks`: tensors in place of
        columns of `batch`.
        """
        self._stacks = stacks or {}
        first, of = self._parts = parts
        n = len(batch) if isinstance(batch, Batch) else len(batch["reward"])
        self._n = len(range(first, n, of))
        self._columns = batch if steps is None or not isinstance(batch, Batch) else transitions(batch, steps, gamma)

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
            flat: dict[str, Any] = found.torch(without=("discount", *self._stacks))  # RLlib computes its own discount
            flat |= self._stacks
        else:
            flat = {name: torch.from_numpy(values) for name, values in found.items()}
        first, of = self._parts
        if of > 1:
            flat = {name: tensor[first::of] for name, tensor in flat.items()}
        columns: dict[str, Any] = {}
        for name, tensor in flat.items():
            top, _, rest = name.partition("/")
            if rest:
                _nest(columns, _NAMES.get(top, top), rest, tensor)
            else:
                columns[_NAMES.get(name, name)] = tensor
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
        sent = {
            name: np.ascontiguousarray((self._stacks[name].numpy() if name in self._stacks else found[name])[first::of])
            for name in names
        }
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


class Nothing:
    """In place of a delivery where nothing can be drawn yet: no update is made, and training goes on."""

    def __len__(self) -> int:
        return 1  # RLlib shares out by length, and each learner gets one

    def env_steps(self) -> int:
        """Steps that it holds."""
        return 0

    def agent_steps(self) -> int:
        """Steps that it holds."""
        return 0


class Patience:
    """How long training steps go without a batch, until the first.

    A training step collects and then draws, so nothing comes while a draw waits. RLlib collects
    `num_steps_sampled_before_learning_starts` steps first; but an algorithm that was restored without its replay has
    those behind it, and would draw after its first step.
    """

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._until: float | None = None
        self.needed = True  # nothing has been drawn yet

    def over(self) -> None:
        """Something was drawn. From now on a draw that finds nothing is an error."""
        self.needed = False

    def lasts(self) -> bool:
        """Whether to go on without a batch: for `timeout` seconds from the first time that this was asked."""
        if not self.needed or self._timeout is None:
            return self.needed
        now = time.monotonic()
        self._until = self._until or now + self._timeout
        return now < self._until


def _training_data(modules: Mapping[str, Delivery]) -> Any:
    from ray.rllib.core.learner.training_data import TrainingData
    from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

    batches: dict[str, Any] = {}
    steps = 0
    for name, delivery in modules.items():
        columns = delivery.columns()
        lengths = columns.get("seq_lens")
        steps += len(delivery) if lengths is None else int(lengths.sum())
        batches[name] = SampleBatch(columns, _zero_padded=lengths is not None)  # type: ignore[no-untyped-call]
    return TrainingData(batch=MultiAgentBatch(batches, env_steps=steps))


def begin(columns: Any, module: Any) -> None:
    """Where sequences begin episodes, their state in becomes the module's initial one. Nothing where there are none."""
    begins = columns.pop(BEGINS, None)
    if begins is None:
        return
    _fill(columns["state_in"], begins, module.get_initial_state())


def _fill(given: Any, rows: Any, value: Any) -> None:
    import torch

    if isinstance(given, Mapping):
        for key, below in given.items():
            _fill(below, rows, value[key])
    else:
        given[rows] = torch.as_tensor(value, dtype=given.dtype)


def _received(columns: dict[str, Array], n: int) -> Delivery:
    """A delivery in the learner's process. Ray's arrays are read-only, and torch wants none of those: copied."""
    delivery = Delivery.__new__(Delivery)
    delivery._columns = {name: values.copy() for name, values in columns.items()}
    delivery._n, delivery._parts, delivery._stacks = n, (0, 1), {}
    return delivery


def _nest(columns: dict[str, Any], name: str, rest: str, tensor: Any) -> None:
    place = columns.setdefault(name, {})
    *path, last = rest.split("/")
    for part in path:
        place = place.setdefault(part, {})
    place[last] = tensor
