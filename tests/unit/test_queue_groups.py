"""Groups of rows, batches bounded by tokens, policy versions."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import conduit
from conduit import CapacityError, ConfigError, MissingColumn, QueueEnded, SampleTimeout, StalePolicy
from tests.queue_support import put, queue_in, rest, taken
from tests.store_support import fresh_store, schema
from tests.waiting import until

GROUPED = schema(x="i8", prompt="i4", n_tokens="u2")


def put_groups(queue: conduit.Queue, prompts: list[int], first: int = 0, tokens: Any = 1, **options: Any) -> None:
    n = len(prompts)
    lengths = np.broadcast_to(np.asarray(tokens, np.uint16), n)
    columns = {"x": np.arange(first, first + n), "prompt": np.array(prompts, np.int32), "n_tokens": np.array(lengths)}
    queue.extend(columns, **options)


def grouped(queue: conduit.Queue, n: int, size: int = 2, **options: Any) -> conduit.QueueBatch:
    return queue.sample(n, **{"timeout": 0.0, "group_by": "prompt", "group_size": size, **options})


def test_groups_come_whole_in_the_order_of_their_completion() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=GROUPED)
        put_groups(queue, [1, 2, 3, 2, 1, 3, 3])
        batch = grouped(queue, 4)
        assert batch["x"].tolist() == [1, 3, 0, 4]
        assert batch["prompt"].tolist() == [2, 2, 1, 1]
        with pytest.raises(SampleTimeout, match=r"groups of 2 by 'prompt' \(1 groups are complete\).* 3 rows wait, 4"):
            grouped(queue, 4)
        put_groups(queue, [3], first=7)
        assert grouped(queue, 4)["prompt"].tolist() == [3, 3, 3, 3]
        batch.ack()
        queue.verify()


def test_a_value_that_repeats_makes_another_group() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=GROUPED)
        put_groups(queue, [5, 5, 5, 5, 5])
        one, two = grouped(queue, 2), grouped(queue, 2)
        assert (one["x"].tolist(), two["x"].tolist()) == ([0, 1], [2, 3])
        one.release()
        assert grouped(queue, 2)["x"].tolist() == [0, 1], "as it was before"
        two.release()
        del two
        with pytest.raises(SampleTimeout):
            grouped(queue, 6)


def test_rows_of_several_producers_make_a_group() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=GROUPED)
        writers = [queue.writer() for _ in range(4)]
        for i, writer in enumerate(writers):
            writer.append(x=i, prompt=7, n_tokens=1)
        assert grouped(queue, 4, 4)["x"].tolist() == [0, 1, 2, 3]
        for writer in writers:
            writer.close()


def test_what_others_take_is_noticed() -> None:
    with fresh_store() as store, conduit.Store.attach(store.name) as other:
        mine, theirs = queue_in(store, schema=GROUPED), other.queue("q")
        put_groups(mine, [1, 1, 2, 2, 3, 3, 4, 4])
        kept = grouped(mine, 2)
        assert grouped(theirs, 2)["prompt"].tolist() == [2, 2]  # collected at once: given back
        taken_by_others = grouped(theirs, 4)
        assert taken_by_others["prompt"].tolist() == [2, 2, 3, 3]
        single = theirs.sample(1)  # half of group 4
        assert single["prompt"].tolist() == [4]
        with pytest.raises(SampleTimeout, match="0 groups are complete"):
            grouped(mine, 2)
        single.release()
        assert grouped(mine, 2)["prompt"].tolist() == [4, 4]
        kept.release()
        assert grouped(theirs, 2)["prompt"].tolist() == [1, 1]
        taken_by_others.release()
        mine.verify()


def test_incomplete_groups_are_listed_and_given_up() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=GROUPED, consumers=("a", "b"))
        put_groups(queue, [1, 2, 2, 3, 3, 3, -4])
        found = queue.incomplete("prompt", group_size=3, consumer="a")
        assert [(value, rows) for value, rows, _ in found] == [(-4, 1), (1, 1), (2, 2)] or sorted(
            (value, rows) for value, rows, _ in found
        ) == [(-4, 1), (1, 1), (2, 2)]
        assert all(0 <= age < 60 for _, _, age in found)
        assert queue.drop_incomplete("prompt", group_size=3, older_than=60.0, consumer="a") == 0
        assert queue.drop_incomplete("prompt", group_size=3, consumer="a") == 4
        assert queue.incomplete("prompt", group_size=3, consumer="a") == []
        assert len(queue) == 7, "the other consumer has had none"
        info = queue.info().consumers
        assert (info["a"].dropped_rows, info["b"].dropped_rows) == (4, 0)
        assert grouped(queue, 3, 3, consumer="a")["prompt"].tolist() == [3, 3, 3]
        queue.verify()


def test_an_ended_queue_gives_complete_groups_only() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=GROUPED)
        put_groups(queue, [1, 1, 2, 2, 3])
        queue.end()
        with queue.loader(4, group_by="prompt", group_size=2) as loader:
            batches = []
            for batch in loader:
                batches.append(batch["prompt"].tolist())
                batch.ack()
        assert batches == [[1, 1, 2, 2]]
        with pytest.raises(QueueEnded, match="1 rows of incomplete groups are left"):
            grouped(queue, 2)


def test_batches_of_tokens() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=GROUPED)
        put_groups(queue, [0] * 6, tokens=[5, 3, 2, 4, 10, 1])
        assert taken(queue, max_tokens=10, timeout=0.0) == [0, 1, 2]
        assert taken(queue, 1, max_tokens=10, timeout=0.0) == [3]
        assert taken(queue, max_tokens=10, timeout=0.0) == [4], "the one after it does not fit"
        with pytest.raises(SampleTimeout, match="10 tokens or 64 rows"):
            queue.sample(max_tokens=10, timeout=0.0)
        assert taken(queue, max_tokens=10, timeout=0.0, partial=True) == [5]
        put_groups(queue, [0, 0], first=6, tokens=[11, 1])
        with pytest.raises(CapacityError, match=r"the row with key \d+ .* has 11 tokens, max_tokens is 10") as raised:
            queue.sample(max_tokens=10)
        assert queue.drop([int(str(raised.value).split("key ")[1].split()[0])]) == 1
        assert rest(queue) == [7]
        queue.verify()


def test_groups_of_tokens() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=GROUPED)
        put_groups(queue, [1, 1, 2, 2, 3, 3], tokens=[2, 3, 2, 2, 6, 6])
        assert grouped(queue, 6, max_tokens=10)["prompt"].tolist() == [1, 1, 2, 2]
        batch = queue.sample(max_tokens=9, group_by="prompt", group_size=2, timeout=0.0)
        assert batch["prompt"].tolist() == [1, 1, 2, 2]
        batch.ack()
        with pytest.raises(CapacityError, match="the group of 2 rows that begins with key"):
            queue.sample(max_tokens=9, group_by="prompt", group_size=2, timeout=0.0)
        queue.verify()


def test_versions_that_are_too_old_are_refused() -> None:
    with fresh_store() as store:
        queue = queue_in(store, max_staleness=2)
        assert queue.schema.names == ("x", "policy_version")
        put(queue, 1, 2, policy_version=0)
        queue.policy_version = 5
        with pytest.raises(StalePolicy, match=r"row 0 of 2 has policy version 2, queue 'q' takes 3 and newer: .* at 5"):
            put(queue, 3, 4, policy_version=2)
        with pytest.raises(StalePolicy, match="row 1 of 3"):
            put(queue, 3, 4, 5, policy_version=np.array([3, 2, 9]))
        with pytest.raises(MissingColumn, match="policy_version="):
            put(queue, 3)
        with pytest.raises(ConfigError, match="versions only grow"):
            queue.policy_version = 4
        put(queue, 3, policy_version=3)
        with queue.writer(policy_version=4) as writer:
            writer.append(x=4)
            writer.append(x=5, policy_version=7)
            writer.policy_version = 2
            with pytest.raises(StalePolicy):
                writer.append(x=6)
        batch = queue.sample(3)
        assert (batch["x"].tolist(), batch["policy_version"].tolist()) == ([3, 4, 5], [3, 4, 7])
        info = queue.info()
        assert (info.policy_version, info.consumers["default"].stale_rows, info.unacknowledged) == (5, 2, 3)
        queue.verify()


def test_an_append_that_waits_is_refused_when_its_policy_has_become_old() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 4, max_staleness=0)
        put(queue, 0, 1, 2, 3, policy_version=0)
        threading.Timer(0.05, setattr, (queue, "policy_version", 1)).start()
        with pytest.raises(StalePolicy):
            put(queue, 4, policy_version=0, timeout=10.0)
        with pytest.raises(SampleTimeout, match="0 rows wait"):
            queue.sample(1, timeout=0.0)
        assert queue.info().consumers["default"].stale_rows == 4
        put(queue, 5, policy_version=1, timeout=0.0)


def test_a_stale_row_takes_its_group_with_it() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=GROUPED, max_staleness=1)
        put_groups(queue, [1, 1, 2], policy_version=np.array([0, 1, 0]))
        queue.policy_version = 2
        put_groups(queue, [2, 3, 3], first=3, policy_version=2)
        assert grouped(queue, 2)["x"].tolist() == [4, 5]
        assert queue.info().consumers["default"].stale_rows == 4
        queue.verify()


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_a_loader_looks_again_at_hand_over(prefetch: int) -> None:
    """With max_staleness=0 no row of an older policy comes out, however many were prepared."""
    with fresh_store() as store:
        queue = queue_in(store, 100, max_staleness=0)
        with queue.loader(4, prefetch=prefetch) as loader:
            for version in range(5):
                queue.policy_version = version
                put(queue, *range(100 * version, 100 * version + 20), policy_version=version)
                batch = loader.next()
                assert batch["x"].tolist() == list(range(100 * version, 100 * version + 4))
                batch.ack()
                if prefetch:
                    until(lambda: queue.info().leases == min(prefetch, 4))
        assert queue.info().consumers["default"].stale_rows == 4 * 16
        queue.verify()


def test_balance() -> None:
    assert [part.tolist() for part in conduit.balance([8, 7, 6, 5, 4], 2)] == [[1, 3, 4], [0, 2]]
    lengths = np.random.default_rng(1).integers(1, 4096, 256)
    for parts in (1, 2, 3, 8):
        divided = conduit.balance(lengths, parts)
        assert sorted(np.concatenate(divided).tolist()) == list(range(256))
        sums = [int(lengths[part].sum()) for part in divided]
        assert max(sums) - min(sums) <= 4, "to a few tokens of about 500,000"
    for bad in ([3.0, float("nan")], [1, -2]):
        with pytest.raises(conduit.ConfigError, match=r"lengths\[1\]"):
            conduit.balance(bad, 2)
    assert [part.tolist() for part in conduit.balance([], 2)] == [[], []]
    assert sum(len(part) for part in conduit.balance([3], 4)) == 1
    with pytest.raises(ConfigError):
        conduit.balance([1], 0)
    with pytest.raises(conduit.ShapeMismatch):
        conduit.balance([[1]], 2)


def test_split() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=GROUPED)
        put_groups(queue, [1, 1, 2, 2, 3, 3, 4, 4], tokens=[4, 4, 1, 2, 3, 3, 2, 3])
        batch = grouped(queue, 8)
        parts = batch.split(2, by="n_tokens")
        assert [sorted(set(batch["prompt"][part].tolist())) for part in parts] in ([[1, 2], [3, 4]], [[3, 4], [1, 2]])
        assert [int(batch["n_tokens"][part].sum()) for part in parts] == [11, 11]
        assert sorted(len(part) for part in batch.split(4)) == [2, 2, 2, 2]
