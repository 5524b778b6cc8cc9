"""A server's life: start, stop, exit, idleness, forks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_store import segment
from conduit_store.errors import ForkedHandle, LayoutMismatch, StoreClosed, StoreNotFound
from conduit_transport import shm
from conduit_transport.shm.handshake import Reply, Status
from tests.shm_process import CONTROL_BYTES, open_descriptors
from tests.shm_stores import DATA_BYTES, HANDSHAKE, attached, connect, impostor, send, served
from tests.shm_support import SUM, children, no_new_descriptors, nothing_left, private_runtime_dir


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with private_runtime_dir(), nothing_left():
        yield


def test_stop_may_be_repeated_and_is_final() -> None:
    with served() as server:
        server.start()
        server.stop()
        server.stop()
        assert "stopped" in repr(server)
        with pytest.raises(StoreClosed, match="stopped"):
            server.start()
        with pytest.raises(StoreNotFound):
            connect()


def test_stop_without_start_closes_everything() -> None:
    listener = shm.listen("run1")
    control, data = segment.create("control", CONTROL_BYTES), segment.create("data", DATA_BYTES)
    shm.Server(listener, control, data, HANDSHAKE).stop()
    os.close(control)
    os.close(data)
    assert shm.unlink("run1")


def test_the_caller_may_close_its_descriptors_while_serving() -> None:
    listener = shm.listen("run1")
    control, data = segment.create("control", CONTROL_BYTES), segment.create("data", DATA_BYTES)
    server = shm.Server(listener, control, data, HANDSHAKE)
    os.close(control)
    os.close(data)
    server.start()
    with attached():
        pass
    server.stop()


def test_exit_without_stop_is_quick_and_silent() -> None:
    with children(2) as (holder, reader):
        assert holder.ask(f"create run1 {DATA_BYTES}") == "created"
        assert reader.ask("read run1") == f"attached {SUM}"
        assert reader.finish() == ""
        assert holder.finish() == ""
        assert not shm.is_live("run1")


def test_an_idle_server_never_wakes() -> None:
    with served():
        with attached():
            pass
        (thread,) = (t for t in threading.enumerate() if t.name == "conduit-serve")
        status = Path(f"/proc/self/task/{thread.native_id}/status")

        def switches() -> list[str]:
            return [line for line in status.read_text().splitlines() if "ctxt_switches" in line]

        settled = threading.Event()
        for _ in range(100):  # until it is back in poll
            before = switches()
            settled.wait(0.3)  # the period that is measured
            if switches() == before:
                return
        pytest.fail("the serving thread keeps waking up")


def test_thousands_of_rounds_leave_no_descriptor() -> None:
    with served(), no_new_descriptors():
        for round_ in range(1000):
            connect(read_only=bool(round_ % 2)).close()
        with pytest.raises(LayoutMismatch):
            connect(version=1)


def test_in_a_forked_child_the_server_is_inert_and_closed() -> None:
    before = open_descriptors()
    with served() as server:
        report, child_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(report)
            try:
                # Left: the two segments that are the test's own, and the pipe's end.
                result = f"{open_descriptors() - before} {server!r}"
                server.stop()
                try:
                    server.start()
                except ForkedHandle as error:
                    result += f" {error}"
                with attached(read_only=True):  # as any other process
                    result += " attached"
                os.write(child_end, result.encode())
            finally:
                os._exit(0)
        os.close(child_end)
        with open(report) as stream:
            result = stream.read()
        assert result.startswith("3 <Server inert after fork> this server belongs to pid")
        assert result.endswith("attached")
        assert os.waitpid(pid, 0)[1] == 0
        with attached():
            pass


def test_forks_amid_attaching_keep_nothing() -> None:
    """Children forked at any moment of serving and receiving hold no descriptor of either."""
    own = open_descriptors()
    with served():
        stop = threading.Event()

        def attach() -> None:
            while not stop.is_set():
                # The reply's descriptors are the caller's once `connect` returns; a fork right there copies
                # them.
                with contextlib.suppress(LayoutMismatch):
                    connect(version=1)

        client = threading.Thread(target=attach)
        client.start()
        counts = []
        for _ in range(50):
            report, child_end = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(child_end, str(open_descriptors() - own).encode())
                os._exit(0)
            os.close(child_end)
            counts.append(int(os.read(report, 100)))
            os.close(report)
            os.waitpid(pid, 0)
        stop.set()
        client.join()
    assert max(counts) == 4  # two segments and two pipe ends, all the test's own


def test_forks_amid_receiving_keep_no_segment() -> None:
    """As above, for what has come from a holder but not yet been handed to the caller."""
    control, data = segment.create("control", CONTROL_BYTES), segment.create("data", DATA_BYTES)
    message = Reply(Status.OK, HANDSHAKE).pack()
    stop = threading.Event()

    def attach() -> None:
        while not stop.is_set():
            with contextlib.suppress(LayoutMismatch):  # there should be three: these two never reach us
                connect()

    def segments() -> int:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum("memfd:" in os.readlink(link) for link in links if os.path.lexists(link))

    with impostor(lambda connection: send(connection, message, [control, data])):
        client = threading.Thread(target=attach)
        client.start()
        counts = []
        for _ in range(100):
            pid = os.fork()
            if pid == 0:
                os._exit(segments())
            counts.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        stop.set()
        client.join()
    os.close(control)
    os.close(data)
    assert counts == [2] * 100
