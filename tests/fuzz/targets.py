"""What is fuzzed. A target takes bytes; it raises what nobody may meet: all that is not a ConduitError.

Wrong memory accesses end the process, which the fuzzer notices as well.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import shutil
import tempfile
import zlib
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import pyarrow as pa

import conduit
from conduit import Column, Schema, samplers, windows
from conduit.checkpoints import manifest as manifests
from conduit.checkpoints.reading import read_tables
from conduit.exchange import formats
from conduit.exchange.columns import columns_of
from conduit.exchange.frame import Frame
from conduit.spec import TableSpec
from conduit_store.errors import ConduitError
from conduit_store.native import native
from tests.fuzz.edits import edited_bytes, edited_json

__all__ = ["TARGETS"]

_WHOLE = 64  # one input of so many goes all the way
_MOST_BYTES = 16 << 20  # of a table that is restored
_HEADER = 256  # bytes of the control segment that an attach looks at before all others

STEPS = Schema(
    (
        Column("obs", "float32", (3,)), Column("action", "int64"), Column("reward", "float32", mutable=True),
        Column("terminated", "bool"), Column("truncated", "bool"),
    )
)  # fmt: skip


class Target(ABC):
    """One parser. `seeds`: bytes to begin with. `most`: bytes of an input; an edit of something whole takes 4 or 5."""

    seeds: tuple[bytes, ...] = (b"", b"\0" * 8, bytes(range(40)))
    most = 64

    def __init__(self) -> None:
        memory = Path("/dev/shm")  # a disk's files take longer than what reads them
        self.folder = Path(tempfile.mkdtemp(prefix="conduit-fuzz-", dir=memory if memory.is_dir() else None))

    @abstractmethod
    def run(self, data: bytes) -> None:
        """Read what `data` makes of something whole, and do all that is done with it."""

    def look(self, data: bytes) -> None:
        """Read it, as far as that is quick: what most executions of a fuzzer do."""
        self.run(data)

    def close(self) -> None:
        """Take away what it has made."""
        shutil.rmtree(self.folder)


def filled(store: conduit.Store) -> None:
    """Tables of several kinds: episodes, a queue, rows that vary in length."""
    steps = store.create_table(
        "steps", STEPS, 64, window=windows.NStep(3), sampler=samplers.Prioritized(), mean_episode_length=5
    )
    ends = np.arange(30) % 6 == 5
    steps.extend(
        {
            "obs": np.ones((30, 3), np.float32), "next_obs": np.ones((30, 3), np.float32), "action": np.arange(30),
            "reward": np.ones(30, np.float32), "terminated": ends, "truncated": ends & False,
        }
    )  # fmt: skip
    queue = store.create_queue("queue", Schema((Column("x", "int64"),)), 16, consumers=("a", "b"))
    queue.extend({"x": np.arange(9)})
    queue.sample(3, consumer="a").ack()
    texts = Schema((Column("text", "string", mean_length=6), Column("n", "int32")))
    store.create_table("texts", texts, 16).extend({"text": ["a", "", "hello"], "n": np.arange(3, dtype=np.int32)})


class Restore(Target):
    """What a manifest with a right checksum says is checked before anything is done by it. All of it, and slow."""

    def __init__(self) -> None:
        super().__init__()
        with conduit.Store.create(f"fuzz-{os.getpid()}", "32MiB", max_processes=4) as store:
            filled(store)
            store.checkpoint(self.folder)
        self.path = manifests.path_of(self.folder, 1)
        self.whole = json.dumps(json.loads(self.path.read_text())["manifest"])

    def run(self, data: bytes) -> None:
        body = edited_json(self.whole, data).encode()
        self.path.write_bytes(b'{"crc32c": "%08x", "manifest": %b}\n' % (native.crc32c(body), body))
        tables = read_tables(self.folder, manifests.find(self.folder, 1))
        if sum(table.spec.block_layout().data_bytes for table in tables) > _MOST_BYTES:
            return
        with conduit.Store.restore(self.folder, f"restored-{os.getpid()}", "32MiB", max_processes=4) as store:
            for name in store.tables():
                store._table(name).verify()


class Manifest(Restore):
    """As far as it can be looked at without files: what it says of one table."""

    most = 32

    def __init__(self) -> None:
        super().__init__()
        fields = json.loads(self.whole)
        fields["tables"] = fields["tables"][:1]
        self.whole = json.dumps(fields)

    def run(self, data: bytes) -> None:
        body = edited_json(self.whole, data).encode()
        self._look(b'{"crc32c": "%08x", "manifest": %b}\n' % (native.crc32c(body), body))

    def _look(self, text: bytes) -> None:
        for table in manifests.parsed(text, self.folder, 1).tables:
            TableSpec.from_json(json.dumps(table.spec)).block_layout()


class ManifestFile(Manifest):
    """The same file, damaged as a file."""

    def __init__(self) -> None:
        super().__init__()
        self.file = self.path.read_bytes()

    def run(self, data: bytes) -> None:
        self._look(edited_bytes(self.file, data))


class Spec(Target):
    """Settings of tables, which every process that attaches reads."""

    most = 32

    def __init__(self) -> None:
        super().__init__()
        window = {"a": windows.Sequence(4, burn_in=2), "b": windows.FrameStack(2)}
        with conduit.Store.create(f"fuzz-{os.getpid()}", "32MiB", max_processes=4) as store:
            table = store.create_table("t", STEPS, 64, window=window, sampler=samplers.Prioritized())
            self.whole = table.spec.to_json()

    def run(self, data: bytes) -> None:
        text = edited_json(self.whole, data)
        spec = TableSpec.from_json(text)
        assert TableSpec.from_json(spec.to_json()) == spec
        spec.block_layout()


class Numpy(Target):
    """Import of .npz files."""

    suffix = ".npz"
    format = "numpy"

    def __init__(self) -> None:
        super().__init__()
        self.store = conduit.Store.create(f"fuzz-{os.getpid()}", "32MiB", max_processes=4)
        filled(self.store)
        whole = self.folder / f"whole{self.suffix}"
        self.store["steps"].export(whole)
        self.whole = whole.read_bytes()
        self.table = self.store.create_table("into", STEPS, 256, window=windows.NStep(3))
        self.path = self.folder / f"edited{self.suffix}"

    def run(self, data: bytes) -> None:
        self.write(data)
        try:
            self.table.import_from(self.path)
        finally:
            self.table.clear()

    def look(self, data: bytes) -> None:
        self.write(data)
        source = formats.load(self.format).Source(self.path)
        try:
            frame = Frame.of_arrow(source.schema, STEPS, self.path, {})
            for piece in source.pieces(frame.columns_to_read(source.schema.names), 100):
                columns_of(frame.schema, piece)
        finally:
            source.close()

    def write(self, data: bytes) -> None:
        """Write the file that `data` makes of a whole one."""
        self.path.write_bytes(edited_bytes(self.whole, data))

    def close(self) -> None:
        self.store.close()
        super().close()


class Arrow(Numpy):
    """Import of Arrow IPC files: pyarrow reads them, and ours is what it gives."""

    suffix = ".arrow"
    format = "arrow"


class RLlibJson(Numpy):
    """Import of RLlib's JSON files: the lines, and the pickles in compressed columns. What the first byte says."""

    suffix = ".json"
    format = "rllib-json"
    most = 48

    def __init__(self) -> None:
        Target.__init__(self)
        self.store = conduit.Store.create(f"fuzz-{os.getpid()}", "32MiB", max_processes=4)
        self.table = self.store.create_table("into", STEPS, 256, window=windows.NStep(3))
        self.path = self.folder / f"edited{self.suffix}"
        obs = np.ones((4, 3), np.float32)
        self.pickles = [pickle.dumps(obs, 2), pickle.dumps({"x": (obs, [1.5])}, 4), pickle.dumps(obs, 5)]
        self.batch = {
            "type": "SampleBatch", "obs": obs.tolist(), "new_obs": obs.tolist(), "actions": [0, 1, 0, 1],
            "rewards": [0.5, 1.0, 0.0, 2.0], "terminateds": [False, True, False, False], "t": [0, 1, 0, 1],
            "truncateds": [False] * 4, "eps_id": [3, 3, 4, 4], "infos": [{}] * 4,
        }  # fmt: skip

    def write(self, data: bytes) -> None:
        which = data[0] % (len(self.pickles) + 1) if data else 0
        if which < len(self.pickles):
            out = pa.BufferOutputStream()
            with pa.output_stream(out, compression="lz4") as stream:
                stream.write(edited_bytes(self.pickles[which], data[1:]))
            text = json.dumps({**self.batch, "obs": base64.b64encode(out.getvalue()).decode()})
        else:
            text = edited_json(json.dumps(self.batch), data[1:])
        self.path.write_text(f"{text}\n{json.dumps(self.batch)}\n")


