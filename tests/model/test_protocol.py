"""The protocols as they are, explored exhaustively at small sizes; see docs/protocol.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.model import claiming, epochs, pins, places, publication, waiting
from tests.model.explorer import explore

slow = pytest.mark.slow
Report = Callable[[str, object], None]


def _words(sizes: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _name(model: Any) -> str:
    return str(model.__name__).rpartition(".")[2]


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (publication, {"rows": (3, 2), "crashes": 0}),
        (publication, {"rows": (1, 1), "blocks": 1, "per_block": 1}),
        (publication, {"rows": (1, 1), "per_block": 1}),
        pytest.param(publication, {"rows": (2, 1), "per_block": 1}, marks=slow),
        pytest.param(publication, {"rows": (1, 1, 1), "crashes": 0, "per_block": 1}, marks=slow),
        (epochs, {"readers": 1, "batches": 1}),
        pytest.param(epochs, {"readers": 1, "batches": 2}, marks=slow),
        (epochs, {"readers": 2, "lives": 1, "crashes": 0}),
        pytest.param(epochs, {"readers": 2, "lives": 2, "crashes": 0}, marks=slow),
        pytest.param(epochs, {"readers": 2, "lives": 1, "crashes": 1}, marks=slow),
        (pins, {}),
        pytest.param(pins, {"views": 3, "lives": 4, "crashes": 2}, marks=slow),
        (waiting, {"needs": (1,)}),
        (waiting, {"needs": (2,)}),
        (waiting, {"needs": (1, 2), "sliced": True}),
        (waiting, {"needs": (2,), "crashes": 1, "sliced": True}),
        pytest.param(waiting, {"needs": (2,), "crashes": 1, "bystanders": 1, "sliced": True}, marks=slow),
        (claiming, {"threads": 3}),
        (places, {"rounds": 1, "views": 1}),
        (places, {"rounds": 2, "batches": 0, "rewrites": 1}),
        (places, {"rounds": 1, "crashes": 1}),
        pytest.param(places, {"rounds": 3, "views": 1}, marks=slow),
        pytest.param(places, {"rounds": 2, "rewrites": 1, "crashes": 1}, marks=slow),
        pytest.param(places, {"rounds": 1, "lives": 1, "views": 1}, marks=slow),
    ],
    ids=lambda value: _words(value) if isinstance(value, dict) else _name(value),
)
def test_protocol_holds(model: Any, sizes: dict[str, Any], report: Report) -> None:
    result = explore(*model.make(**sizes))
    report(f"{_name(model)} {_words(sizes)}", result)
    assert result.violation is None, str(result)


@pytest.mark.parametrize(
    "sizes",
    [{"needs": (1,), "bystanders": 1}, {"needs": (1, 2)}, {"needs": (1,), "crashes": 1}],
    ids=_words,
)
def test_waiting_needs_its_clock(sizes: dict[str, Any], report: Report) -> None:
    """Where someone else folds, or a writer dies before it wakes, only the end of the slice wakes the sampler."""
    result = explore(*waiting.make(**sizes))
    report(f"waiting without slices, {_words(sizes)}", result)
    assert result.violation is not None


@pytest.mark.parametrize("sizes", [{"needs": (1,), "bystanders": 1}, {"needs": (1, 2)}, {"needs": (2, 2)}], ids=_words)
def test_a_locked_second_look_needs_no_clock(sizes: dict[str, Any], report: Report) -> None:
    """A variant: draw again after setting the flag. Kills apart, no wake-up is then lost."""
    result = explore(*waiting.make(**sizes, locked_look=True))
    report(f"waiting with a locked look, {_words(sizes)}", result)
    assert result.violation is None, str(result)
