"""A blocking call for event loops: it runs in a thread of its own, and what it returns is never lost."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from conduit_store.errors import StoreClosed

__all__ = ["AsyncCalls"]


class AsyncCalls:
    """Runs `next` in a thread for event loops. What a cancelled call was waiting for goes to the next one."""

    def __init__(self, call: Callable[[float | None], Any]) -> None:
        self._next = call
        self._asked: queue.SimpleQueue[tuple[Future[Any], float | None] | None] = queue.SimpleQueue()
        self._abandoned: deque[Future[Any]] = deque()
        self._thread = threading.Thread(target=self._serve, name="conduit-loader-async", daemon=True)
        self._thread.start()

    async def call(self, timeout: float | None) -> Any:
        if self._abandoned:
            future = self._abandoned.popleft()
        else:
            future = Future()
            future.set_running_or_notify_cancel()  # it cannot be taken back: the batch will come
            self._asked.put((future, timeout))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._abandoned.append(future)
            raise

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, timeout = asked
            try:
                future.set_result(self._next(timeout))
            except BaseException as error:
                future.set_exception(error)
            del asked, future

    def close(self) -> None:
        self._asked.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()
        while not self._asked.empty():  # asked for since: the loader is closed, and says so
            asked = self._asked.get()
            if asked is not None:
                asked[0].set_exception(StoreClosed("this loader is closed: call table.loader() for a new one"))
