"""The role that appends and samples under limiters, in both of which it is made to wait now and then."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import conduit
from conduit_store.errors import AppendTimeout, SampleTimeout
from tests.crash import rows
from tests.crash.writers import Role

__all__ = ["Limited", "faults"]



class Limited(Role):
    """Runs `limited` (as many samples as inserts) and `counted` (a row leaves when it was sampled twice) by turns."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tables = [self.store.table(name) for name in ("limited", "counted")]
        self.writers = [table.writer(timeout=0.003) for table in self.tables]
        self.next = 0

    def step(self) -> None:
        self.count += 1
        which = self.count % 2
        for _ in range(self.chance.randint(1, 4)):
            try:
                self._append(which)
            except AppendTimeout:
                break
        with suppress(SampleTimeout):
            _expect(rows.batch_faults(self.tables[which].sample(self.chance.randint(1, 3), timeout=0.003)))
        if self.count % 6 == 0:  # what a loader has prepared and does not hand over comes back
            with self.tables[0].loader(2, prefetch=2, timeout=0.003) as loader, suppress(SampleTimeout):
                _expect(rows.batch_faults(loader.next()))

    def _append(self, which: int) -> None:
        columns = rows.plain_rows(self.writer_id, self.next, 1)
        self.next += 1
        if self.chance.random() < 0.5:
            self.writers[which].append(**{name: column[0] for name, column in columns.items()})
        else:
            self.tables[which].extend(columns, timeout=0.003)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


def faults(tables: dict[str, conduit.Table]) -> list[str]:
    """What is wrong with the limiters of a store in which nobody is at work."""
    found: list[str] = []
    info = tables["limited"].info()
    if info.limiter_reserved:
        found.append(f"{info.limiter_reserved} samples are still reserved, for nobody")
    if info.limiter_cursor != info.limiter_inserts - info.limiter_samples:
        found.append(f"cursor {info.limiter_cursor}, {info.limiter_inserts} inserts - {info.limiter_samples} samples")
    if info.limiter_cursor < info.limiter_low or info.limiter_inserts != info.appended:
        found.append(f"limiter: {info}")
    info = tables["counted"].info()
    if info.rows > 24:
        found.append(f"{info.rows} rows where appends wait at 24")
    if info.sampled_out + info.evicted_early > info.evicted:
        found.append(f"{info.evicted} rows have left, {info.sampled_out} of them by being sampled")
    return found


def _expect(found: list[str]) -> None:
    if found:
        raise AssertionError("; ".join(found))
