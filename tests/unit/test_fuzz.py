"""What a fuzzer has once broken, and what it begins with: each input meets an error of ours, or none."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from conduit import LayoutMismatch
from conduit.spec import TableSpec
from tests.fuzz import TARGETS, edits, targets

FOUND = Path(targets.__file__).parent / "found"


@pytest.mark.parametrize("name", TARGETS)
def test_known_inputs(name: str) -> None:
    with contextlib.closing(targets.TARGETS[name]()) as target:
        target.run(b"")  # nothing is edited: what it reads is whole
        inputs = [*target.seeds, *(path.read_bytes() for path in sorted((FOUND / name).glob("*")))]
        for data in inputs:
            targets.once(target, data)


def test_a_target_tells_a_fault() -> None:
    class Broken(targets.Target):
        def run(self, data: bytes) -> None:
            raise KeyError(data)

    with contextlib.closing(Broken()) as target, pytest.raises(KeyError):
        targets.once(target, b"x")


def test_edits_reach_every_part() -> None:
    whole = json.dumps({"a": [1, {"b": "x"}], "c": None})
    seen = {edits.edited_json(whole, bytes([place, 0, what, 5])) for place in range(5) for what in range(8)}
    assert len(seen) > 15
    assert edits.edited_json(whole, b"") == whole
    assert edits.edited_bytes(b"abcdef", b"") == b"abcdef"
    assert edits.edited_bytes(b"abcdef", bytes([2, 0, 0, 0, 0])) == b"ab"
    assert edits.edited_bytes(b"abcdef", bytes([2, 0, 0, 7, 1])) == b"abbdef"


@pytest.mark.parametrize("text", ['{"schema": 1}', "[]", "3", '{"schema": {"columns": []}, "window": 5}'])
def test_settings_that_are_none(text: str) -> None:
    with pytest.raises(LayoutMismatch, match="cannot be read by this build"):
        TableSpec.from_json(text)
