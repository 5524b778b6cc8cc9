"""pyarrow Flight: a NumPy ring in a server process, rows through gRPC. Uniform only. In the product's environment."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import torch

from bench.driver import Append
from bench.workloads import Rows, Workload


class FlightDriver:
    """A client, and the server that it starts. Rows travel as record batches of fixed-size binary columns."""

    start_method = "spawn"

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        if prioritized:
            raise ValueError("the Flight ring draws uniformly")
        from pyarrow import flight

        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()  # the server lives as long as it
        self.server = context.Process(target=_serve, args=(workload, capacity, there), daemon=True)
        self.server.start()
        self.columns = workload.columns
        self.client: Any = flight.FlightClient(f"grpc://127.0.0.1:{self.pipe.recv()}")

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        import pyarrow as pa

        n = len(rows["reward"])
        arrays = [_binary(n, rows[name]) for name in self.columns]
        return pa.record_batch(arrays, names=list(self.columns))

    def appender(self, batch: int, own_priorities: bool) -> Append:
        return self._append

    def _append(self, part: Any) -> None:
        from pyarrow import flight

        writer, _ = self.client.do_put(flight.FlightDescriptor.for_path("rows"), part.schema)
        writer.write_batch(part)
        writer.close()

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        from pyarrow import flight

        batch = self.client.do_get(flight.Ticket(str(n))).read_chunk().data
        tensors: dict[str, Any] = {}
        for name, (shape, dtype) in self.columns.items():
            array = np.frombuffer(batch.column(name).buffers()[1], dtype).reshape(n, *shape)
            tensors[name] = torch.from_numpy(array)
        return tensors, None

    def update(self, handle: Any, priorities: Any) -> object:
        raise ValueError("the Flight ring has no priorities")

    def close(self) -> None:
        self.client.close()
        self.server.kill()
        self.server.join()


def _binary(n: int, values: Any) -> Any:
    """Rows of an array as fixed-size binary, without a copy where they are contiguous."""
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(values.nbytes // n), n, [None, pa.py_buffer(values)])


def _serve(workload: Workload, capacity: int, port: Any) -> None:
    """The server process; ends when it is killed, or its parent's pipe is."""
    import pyarrow as pa
    from pyarrow import flight

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("grpc://127.0.0.1:0")
            self.rows = {k: np.empty((capacity, *shape), dtype) for k, (shape, dtype) in workload.columns.items()}
            self.head = self.size = 0
            self.chance = np.random.default_rng(0)

        def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            for chunk in reader:
                batch = chunk.data
                n = batch.num_rows
                places = (self.head + np.arange(n)) % capacity
                for name, column in self.rows.items():
                    values = np.frombuffer(batch.column(name).buffers()[1], column.dtype, n * column[0].size)
                    column[places] = values.reshape(n, *column.shape[1:])
                self.head = (self.head + n) % capacity
                self.size = min(capacity, self.size + n)

        def do_get(self, context: Any, ticket: Any) -> Any:
            n = int(ticket.ticket)
            places = self.chance.integers(0, self.size, n)
            drawn = [_binary(n, column.take(places, 0)) for column in self.rows.values()]
            batch = pa.record_batch(drawn, names=list(self.rows))
            return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(batch.schema, [batch]))

    server = Server()
    port.send(server.port)
    try:
        port.recv()  # nothing comes: it ends with whoever started it
    except EOFError:
        server.shutdown()
