"""The roles of a crash test: each a class whose `step` is one operation, repeated until its process is told to quit.

A role checks all that it reads itself; what it finds wrong it raises.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pyarrow as pa

import conduit
from conduit import checkpoints
from conduit_store.arrow import to_numpy
from conduit_store.errors import CheckpointBusy, CheckpointLapsed, SampleTimeout, StaleKey
from conduit_transport import names
from tests.crash import limited, rows, varying, writers
from tests.crash.writers import Role

__all__ = ["ROLES"]


class Sampler(Role):
    """Draws from both tables, and sometimes waits for rows that do not come."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tables = [self.store.table(name) for name in ("plain", "episodic")]
        self.hungry = self.store.table("hungry")

    def draw(self, table: conduit.Table, n: int | None = None, window: str | None = None) -> conduit.Batch | None:
        try:
            batch = table.sample(n or self.chance.randint(1, 24), window=window, timeout=0.02)
        except SampleTimeout:  # only while a table is still empty
            return None
        _expect(rows.batch_faults(batch))
        _expect([] if (batch.probabilities > 0).all() else ["a row of probability 0 was drawn"])
        return batch

    def step(self) -> None:
        self.count += 1
        self.draw(self.tables[self.count % 2])
        if self.count % 3 == 0:
            # nearly all there are: with fewer an epoch would not end, for rows are replaced all the time
            batch = self.draw(self.tables[0], self.chance.choice((4, rows.MAX_SIZE - 4)), "once")
            _expect([] if batch is None or len(set(batch.keys)) == len(batch) else ["a row twice in a batch"])
        if self.count % 16 == 0:
            self.prepare_in_vain()
        if self.count % 8 == 0:
            try:
                self.hungry.sample(1, timeout=0.001)
            except SampleTimeout:
                return
            raise AssertionError("a table without rows was sampled")

    def prepare_in_vain(self) -> None:
        """A loader is closed with batches ready: their rows come back."""
        with self.tables[0].loader(4, window="once", prefetch=2) as loader:
            with suppress(SampleTimeout):
                loader.next(timeout=0.02)
            end = time.monotonic() + 0.02
            while loader.metrics().ready == 0 and time.monotonic() < end:
                time.sleep(0.0005)


class Updater(Sampler):
    """Draws, then sets the priorities that the rows' serials call for; looks at the counts now and then."""

    def step(self) -> None:
        self.count += 1
        table = self.tables[self.count % 2]
        if self.count % 5 == 1:
            info = table.info()
            _expect([] if info.rows <= rows.MAX_SIZE else [f"{info.rows} rows in {table.name}"])
        batch = self.draw(table)
        if batch is not None:
            result = table.update_priorities(batch.keys, rows.priority_of(batch["writer"], batch["serial"]))
            _expect([] if result.applied + result.stale == len(batch) else [f"{result} of {len(batch)} keys"])
            if table.name == "plain":
                table.update(batch.keys, note=rows.note_of(batch["writer"], batch["serial"]))


class Reader(Role):
    """Holds zero-copy views of a few blocks for some steps, and looks that no byte of them changes."""

    hold = 2

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tables = [self.store.table(name) for name in ("plain", "episodic")]
        self.views: list[tuple[dict[str, Any], int]] = []

    def step(self) -> None:
        self.count += 1
        for columns, _ in self.views:
            _expect(_view_faults(columns))
        table = self.tables[self.count % 2]
        blocks = table._native.live_blocks()
        if blocks:
            try:
                view = table.block(self.chance.choice(blocks))
            except StaleKey:  # evicted meanwhile
                return
            batch = view.to_arrow()
            columns = {name: to_numpy(name, batch.column(name)) for name in batch.schema.names}
            self.views.append((columns, len(view)))
        if len(self.views) > self.hold:
            del self.views[0]

    def close(self) -> None:
        self.views.clear()


