"""C46: shared memory was reserved on paper only, and a write met SIGBUS."""

from __future__ import annotations

import pytest

from conduit import OutOfHostMemory, Store
from conduit_store import memory
from tests.shm_support import holders_of, no_new_descriptors, private_runtime_dir
from tests.store_support import fresh_store, plain_table


def test_more_than_there_is_is_refused_with_both_numbers_and_nothing_stays() -> None:
    asked = memory.available_bytes().bytes + (1 << 40)
    with private_runtime_dir() as directory, no_new_descriptors():
        with pytest.raises(OutOfHostMemory) as caught:
            Store.create("c46", asked)
        assert f"{asked:,}" in str(caught.value)
        assert "available" in str(caught.value)
        assert holders_of("conduit-c46-") == 0
        assert not list(directory.glob("*.sock"))
        with Store.create("c46", "1MiB"):
            pass


def test_pages_are_reserved_when_the_table_is_made() -> None:
    with fresh_store("64MiB") as store:
        before = store.metrics().reserved_bytes
        table = plain_table(store, 4_000_000)
        info = table.info()
        assert info.data_bytes >= 32_000_000
        assert store.metrics().reserved_bytes - before >= info.data_bytes + info.index_bytes


def test_a_table_larger_than_the_store_is_refused_and_nothing_stays() -> None:
    with fresh_store("4MiB") as store:
        before = store.metrics().reserved_bytes
        with pytest.raises(
            OutOfHostMemory, match=r"table 't' needs \d+ bytes of rows .* Raise host_memory or lower max_size"
        ):
            plain_table(store, 4_000_000)
        assert store.tables() == []
        assert store.metrics().reserved_bytes == before
        plain_table(store, 1000)
