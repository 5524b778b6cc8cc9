"""Everything that one may do with a table, done by chance to one table and its model at once."""

from __future__ import annotations

import os
import pickle
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np

from conduit import Batch, CapacityError, ConfigError, SampleTimeout, Store, samplers, windows
from conduit.checkpoints import Changes
from tests.property.everything.checks import Checks, first_step, rows_of
from tests.property.everything.shapes import random_shape
from tests.property.everything.writing import Writing


class Run(Writing):
    """A table of a shape chosen by `seed`, and what chance does to it. Files go into `folder`.

    Whatever fails carries a note with the seed, the shape and the actions until then.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        chance = random.Random(seed)
        super().__init__(chance, random_shape(chance))
        self.checks = Checks(self.shape, self.model)
        self.seed, self.folder = seed, folder
        self.name = f"everything-{os.getpid()}-{seed}"
        self.log: list[str] = []
        self.kept = 0  # steps that must be there
        self.early = False  # or some have left for want of blocks
        self.store = Store.create(self.name, "64MiB")

    def __enter__(self) -> Run:
        try:
            self.table = self.shape.create(self.store, self.folder, self.seed)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            error.add_note(f"seed {self.seed}: {self.shape}\nactions: {', '.join(self.log)}")
        try:
            self.close()
        finally:
            self.store.close()

    def play(self, actions: int) -> None:
        """Do so many things, then check the whole table."""
        often: dict[Callable[[], None], int] = {
            self.write: 5, self.extend: 3, self.write_vector: 3, self.close_writer: 1, self.update: 2, self.sample: 3,
            self.load: 1, self.pickle: 1, self.restore: 1, self.fork: 1, self.attach: 1,
        }  # fmt: skip
        for _ in range(actions):
            action = self.chance.choices(list(often), list(often.values()))[0]
            self.log.append(action.__name__)
            before = self.model.steps
            action()
            self.table.verify()
            self._check_size(self.model.steps - before)
        self.log.append("check")
        self.checks.table(self.table)

    def _check_size(self, appended: int) -> None:
        """No row leaves before the table is full. Rows that vary in length may: they may need more than there is."""
        self.kept = min(self.table.max_size, self.kept + appended)
        self.early = self.early or self.table.info().evicted_early > 0
        if self.shape.max_times_sampled is None and not self.shape.ragged and not self.early:
            assert len(self.table) == self.kept, (len(self.table), self.kept)

    # ---- rows come out

    def sample(self) -> None:
        self._draw(self.chance.choice([1, 4, 9]))

    def pickle(self) -> None:
        drawn = self._draw(self.chance.choice([1, 4, 9]))
        if drawn is not None:
            name, batch, _ = drawn
            self.checks.batch(self.table, name, pickle.loads(pickle.dumps(batch)))

    def load(self) -> None:
        """A loader's batches; where draws are counted, those that it prepared and did not deliver would count too."""
        if self.shape.max_times_sampled is not None:
            return
        name = self._window()
        prefetch: int | str = self.chance.choice((0, 2, "auto"))
        try:
            with self.table.loader(3, window=name, prefetch=prefetch, timeout=0.05) as loader:
                for _ in range(3):
                    self.checks.batch(self.table, name, loader.next())
        except (SampleTimeout, CapacityError):
            pass

    def update(self) -> None:
        """Priorities and advantages of drawn rows are rewritten."""
        drawn = self._draw(5)
        if drawn is None:
            return
        name, batch, numbers = drawn
        window = self.shape.windows[name]
        sequences = isinstance(window, windows.Sequence | windows.Episode)
        if isinstance(self.shape.samplers[name], samplers.Prioritized):
            priorities = np.array([self.chance.choice([0.0, 1e-8, 1.0, 5.0, 1e6]) for _ in numbers])
            mask = batch["mask"] if sequences and self.chance.random() < 0.5 else None
            if mask is not None:
                priorities = np.where(mask, priorities[:, None], np.nan)
            result = self.table.update_priorities(batch.keys, priorities, window=name, mask=mask)
            assert result.stale == self._spent(numbers), result
        if self.shape.nullable and not sequences:
            advantages = [float(self.chance.randint(0, 1000)) for _ in numbers]
            result = self.table.update(batch.keys, adv=advantages)
            assert result.stale == self._spent(numbers), result
            for number, advantage in zip(numbers, advantages, strict=True):
                self.model.rewrite(number, advantage)

    def _spent(self, numbers: list[int]) -> int:
        return sum(map(self.model.spent, numbers))

    def _window(self) -> str:
        return self.chance.choice(sorted(self.shape.windows))

    def _draw(self, n: int) -> tuple[str, Batch, list[int]] | None:
        """Some window's batch, checked and counted, and the steps that were drawn; None where there is none."""
        name = self._window()
        try:
            batch = self.table.sample(n, window=name, timeout=0)
        except (SampleTimeout, CapacityError):
            return None
        except ConfigError:  # so many draws are never left
            assert self.shape.max_times_sampled is not None
            return None
        self.checks.batch(self.table, name, batch)
        numbers = [first_step(self.shape.windows[name], row) for row in rows_of(batch)]
        for number in numbers:
            self.model.drawn(number)
        return name, batch, numbers

    # ---- others look, and time passes

    def restore(self) -> None:
        """The store is saved and restored, by chance with room for more rows or fewer; who was writing has gone."""
        path, max_size = self.folder / "checkpoint", self.table.max_size
        self.store.checkpoint(path, keep=self.chance.choice([1, 2]))
        for single in self.singles:  # the other writers find the store closed under them
            single.writer.close()
        self.store.close()
        self.leave()
        changes: dict[str, Changes] = {}
        if self.chance.random() < 0.4:
            changes["t"] = Changes(max_size=self.chance.choice([max_size // 2 + 6, max_size, max_size * 2]))
        try:
            self.store = Store.restore(path, self.name, "128MiB", tables=changes)
        except ConfigError:  # a window that is longer, memory that is less than such a table needs
            assert changes
            self.store = Store.restore(path, self.name, "128MiB")
        self.table = self.store["t"]
        if self.table.max_size != max_size:  # the newest rows, for which there are blocks: short episodes need more
            self.kept = min(self.kept, len(self.table))

    def fork(self) -> None:
        """A forked process checks the table that it inherited."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self.checks.table(self.table)
            except BaseException as error:
                os.write(writing, "".join(traceback.format_exception(error)).encode()[:60_000])
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as said:
            fault = said.read()
        os.waitpid(pid, 0)
        assert not fault, f"in a forked process:\n{fault}"

    def attach(self) -> None:
        """Whoever attaches to read sees the same."""
        with Store.attach(self.name, read_only=True) as other:
            self.checks.table(other["t"])
