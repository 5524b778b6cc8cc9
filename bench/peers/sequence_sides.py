"""W4 sequences through Ray's object store, Arrow Flight and torchrl; see bench/sequences.py for what a side does."""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing
import threading
from collections import deque
from typing import Any

import numpy as np

from bench.sequences import GROUP_SIZE, GROUPS, LONGEST, TAKEN, Group, padded


def packed(group: Group) -> dict[str, Any]:
    """A group as one array for each column, and where its sequences begin."""
    offsets = np.zeros(GROUP_SIZE + 1, np.int64)
    np.cumsum([len(tokens) for tokens in group["tokens"]], out=offsets[1:])
    joined = {name: np.concatenate(group[name]) for name in ("tokens", "logp")}
    return {**joined, "offsets": offsets, "reward": group["reward"], "group": group["group"]}


def merged(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Packed groups as torch tensors, joined."""
    import torch

    lengths = np.concatenate([np.diff(group["offsets"]) for group in groups])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    joined = {name: np.concatenate([group[name] for group in groups]) for name in ("tokens", "logp", "reward", "group")}
    return {name: torch.from_numpy(array) for name, array in {**joined, "offsets": offsets}.items()}


class RaySide:
    """An object for each group; to stream, references go through an actor that is a queue."""

    def __init__(self) -> None:
        self.ray: Any = importlib.import_module("ray")
        context = self.ray.init(
            num_cpus=4, namespace="bench", log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False,
            object_store_memory=1 << 30,
        )  # fmt: skip
        self.address = context.address_info["address"]
        self.objects: list[Any] = [None] * GROUPS
        self.at = 0
        queues: Any = importlib.import_module("ray.util.queue")
        self.queue = queues.Queue(GROUPS, actor_options={"name": "groups"}).actor

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.ray = importlib.import_module("ray")
        self.ray.init(state["address"], namespace="bench", log_to_driver=False, logging_level=logging.ERROR)
        self.queue = self.ray.get_actor("groups")

    def fill(self, group: Group) -> None:
        self.objects[self.at] = self.ray.put(packed(group))
        self.at = (self.at + 1) % GROUPS

    def sample(self, groups: Any) -> Any:
        return merged(self.ray.get([self.objects[number] for number in groups]))

    def put(self, group: Group) -> None:
        self.ray.get(self.queue.put.remote([self.ray.put(packed(group))]))

    def take(self) -> int:
        references = self.ray.get([self.queue.get.remote(60.0) for _ in range(TAKEN)])
        batch = merged(self.ray.get([reference for (reference,) in references]))
        return len(batch["reward"]) if int(batch["tokens"][-1]) >= 0 else 0

    def close(self) -> None:
        self.ray.shutdown()


class FlightSide:
    """A server process that keeps record batches, one a group, in a ring and in a queue."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.server = context.Process(target=_serve, args=(there,), daemon=True)
        self.server.start()
        self.__setstate__({"port": self.pipe.recv()})

    def __getstate__(self) -> dict[str, Any]:
        return {"port": self.port}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from pyarrow import flight

        self.port = state["port"]
        self.client: Any = flight.FlightClient(f"grpc://127.0.0.1:{self.port}")

    def _send(self, group: Group, path: str) -> None:
        import pyarrow as pa
        from pyarrow import flight

        one = packed(group)
        offsets = pa.array(one["offsets"].astype(np.int32))
        columns = {name: pa.ListArray.from_arrays(offsets, pa.array(one[name])) for name in ("tokens", "logp")}
        batch = pa.record_batch({**columns, "reward": one["reward"], "group": one["group"]})
        writer, _ = self.client.do_put(flight.FlightDescriptor.for_path(path), batch.schema)
        writer.write_batch(batch)
        writer.close()

    def _get(self, ticket: Any) -> dict[str, Any]:
        import torch
        from pyarrow import flight

        table = self.client.do_get(flight.Ticket(json.dumps(ticket))).read_all().combine_chunks()
        lists = {name: table[name].chunk(0) for name in ("tokens", "logp")}
        made: dict[str, Any] = {name: column.flatten().to_numpy() for name, column in lists.items()}
        made["offsets"] = lists["tokens"].offsets.to_numpy().astype(np.int64)
        made["reward"] = table["reward"].chunk(0).to_numpy()
        return {name: torch.from_numpy(array) for name, array in made.items()}

    def fill(self, group: Group) -> None:
        self._send(group, "ring")

    def sample(self, groups: Any) -> Any:
        return self._get(groups.tolist())

    def put(self, group: Group) -> None:
        self._send(group, "queue")

    def take(self) -> int:
        batch = self._get(TAKEN)
        return len(batch["reward"]) if int(batch["tokens"][-1]) >= 0 else 0

    def close(self) -> None:
        self.client.close()
        self.server.kill()
        self.server.join()


def _serve(port: Any) -> None:
    """The server process; it ends when it is killed, or whoever started it has ended."""
    import pyarrow as pa
    from pyarrow import flight

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("grpc://127.0.0.1:0")
            self.ring: deque[Any] = deque(maxlen=GROUPS)
            self.queue: deque[Any] = deque()
            self.changed = threading.Condition()

        def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            batches = [chunk.data for chunk in reader]
            with self.changed:
                if descriptor.path[0] == b"ring":
                    self.ring.extend(batches)
                    return
                self.changed.wait_for(lambda: len(self.queue) < GROUPS)
                self.queue.extend(batches)
                self.changed.notify_all()

        def do_get(self, context: Any, ticket: Any) -> Any:
            wanted = json.loads(ticket.ticket)
            with self.changed:
                if isinstance(wanted, list):
                    batches = [self.ring[number] for number in wanted]
                else:
                    self.changed.wait_for(lambda: len(self.queue) >= wanted)
                    batches = [self.queue.popleft() for _ in range(wanted)]
                    self.changed.notify_all()
            return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(batches[0].schema, batches))

    server = Server()
    port.send(server.port)
    try:
        port.recv()
    except EOFError:
        server.shutdown()


class TorchrlSide:
    """torchrl's tensor storage, rows padded to the longest: quicker there than its storages of lists."""

    def __init__(self) -> None:
        data: Any = importlib.import_module("torchrl.data")
        self.make: Any = importlib.import_module("tensordict").TensorDict
        self.buffer: Any = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(GROUPS * GROUP_SIZE))

    def fill(self, group: Group) -> None:
        import torch

        rows = {name: torch.from_numpy(values) for name, values in padded(group).items()}
        assert rows["tokens"].shape == (GROUP_SIZE, LONGEST)
        self.buffer.extend(self.make(rows, [GROUP_SIZE]))

    def sample(self, groups: Any) -> Any:
        import torch

        rows = self.buffer[torch.from_numpy((groups[:, None] * GROUP_SIZE + np.arange(GROUP_SIZE)).ravel())]
        return {name: rows[name] for name in ("tokens", "logp", "length", "reward")}

    def close(self) -> None:
        del self.buffer
