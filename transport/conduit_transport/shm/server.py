"""Answers processes that attach, in a thread of every process that holds a store."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from array import array
from contextlib import ExitStack
from dataclasses import dataclass

from conduit_store import segment
from conduit_store.errors import ForkedHandle, StoreClosed
from conduit_transport.forks import Descriptor, fork_guard, held, release

from .handshake import HELLO_BYTES, Credentials, Handshake, Reply, Status, decide, peer_credentials

__all__ = ["Server"]

_HELLO_TIMEOUT_S = 5.0
_SHORTAGE_PAUSE_S = 0.2
_MAX_WAITING = 64


@dataclass(slots=True)
class _Waiting:
    """A client that has connected and not yet said hello."""

    connection: socket.socket
    deadline: float


class Server:
    """Hands a store's descriptors to processes that connect. Made by every process that holds the store for
    writing.

    Takes over `listener` (closes it in `stop`, or when making the server fails) and keeps descriptors of
    its own of the two
    segments: `control_fd` and `data_fd` stay the caller's. Several processes may serve one listener;
        whichever is first answers,
    so a holder that is stopped or dead holds nobody up.

    One daemon thread, "conduit-serve", waits without using CPU and never holds up the interpreter's exit.
    Nothing that a client sends, omits or does to itself stops it or makes it print; a client that connects
    and says nothing is dropped after `hello_timeout_s` seconds, and others are answered meanwhile. `start`
    and `stop` may be called from any thread.

    In a forked child the server is inert: its descriptors are closed there, `start` raises, `stop` does
    nothing.

    Raises:
        OSError: out of descriptors.
    """

    def __init__(
        self,
        listener: socket.socket,
        control_fd: int,
        data_fd: int,
        handshake: Handshake,
        *,
        credentials: Credentials = peer_credentials,
        hello_timeout_s: float = _HELLO_TIMEOUT_S,
    ) -> None:
        self._pid = os.getpid()
        self._handshake = handshake
        self._credentials = credentials
        self._hello_timeout_s = hello_timeout_s
        self._lock = threading.RLock()  # reentrant: a finaliser that runs inside may call `stop`
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._waiting: dict[int, _Waiting] = {}  # by descriptor; the thread's own while it runs
        self._paused_until: float | None = None  # out of descriptors: not accepting until then
        with fork_guard, ExitStack() as undo:
            self._listener = held(listener)
            undo.callback(release, self._listener)
            listener.setblocking(False)
            # A description of its own: `control_fd`'s carries our liveness lock, and whoever received that
            # description would keep the lock alive after our death.
            self._control = self._own(undo, segment.reopen(control_fd, writable=True))
            self._data = self._own(undo, os.dup(data_fd))
            self._data_read_only = self._own(undo, segment.reopen(data_fd, writable=False))
            self._wake = self._own(undo, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            undo.pop_all()

    def __repr__(self) -> str:
        if self._pid != os.getpid():
            state = "inert after fork"
        elif self._stopping:
            state = "stopped"
        else:
            waiting = len(self._waiting)
            state = "not started" if self._thread is None else f"serving, {waiting} clients waiting"
        return f"<Server {state}>"

    def start(self) -> None:
        """Begins to answer. Does not block; a second call does nothing.

        Raises:
            ForkedHandle: in a forked child.
            StoreClosed: after `stop`.
            RuntimeError: the system gives no more threads.
        """
        if self._pid != os.getpid():
            raise ForkedHandle(
                f"this server belongs to pid {self._pid}, not to its forked child {os.getpid()}. "
                f"Attach again by name in the child"
            )
        with self._lock:
            if self._stopping:
                raise StoreClosed("this server was stopped and its listener closed. Attach again by name")
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="conduit-serve", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Stops answering and closes all descriptors, the listener too. The name's path stays: see `unlink`.

        Waits for the thread, which itself never waits for a client; called in that thread (by a finaliser),
        it does not wait. A second call, or one in a forked child, does nothing.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            self._stopping = True
            thread = self._thread
            if thread is None:
                self._close()
            else:
                if self._wake.fileno() >= 0:
                    os.eventfd_write(self._wake.fileno(), 1)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _close(self) -> None:
        with self._lock:  # no `stop` may write to `_wake` while its number goes to somebody else
            for waiting in self._waiting.values():
                release(waiting.connection)
            self._waiting.clear()
            for resource in (self._listener, self._control, self._data, self._data_read_only, self._wake):
                release(resource)

    @staticmethod
    def _own(undo: ExitStack, fd: int) -> Descriptor:
        descriptor = held(Descriptor(fd))
        undo.callback(release, descriptor)
        return descriptor

    # From here on: only in the thread.

    def _serve(self) -> None:
        try:
            poller = select.poll()
            poller.register(self._wake, select.POLLIN)
            poller.register(self._listener, select.POLLIN)
            listening = self._listener.fileno()
            while not self._stopping:
                for fd, _ in poller.poll(self._until_next_deadline_ms()):
                    if fd == listening:
                        self._accept(poller)
                    elif fd in self._waiting and self._answer(self._waiting[fd].connection):
                        self._drop(poller, fd)
                self._expire(poller)
        finally:
            self._close()

    def _until_next_deadline_ms(self) -> float | None:
        deadlines = [waiting.deadline for waiting in self._waiting.values()]
        if self._paused_until is not None:
            deadlines.append(self._paused_until)
        if not deadlines:
            return None
        return max(0.0, min(deadlines) - time.monotonic()) * 1000

    def _accept(self, poller: select.poll) -> None:
        for _ in range(_MAX_WAITING):
            try:
                with fork_guard:
                    connection = held(self._listener.accept()[0])
            except BlockingIOError:  # none left, or another holder was faster
                return
            except ConnectionError:  # gone before it was accepted
                continue
            except (OSError, MemoryError):
                # Out of descriptors. The listener stays readable, so polling it would spin; another holder
                # may have room.
                poller.unregister(self._listener)
                self._paused_until = time.monotonic() + _SHORTAGE_PAUSE_S
                return
            connection.setblocking(False)
            if self._answer(connection):
                release(connection)
            else:
                self._await_hello(poller, connection)

    def _await_hello(self, poller: select.poll, connection: socket.socket) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._drop(poller, next(iter(self._waiting)))  # the oldest
        fd = connection.fileno()
        self._waiting[fd] = _Waiting(connection, time.monotonic() + self._hello_timeout_s)
        poller.register(fd, select.POLLIN)

    def _expire(self, poller: select.poll) -> None:
        now = time.monotonic()
        for fd in [fd for fd, waiting in self._waiting.items() if waiting.deadline <= now]:
            self._drop(poller, fd)
        if self._paused_until is not None and self._paused_until <= now:
            self._paused_until = None
            poller.register(self._listener, select.POLLIN)

    def _drop(self, poller: select.poll, fd: int) -> None:
        poller.unregister(fd)
        release(self._waiting.pop(fd).connection)

    def _answer(self, connection: socket.socket) -> bool:
        """Answers a hello that has come. False while there is none: everything else ends the conversation."""
        try:
            # `recv`, not `recvmsg`: descriptors that a client sends are dropped by the kernel.
            message = connection.recv(HELLO_BYTES + 1)
            if message:
                self._reply(connection, message)
        except BlockingIOError:
            return False
        except (OSError, MemoryError):  # the client is gone, or will ask again
            pass
        return True

    def _reply(self, connection: socket.socket, message: bytes) -> None:
        reply, read_only = decide(message, self._credentials(connection), self._handshake)
        if reply.status is not Status.OK:
            _send(connection, reply, [])
            return
        data = self._data_read_only if read_only else self._data
        fds = [self._control.fileno(), data.fileno()]
        if not read_only:
            fds.append(self._listener.fileno())
        try:
            _send(connection, reply, fds)
        except OSError as error:  # too many in flight; if it is the client that is gone, this fails too
            _send(connection, Reply(Status.BUSY, self._handshake, error.strerror or ""), [])


def _send(connection: socket.socket, reply: Reply, fds: list[int]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
    try:
        connection.sendmsg([reply.pack()], ancillary, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    except BlockingIOError as error:  # a full buffer: nothing of ours is in it, so the client stuffed it
        raise ConnectionAbortedError("client does not read") from error
