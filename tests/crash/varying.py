"""The role that appends, draws and reads rows that vary in length."""

from __future__ import annotations

from typing import Any

from tests.crash.varying_rows import columns, faults, table_faults
from tests.crash.writers import Role

__all__ = ["Varying"]


class Varying(Role):
    """Appends by rows and in pieces, draws, and reads the blocks; clears the table now and then."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.table = self.store.table("varying")
        self.writer = self.table.writer()
        self.next = 0

    def step(self) -> None:
        self.count += 1
        n = self.chance.randint(1, 8)
        rows = columns(self.writer_id, self.next, n)
        if self.count % 2:
            self.table.extend(rows)
        else:
            for i in range(n):
                self.writer.append(**{name: column[i] for name, column in rows.items()})
        self.next += n
        found = faults(self.table.sample(self.chance.randint(1, 8)))
        if self.count % 8 == 0:
            found += table_faults(self.table)
        if found:
            raise AssertionError("; ".join(found))
        if self.count % 50 == 0:
            self.table.clear()

    def close(self) -> None:
        self.writer.close()
