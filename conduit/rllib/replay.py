"""RLlib's replay buffer, over a table that the env runners write themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conduit.batch import Batch
from conduit.loader import Loader
from conduit.rllib.delivery import Delivery, Nothing, Patience
from conduit.rllib.frames import Prepared
from conduit.rllib.ingest import Address, Fragment, FragmentWriter
from conduit.rllib.n_steps import drawn_steps
from conduit.rllib.saved import append_saved, saved_rows
from conduit.rllib.sequences import chosen, sequences
from conduit.samplers import Prioritized
from conduit.store import Store
from conduit.table import Table
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError, SampleTimeout, ShapeMismatch, UnknownTable
from conduit_store.schema import Schema

__all__ = ["Delivering", "PrioritizedReplay", "Replay"]

_LEAST_PRIORITY = 1e-12  # as in RLlib's buffer: a TD error of 0 does not make a row unreachable
_ONGOING = 256  # episodes that the driver itself can have in hand
_SHORT = 10_000  # draws of sequences, one after the other, all of them too short to learn from


class Delivering(NamedTuple):
    """How batches are prepared: see `Table.loader`."""

    prefetch: int | str
    max_priority_drift: float | None
    timeout: float | None


class Replay:
    """Uniform replay. What RLlib's training step asks of its `local_replay_buffer`, and no more."""

    def __init__(
        self, store: Store, address: Address, delivery: Delivering, *, saved: bool = False, learners: int = 1
    ) -> None:
        self.store = store
        self._learners = learners  # that get equal shares of a batch
        self.saved = saved  # in the algorithm's checkpoints
        self.address = address
        self._delivery = delivery
        self._loader: Loader | None = None
        self._table: Table | None = None
        self._writer: FragmentWriter | None = None
        self._keys: Any = None  # of the batch delivered last
        self._patience = Patience(delivery.timeout)
        self._added = self._episodes = self._delivered = self._batches = 0

    @property
    def table(self) -> Table:
        """The table behind it.

        Raises:
            UnknownTable: no step has been written yet.
        """
        if self._table is None:
            self._table = self.address.table(self.store, None)
        return self._table

    def _existing(self) -> Table | None:
        """The table, where a step has been written."""
        try:
            return self.table
        except UnknownTable:
            return None

    def add(self, episodes: Any) -> None:
        """Count fragments that env runners have written; write episodes of those that have not been told where to."""
        episodes = episodes if isinstance(episodes, list) else [episodes]
        loose = [episode for episode in episodes if not isinstance(episode, Fragment)]
        if loose:
            if self._writer is None:
                self._writer = FragmentWriter(self.store, self.address, _ONGOING)
            episodes = [e for e in episodes if isinstance(e, Fragment)] + self._writer.write(loose)
        for fragment in episodes:
            self._added += fragment.steps
            self._episodes += fragment.ended

    def sample(
        self,
        num_items: int | None = None,
        *,
        n_step: Any = None,
        gamma: float | None = None,
        batch_length_T: int | None = None,
        beta: float | None = None,
        **_: Any,
    ) -> list[Any]:
        """Return a prepared batch of `num_items` windows, or a share of it for each learner: `Delivery` objects.

        A learner's share is what RLlib gives it: every so manieth row. RLlib's other arguments do not apply.
        Until there has been something to draw for the first time, each gets `Nothing`, without a wait.

        Raises:
            ConfigError: n_step, gamma or a sequence length other than the table was created for.
            SampleTimeout: nothing can be drawn, and at the beginning not for `timeout` seconds of training steps; says
                what is missing.
        """
        address = self.address
        length = batch_length_T or 0
        if n_step not in (None, address.n_step) or gamma not in (None, address.gamma) or length != address.max_seq_len:
            raise ConfigError(
                f"sample(n_step={n_step}, gamma={gamma}, batch_length_T={batch_length_T}): this replay was made for "
                f"n_step={address.n_step}, gamma={address.gamma} and sequences of {address.max_seq_len} steps. Set "
                "them before build_algo()"
            )
        if num_items is None:
            raise ConfigError("sample() needs num_items, the rows of a batch")
        if beta is not None:
            self._set_beta(beta)
        if self._patience.needed and not self._can_draw(num_items) and self._patience.lasts():
            return self._nothing()
        if address.max_seq_len:
            return self._sequences(num_items)
        prepared = self._draw(num_items)
        self._patience.over()
        steps = None
        if not isinstance(address.n_step, int):
            steps = drawn_steps(address.n_step, num_items, address.seed, self._batches)
        self._delivered += num_items
        self._batches += 1
        return self._shares(prepared, steps)

    def _can_draw(self, n: int) -> bool:
        table = self._existing()
        return table is not None and table.can_sample(n)

    def _nothing(self) -> list[Nothing]:
        return [Nothing() for _ in range(self._learners)]

    def _shares(self, prepared: Prepared, steps: Any) -> list[Delivery]:
        """A batch in equal shares, and its keys in the order in which learners report their errors."""
        of, (batch, stacks) = self._learners, prepared
        self._keys = batch.keys if of == 1 else np.concatenate([batch.keys[i::of] for i in range(of)])
        return [
            Delivery(batch, steps=steps, gamma=self.address.gamma, parts=(i, of), stacks=stacks) for i in range(of)
        ]

    def _sequences(self, num_items: int) -> list[Any]:
        """Sequences, one after the other, until they have `num_items` steps, each counted with one more as RLlib does.

        All learners get as many. As there, one is drawn again that is not longer than the burn-in.
        """
        of, length = self._learners, self.address.max_seq_len
        parts: list[dict[str, Array]] = []
        lengths = np.zeros(0, np.int64)
        while True:
            part = sequences(self._draw(-(-num_items // (length + 1))).batch)
            parts.append(part)
            lengths = np.concatenate([lengths, part["seq_lens"]])
            rows = np.flatnonzero(lengths > self.address.burn_in)
            needed = int(np.searchsorted(np.cumsum(lengths[rows] + 1), num_items)) + 1
            needed = -(-needed // of) * of
            if needed <= len(rows):
                break
            if not len(rows) and len(lengths) >= _SHORT:
                if self._patience.lasts():
                    return self._nothing()
                raise SampleTimeout(
                    f"{len(lengths)} sequences were drawn, and none is longer than burn_in_len={self.address.burn_in}: "
                    "episodes are shorter. Lower it"
                )
        self._delivered += num_items
        self._batches += 1
        made = chosen(parts, rows[:needed])
        self._patience.over()
        return [Delivery(made, parts=(i, of)) for i in range(of)]

    def _prepared(self, batch: Batch) -> Prepared:
        """In a thread of the loader: what can be done before the batch is asked for."""
        frames = self.address.frames
        return Prepared(batch, {}) if frames is None else frames.prepared(batch)

    def _draw(self, n: int) -> Prepared:
        try:
            table = self.table
        except UnknownTable:
            raise SampleTimeout(
                "no env runner has written a step yet: raise num_steps_sampled_before_learning_starts"
            ) from None
        loader = self._loader
        if loader is None or loader.settings.batch_size != n:
            self._close_loader()
            prefetch, drift, timeout = self._delivery
            transform = None if self.address.frames is None else self._prepared
            loader = self._loader = table.loader(
                n, prefetch=prefetch, max_priority_drift=drift, timeout=timeout, stream=0, transform=transform
            )
        found = loader.next()
        return found if isinstance(found, Prepared) else Prepared(found, {})

    def _close_loader(self) -> None:
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def _set_beta(self, beta: float) -> None:
        """Nothing is weighted here."""

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Nothing is prioritized here."""

    def get_metrics(self) -> dict[str, Any]:
        """Nothing: the numbers come into the result once an iteration, not once a step (see `report`)."""
        return {}

    def report(self) -> dict[str, Any]:
        """RLlib's numbers of a buffer, by its names, and the table's own under 'conduit'."""
        report: dict[str, Any] = {
            "num_env_steps_added_lifetime": self._added,
            "num_episodes_added_lifetime": self._episodes,
            "num_env_steps_sampled_lifetime": self._delivered,
        }
        table = self._existing()
        if table is not None:
            info = table.info()
            report["num_env_steps_stored"] = info.rows
            report["num_env_steps_evicted_lifetime"] = info.evicted
            report["conduit"] = info._asdict()
        if self._loader is not None:
            report["delivery"] = self._loader.metrics()._asdict()
        return report

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Steps stored now."""
        table = self._existing()
        return 0 if table is None else len(table)

    def __len__(self) -> int:
        return self.get_num_timesteps()

    def get_state(self) -> dict[str, Any]:
        """Every row and count, the rows as a checkpoint of the table: see saved.py."""
        table = self._existing()
        rows = None if table is None else saved_rows(table)
        schema = None if table is None else table.schema.to_json()
        return {
            "schema": schema,
            "rows": rows,
            "added": self._added,
            "episodes": self._episodes,
            "delivered": self._delivered,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Put back what get_state has returned; what is stored now is dropped.

        Raises:
            ConfigError: the rows have other columns than the table that is there.
        """
        self._added, self._episodes, self._delivered = state["added"], state["episodes"], state["delivered"]
        self._keys = None
        self._patience = Patience(self._delivery.timeout)
        self._close_loader()  # what it has prepared is of the rows before
        table = self._existing()
        if state["schema"] is not None:
            table = self._table = self.address.table(self.store, Schema.from_json(state["schema"]))
        if table is not None:
            table.clear()
        if table is not None and state["rows"] is not None:
            append_saved(table, state["rows"])

    def close(self) -> None:
        """Close the store; its memory goes once the env runners have stopped. Idempotent."""
        self._close_loader()
        if self._writer is not None:
            self._writer.close()
        self.store.close()


class PrioritizedReplay(Replay):
    """Prioritized replay, registered as RLlib's own so that TD errors come back to it."""

    def _set_beta(self, beta: float) -> None:
        sampler = self.address.sampler
        assert isinstance(sampler, Prioritized)
        if beta != sampler.beta:
            self.table.reconfigure(beta=beta)
            self.address = self.address._replace(sampler=replace(sampler, beta=beta))

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Set the priorities of the batch delivered last, in its order. Rows that are gone meanwhile are passed over.

        Raises:
            ShapeMismatch: not one priority a row. PriorityError: not finite.
        """
        keys, self._keys = self._keys, None
        values = np.maximum(np.asarray(priorities, np.float32), np.float32(_LEAST_PRIORITY))
        if keys is None or len(values) != len(keys):
            delivered = "no batch" if keys is None else f"a batch of {len(keys)}"
            raise ShapeMismatch(f"{len(values)} priorities, and {delivered} is waiting for them")
        self.table.update_priorities(keys, values)
