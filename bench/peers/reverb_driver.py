"""dm-reverb: tables of a C++ server behind gRPC; the server is in this process, or in one of its own when shared."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from typing import Any

import torch

from bench.driver import Append
from bench.workloads import COLUMNS, Rows, Workload

ALPHA, BETA = 0.6, 0.4


class ReverbDriver:
    """Each row an item of one step, written by a structured writer, read by a TrajectoryDataset."""

    start_method = "spawn"

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        self.workload, self.capacity, self.prioritized = workload, capacity, prioritized
        self.process: Any = None
        self.server: Any = None
        if shared:
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            self.process = context.Process(target=_serve, args=(workload, capacity, prioritized, there), daemon=True)
            self.process.start()
            self.address = f"localhost:{here.recv()}"
            self.pipe = here
        else:
            self.server = make_server(workload, capacity, prioritized)
            self.address = f"localhost:{self.server.port}"
        self.streams: dict[int, Any] = {}
        self.client: Any = importlib.import_module("reverb").Client(self.address)

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "capacity": self.capacity, "prioritized": self.prioritized}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.client = importlib.import_module("reverb").Client(self.address)

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        if priorities is not None:
            raise ValueError("a structured writer gives every item the same priority")
        return [{name: values[i] for name, values in rows.items()} for i in range(len(rows["reward"]))]

    def appender(self, batch: int, own_priorities: bool) -> Append:
        structured: Any = importlib.import_module("reverb").structured_writer
        pattern = structured.pattern_from_transform(
            step_structure=dict.fromkeys(COLUMNS, 0), transform=lambda step: {k: v[-1:] for k, v in step.items()}
        )
        writer = self.client.structured_writer([structured.create_config(pattern=pattern, table="rows", conditions=[])])

        def append(rows: list[dict[str, Any]]) -> None:
            for row in rows:
                writer.append(row)
            writer.flush()

        return append

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        if n not in self.streams:
            reverb: Any = importlib.import_module("reverb")
            data = reverb.TrajectoryDataset.from_table_signature(
                self.address, "rows", max_in_flight_samples_per_worker=2 * n
            )
            self.streams = {n: iter(data.batch(n, drop_remainder=True))}
        batch = next(self.streams[n])
        tensors: dict[str, Any] = {k: torch.from_numpy(v.numpy()[:, 0]) for k, v in batch.data.items()}
        if not self.prioritized:
            return tensors, None
        sizes = torch.from_numpy(batch.info.table_size.numpy())
        weights = (torch.from_numpy(batch.info.probability.numpy()) * sizes) ** -BETA
        tensors["weights"] = weights / weights.max()
        return tensors, batch.info.key.numpy()

    def update(self, handle: Any, priorities: Any) -> object:
        updates = dict(zip(handle.tolist(), priorities.tolist(), strict=True))
        self.client.mutate_priorities("rows", updates=updates)
        return None

    def close(self) -> None:
        self.streams.clear()
        if self.process is not None:
            self.process.kill()
            self.process.join()
        else:
            self.server.stop()


def make_server(workload: Workload, capacity: int, prioritized: bool) -> Any:
    """A server of one table, on a free port."""
    reverb: Any = importlib.import_module("reverb")
    spec: Any = importlib.import_module("tensorflow").TensorSpec
    selectors = reverb.selectors
    table = reverb.Table(
        "rows", sampler=selectors.Prioritized(ALPHA) if prioritized else selectors.Uniform(),
        remover=selectors.Fifo(), max_size=capacity, rate_limiter=reverb.rate_limiters.MinSize(1),
        signature={name: spec((1, *shape), dtype) for name, (shape, dtype) in workload.columns.items()},
    )  # fmt: skip
    return reverb.Server([table], port=None)


def _serve(workload: Workload, capacity: int, prioritized: bool, port: Any) -> None:
    """The server process; it ends when it is killed, or whoever started it has ended."""
    server = make_server(workload, capacity, prioritized)
    port.send(server.port)
    try:
        port.recv()
    except EOFError:
        server.stop()
