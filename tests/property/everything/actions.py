"""Everything that one may do with a table, done by chance to one table and its model at once."""

from __future__ import annotations

import os
import pickle
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from conduit import Batch, CapacityError, ConfigError, SampleTimeout, Store, Writer, samplers, windows
from conduit.checkpoints import Changes
from conduit.writer import VectorWriter
from tests.property.everything.checks import Checks, first_step, rows_of
from tests.property.everything.model import Episode, Model
from tests.property.everything.shapes import WRITERS, Columns, random_shape
from tests.store_support import scalar_writer, vector_writer

ENDS = ["", "", "", "", "terminated", "truncated"]


@dataclass
class Single:
    writer: Writer
    episode: Episode | None = None


@dataclass
class Vector:
    """Environments that step together; of each its episode, and whether its last step ended it."""

    writer: VectorWriter
    mode: str
    episodes: list[Episode | None]
    ended: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ended = [False] * len(self.episodes)


class Run:
    """A table of a shape chosen by `seed`, and what chance does to it. Files go into `folder`.

    Whatever fails carries a note with the seed, the shape and the actions until then.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.shape = random_shape(self.chance)
        self.model = Model(self.shape.max_times_sampled)
        self.checks = Checks(self.shape, self.model)
        self.seed, self.folder = seed, folder
        self.name = f"everything-{os.getpid()}-{seed}"
        self.log: list[str] = []
        self.singles: list[Single] = []
        self.vector: Vector | None = None
        self.extended: Episode | None = None  # goes on with the next extend
        self.kept = 0  # steps that must be there
        self.early = False  # or some have left for want of blocks
        self.store = Store.create(self.name, "64MiB")

    def __enter__(self) -> Run:
        try:
            self.table = self.shape.create(self.store, self.folder, self.seed)
        except BaseException:
            self.store.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            error.add_note(f"seed {self.seed}: {self.shape}\nactions: {', '.join(self.log)}")
        try:
            for single in self.singles:
                single.writer.close()
            if self.vector is not None:
                self.vector.writer.close()
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

    # ---- rows come in

    def write(self) -> None:
        """One of some writers appends steps, one by one; an episode may end without a flag."""
        if not self.singles or (self.chance.random() < 0.15 and len(self.singles) < WRITERS - 2):
            self.singles.append(Single(scalar_writer(self.table)))
        single = self.chance.choice(self.singles)
        for _ in range(self.chance.randint(1, 12)):
            episode = single.episode = single.episode or self.model.begin()
            end = self.chance.choice(["", *ENDS])
            single.writer.append(**self.shape.row(episode.next, end))
            episode.steps += 1
            if end or self.chance.random() < 0.05:
                single.writer.end(self.shape.observation(episode.next))
                episode.end, episode.final, single.episode = end, True, None

    def close_writer(self) -> None:
        """What it was writing is cut off."""
        if self.singles:
            single = self.singles.pop(self.chance.randrange(len(self.singles)))
            single.writer.close()
            cut(single.episode)

    def extend(self) -> None:
        """Whole arrays of steps, with priorities or without; the last episode goes on with the next ones."""
        rows: list[Columns] = []
        next_obs: list[int] = []
        for _ in range(self.chance.randint(1, max(1, min(15, self.table.max_size // 2)))):
            episode = self.extended = self.extended or self.model.begin()
            end = self.chance.choice(ENDS)
            rows.append(self.shape.row(episode.next, end))
            episode.steps += 1
            next_obs.append(episode.next)
            if end:
                episode.end, episode.final, self.extended = end, True, None
        columns = {**self._columns(rows), "next_obs": self.shape.observations(next_obs)}
        priorities = None
        if self.table.spec.prioritized and self.chance.random() < 0.5:
            priorities = np.array([self.chance.choice([0.5, 1, 2, 3]) for _ in rows], np.float32)
        assert len(self.table.extend(columns, priorities=priorities, return_keys=True)) == len(rows)

    def write_vector(self) -> None:
        """Environments step together, in one of the three modes in which gymnasium's reset themselves."""
        if self.vector is None:
            mode, envs = self.chance.choice(["next_step", "same_step", "disabled"]), self.chance.choice([1, 2, 3])
            self.vector = Vector(vector_writer(self.table, envs, autoreset=mode), mode, [None] * envs)
        for _ in range(self.chance.randint(1, 8)):
            self._step_vector(self.vector)
        if self.chance.random() < 0.2:
            self.vector.writer.close()
            self._forget_vector()

    def _step_vector(self, vector: Vector) -> None:
        rows: list[Columns] = []
        final_obs = np.empty(len(vector.episodes), object)  # None where none has ended
        for env, begun in enumerate(vector.episodes):
            episode = vector.episodes[env] = begun or self.model.begin()
            if vector.mode == "next_step" and vector.ended[env]:  # the step after: its final observation alone counts
                rows.append(self.shape.row(episode.next, ""))
                self._end_vector(vector, env)
                continue
            end = self.chance.choice(["", "", "", "terminated", "truncated"])
            rows.append(self.shape.row(episode.next, end))
            episode.steps += 1
            if end:
                episode.end, vector.ended[env] = end, True
                final_obs[env] = self.shape.observation(episode.next)
        columns = self._columns(rows)
        if vector.mode == "next_step":
            vector.writer.append(**columns)
            return
        if vector.mode == "same_step":
            vector.writer.append(**columns, final_obs=final_obs if any(vector.ended) else None)
        else:
            vector.writer.append(**columns)
            if any(vector.ended):
                vector.writer.end(final_obs)
        for env, ended in enumerate(vector.ended):
            if ended:
                self._end_vector(vector, env)

    def _end_vector(self, vector: Vector, env: int) -> None:
        episode = vector.episodes[env]
        assert episode is not None
        episode.final, vector.episodes[env], vector.ended[env] = True, None, False

    def _forget_vector(self) -> None:
        for episode in self.vector.episodes if self.vector else ():
            cut(episode)
        self.vector = None

    def _columns(self, rows: list[Columns]) -> Columns:
        return self.shape.columns(rows, masked=self.chance.random() < 0.5)

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
        name, prefetches = self._window(), (0, 2, "auto")
        prefetch: int | str = self.chance.choice(prefetches)
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
        for single in self.singles:
            single.writer.close()
            cut(single.episode)
        self.singles = []
        self._forget_vector()
        cut(self.extended)
        self.extended = None
        self.store.close()
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


def cut(episode: Episode | None) -> None:
    if episode is not None:
        episode.cut = True

