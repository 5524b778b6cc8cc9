"""Sequences, episodes and stacks of steps that vary in length, as they are delivered."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conduit import Column, Disk, Ragged, Schema, ShapeMismatch, Store, Table, windows
from tests.store_support import fresh_store, scalar_writer

SCHEMA = Schema(
    (
        Column("obs/tokens", "int32", (None,), mean_length=6),
        Column("obs/at", "int64"),
        Column("thought", "string", mean_length=4),
        Column("goal", "float32", (2,), nullable=True),
        Column("reward", "float32"),
        Column("terminated", "bool"),
        Column("truncated", "bool"),
    )
)
WINDOWS: dict[str, Any] = {
    "sequence": windows.Sequence(4, burn_in=2, state=("thought",)), "episode": windows.Episode(6),
    "stack": windows.FrameStack(3, pad="zeros"),
}  # fmt: skip


def tokens(at: int) -> list[int]:
    return list(range(at, at + (300 if at % 41 == 5 else at * 7919 % 7)))


def table_in(store: Store, max_size: int = 120, **options: Any) -> Table:
    """Episodes of 9 steps, the newest of them running; step `at` has observation `at`."""
    table = store.create_table("t", SCHEMA, max_size, window=WINDOWS, max_writers=2, **options)
    with scalar_writer(table) as writer:
        for at in range(200):
            over = at % 10 == 8
            if at % 10 == 9:
                continue
            writer.append(
                obs={"tokens": np.array(tokens(at), np.int32), "at": at}, thought="é" * (at % 4),
                goal=None if at % 3 == 0 else [at, at], reward=1.0, terminated=over, truncated=False,
            )  # fmt: skip
            if over:
                writer.end({"tokens": np.array(tokens(at + 1), np.int32), "at": at + 1})
    return table


def faults(batch: Any) -> list[tuple[int, int]]:
    """Places whose tokens are not those of the step that they hold; none, where they hold none."""
    mask = batch["mask"] if "mask" in batch else batch["obs/at"] != 0
    return [
        (i, t)
        for (i, t), there in np.ndenumerate(mask)
        if batch["obs/tokens"][i][t].tolist() != (tokens(int(batch["obs/at"][i, t])) if there else [])
    ]


@pytest.mark.parametrize("on_disk", [False, True])
def test_each_step_has_its_own_length(on_disk: bool, tmp_path: Path) -> None:
    with fresh_store() as store:
        table = table_in(store, 150, disk=Disk(tmp_path, "16KB")) if on_disk else table_in(store)
        if on_disk:
            disk = table.info().disk
            assert disk is not None
            assert disk.blocks_on_disk > 0
        for name, places in (("sequence", 6), ("episode", 6), ("stack", 3)):
            batch = table.sample(50, window=name)
            assert isinstance(batch["obs/tokens"], Ragged)
            assert batch["obs/tokens"].shape == (50, places)
            assert batch["obs/tokens"].offsets.shape == (50 * places + 1,)
            assert faults(batch) == []
            assert faults(pickle.loads(pickle.dumps(batch))) == []
            with table.loader(8, window=name) as loader:
                assert faults(loader.next()) == []
            after = batch["next_obs/tokens"]
            if name == "stack":
                assert [row.tolist() for row in after[:, -1]] == [tokens(at) for at in batch["next_obs/at"][:, -1]]
            else:
                assert [row.tolist() for row in after] == [tokens(at) for at in batch["next_obs/at"].tolist()]
        batch = table.sample(50, window="sequence")
        firsts = np.argmax(batch["mask"], axis=1)
        assert list(batch["thought"]) == ["é" * (int(at) % 4) for at in batch["obs/at"][np.arange(50), firsts]]
        assert list(table.sample(50, window="episode")["thought"][0])[-1] in ("", "é", "éé", "ééé")


def test_forms_of_a_batch() -> None:
    torch = pytest.importorskip("torch")
    with fresh_store() as store:
        batch = table_in(store).sample(16, window="episode")
        rows, mask = batch["obs/tokens"], batch["mask"]
        packed, padded, jagged = (batch.torch(ragged=form) for form in ("packed", "padded", "jagged"))
        assert packed["obs/tokens.offsets"].tolist() == rows.offsets.tolist()
        assert packed["obs/tokens"].data_ptr() == rows.values.ctypes.data
        longest = int(rows.lengths.max())
        assert padded["obs/tokens"].shape == padded["obs/tokens.mask"].shape == (16, 6, longest)
        assert torch.equal(padded["obs/tokens"][padded["obs/tokens.mask"]], packed["obs/tokens"])
        assert jagged["obs/tokens"].is_nested
        assert jagged["obs/tokens"].size(0) == 16 * 6
        # What holds a step, as rows one after the other: what another table takes.
        steps = rows[mask]
        assert [row.tolist() for row in steps] == [tokens(int(at)) for at in batch["obs/at"][mask]]
        other = store.create_table("other", Schema((Column("x", "int32", (None,), mean_length=6),)), 100)
        assert other.extend({"x": steps}) == mask.sum()
        with pytest.raises(ShapeMismatch, match=r"16 x 6 rows.*mask"):
            other.extend({"x": rows})


def test_arrow_has_a_list_of_each_steps_values_and_its_nulls() -> None:
    pytest.importorskip("pyarrow")
    with fresh_store() as store:
        batch = table_in(store).sample(16, window="sequence")
        arrow = batch.to_arrow()
        arrow.validate(full=True)
        lists = [[row.tolist() for row in rows] for rows in batch["obs/tokens"]]
        assert arrow.column("obs/tokens").to_pylist() == lists
        goals = [
            [goal if valid else None for goal, valid in zip(*both, strict=True)]
            for both in zip(batch["goal"].tolist(), batch.valid["goal"].tolist(), strict=True)
        ]
        assert arrow.column("goal").to_pylist() == goals
        assert any(None in places for places in goals)


def test_sequences_of_many_short_rows_are_found_in_pieces() -> None:
    """More rows than a reader finds between two signs of life."""
    of = Schema((Column("obs", "int8", (None,), mean_length=1), *SCHEMA.columns[-3:]))
    with fresh_store("64MiB") as store:
        table = store.create_table("t", of, 3_000, window=windows.Episode(2_000), max_writers=1)
        given = [np.full(at % 3, at % 100, np.int8) for at in range(2_001)]
        ends = np.arange(2_000) == 1_999
        table.extend(
            {
                "obs": given[:-1], "next_obs": given[1:], "reward": np.zeros(2_000, "f4"), "terminated": ends,
                "truncated": np.zeros(2_000, bool),
            }
        )  # fmt: skip
        rows = table.sample(70)["obs"]
        assert rows.lengths.shape == (70, 2_000)
        expected = np.concatenate(given[:-1])
        assert (rows.values.reshape(70, -1) == expected).all()
