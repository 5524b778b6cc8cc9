"""What is in memory already: mappings of arrays, and all that gives Arrow data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from conduit.exchange.damage import reading
from conduit.exchange.ipc import cut
from conduit.exchange.npz import arrow_of
from conduit_store.errors import SchemaError
from conduit_store.schema import Schema

__all__ = ["Memory"]


class Memory:
    """See formats.Source."""

    def __init__(self, given: Any) -> None:
        self.episodes: int | None = None
        self.rows: int | None = None
        if isinstance(given, Mapping):
            self._data: Any = arrow_of(Schema.flatten(given))
        elif isinstance(given, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
            self._data = given
        elif hasattr(given, "__arrow_c_stream__"):  # pandas, Polars, DuckDB
            try:
                self._data = pa.RecordBatchReader.from_stream(given)
            except pa.ArrowException as error:
                text = str(error).partition("\n")[0]
                raise SchemaError(
                    f"the {type(given).__name__} has no Arrow form ({text}). Give a mapping of arrays, as {{'x': "
                    "numpy.stack(frame['x'].tolist())}: pandas keeps no inner shapes"
                ) from error
        else:
            raise SchemaError(
                f"cannot import a {type(given).__name__}: give a path, a mapping of arrays, Arrow data (also of "
                "pandas, Polars or DuckDB) or a TensorDict"
            )
        self.schema = self._data.schema
        self.rows = None if self.once else self._data.num_rows

    def keep(self) -> None:
        """Take all of a stream, which can be read only once."""
        if self.once:
            self._data = self._data.read_all()
            self.rows = self._data.num_rows

    @property
    def once(self) -> bool:
        """Whether it can be read only once."""
        return isinstance(self._data, pa.RecordBatchReader)

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        data = pa.Table.from_batches([self._data]) if isinstance(self._data, pa.RecordBatch) else self._data
        for batch in data.to_batches() if isinstance(data, pa.Table) else data:
            with reading("the given data", "Arrow data"):  # type: ignore[arg-type]
                batch.validate(full=True)
            yield from cut(batch, columns, rows)

    def close(self) -> None:
        pass
