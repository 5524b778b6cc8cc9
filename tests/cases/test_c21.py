"""C21: draining an exactly full ring returned nothing, because cursors cannot tell full from empty."""

from __future__ import annotations

import numpy as np

from tests.queue_support import put, queue_in, rest
from tests.store_support import fresh_store


def test_an_exactly_full_queue_is_drained_whole() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 5)
        queue.extend({"x": np.arange(5)})
        assert rest(queue) == [0, 1, 2, 3, 4]
        put(queue, 5, 6)
        assert rest(queue) == [5, 6]
        assert rest(queue) == []
        queue.verify()
        assert len(queue) == 0