class Hog(Reader):
    """Pins every live block of both tables once, and keeps them until told to quit."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.pinned: list[Any] = []

    def step(self) -> None:
        if not self.pinned:
            self.pinned = [view for table in self.tables for view in table.blocks()]

    def close(self) -> None:
        self.pinned.clear()


class Cleaner(Role):
    """Fills, samples and clears a table of its own."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.table = self.store.table("scratch")
        self.next = 0

    def step(self) -> None:
        self.table.extend(rows.plain_rows(self.writer_id, self.next, 10))
        self.next += 10
        self.count += 1
        if self.count % 3 == 0:
            self.table.clear()


class Remover(Role):
    """Appends to, draws from and updates the tables whose rows leave one by one."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tables = [self.store.table(name) for name in ("newest", "least")]
        self.next = 0

    def step(self) -> None:
        self.count += 1
        table = self.tables[self.count % 2]
        n = self.chance.randint(1, 8)
        columns = rows.plain_rows(self.writer_id, self.next, n)
        table.extend(columns, priorities=rows.priority_of(columns["writer"], columns["serial"]))
        self.next += n
        batch = table.sample(self.chance.randint(1, 8))
        _expect(rows.batch_faults(batch))
        if self.count % 3 == 0:
            result = table.update_priorities(batch.keys, rows.priority_of(batch["writer"], batch["serial"]))
            _expect([] if result.applied + result.stale == len(batch) else [f"{result} of {len(batch)} keys"])
        if self.count % 50 == 0:
            table.clear()


class Tuner(Role):
    """Changes the settings of tables that others use. Samplers wait for rows of the second, and are woken each time."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.plain, self.hungry = (self.store.table(name) for name in ("plain", "hungry"))

    def step(self) -> None:
        self.count += 1
        self.plain.reconfigure(alpha=rows.ALPHA if self.count % 2 else 1.0, eps=self.chance.choice((0.0, 0.5)))
        self.hungry.reconfigure(beta=self.chance.random())


class Saver(Role):
    """Takes a checkpoint, checks every byte of it, and looks at the rows. The next saver goes on in the same folder."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.folder = names.runtime_dir() / "saved"

    def step(self) -> None:
        try:
            self.store.checkpoint(self.folder)
        except (CheckpointBusy, CheckpointLapsed):  # the latter after it was stopped
            return
        manifest = checkpoints.verify(self.folder)
        for table in manifest.tables:
            if table.spec["name"] in ("plain", "episodic"):
                for part in table.parts:
                    batch = pa.ipc.open_file(self.folder / part.file).read_all()
                    _expect(_view_faults({name: to_numpy(name, batch.column(name)) for name in batch.schema.names}))


class Attacher(Role):
    """Attaches a second time, looks, and closes again."""

    def step(self) -> None:
        with conduit.Store.attach(self.store.name) as other:
            _expect(rows.batch_faults(other.table("plain").sample(4)))


class Creator(Role):
    """Creates the tables of a store that has none, in the order given; the others may do so as well."""

    def step(self) -> None:
        for name, settings in rows.TABLES.items():
            table = self.store.create_table(name, **settings, exist_ok=True)
        table = self.store.table("plain")
        table.extend(rows.plain_rows(self.writer_id, self.count, 1))
        _expect(rows.batch_faults(table.sample(4)))
        table.verify()
        self.count += 1


ROLES: dict[str, type[Role]] = {
    "extend": writers.PlainWriter,
    "append": writers.RowWriter,
    "episodes": writers.EpisodeWriter,
    "fragments": writers.EpisodeExtender,
    "vector": writers.VectorWriter,
    "writers": writers.Writers,
    "sampler": Sampler,
    "updater": Updater,
    "reader": Reader,
    "hog": Hog,
    "cleaner": Cleaner,
    "remover": Remover,
    "varying": varying.Varying,
    "tuner": Tuner,
    "limited": limited.Limited,
    "saver": Saver,
    "attacher": Attacher,
    "creator": Creator,
}


def _expect(faults: list[str]) -> None:
    if faults:
        raise AssertionError("; ".join(faults))


def _view_faults(columns: dict[str, Any]) -> list[str]:
    steps = columns["writer"] != 0  # final observations carry nothing else
    return rows.stored_faults({name: column[steps] for name, column in columns.items()})