class Header(Target):
    """The head of a control segment, as an attach meets it."""

    def __init__(self) -> None:
        super().__init__()
        self.control = os.memfd_create("fuzz-control")
        self.data = os.memfd_create("fuzz-data")
        size = native.fixed_control_bytes(2, 2) + 4096
        os.ftruncate(self.control, size)
        os.ftruncate(self.data, 4096)
        native.format_control(self.control, size, 4096, 2, 2, "fuzz")
        self.whole = os.pread(self.control, _HEADER, 0)

    def run(self, data: bytes) -> None:
        os.pwrite(self.control, edited_bytes(self.whole, data).ljust(_HEADER, b"\0")[:_HEADER], 0)
        attachment = native.Attachment(self.control, self.data, False)
        try:
            attachment.tables()
            attachment.processes()
        finally:
            attachment.close()
            os.pwrite(self.control, b"\0" * 4096, native.fixed_control_bytes(2, 2) - 4096)

    def close(self) -> None:
        os.close(self.control)
        os.close(self.data)
        super().close()


TARGETS: dict[str, type[Target]] = {
    "manifest": Manifest, "restore": Restore, "manifest-file": ManifestFile, "spec": Spec, "npz": Numpy, "arrow": Arrow,
    "rllib-json": RLlibJson, "header": Header,
}  # fmt: skip


def once(target: Target, data: bytes) -> None:
    """One input, all of what is done with it: errors of ours are what is expected."""
    with contextlib.suppress(ConduitError):
        target.run(data)


def fuzzed(target: Target, data: bytes) -> None:
    """One execution of a fuzzer. All of it for one input of 64, the same ones each time."""
    with contextlib.suppress(ConduitError):
        (target.run if zlib.crc32(data) % _WHOLE == 0 else target.look)(data)
