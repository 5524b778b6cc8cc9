"""One step of a protocol left out or weakened: the explorer must find what it breaks. Traces: pytest -rP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.model import claiming, epochs, pins, places, publication, waiting
from tests.model.explorer import explore

Report = Callable[[str, object], None]

# The sizes at which a model's mutations are looked for, cheap ones first.
SIZES: dict[Any, list[dict[str, Any]]] = {
    publication: [{"rows": (3, 2), "crashes": 0}, {"rows": (1, 1), "blocks": 1, "per_block": 1}],
    epochs: [{"readers": 1, "batches": 1, "crashes": 0}, {"readers": 1, "batches": 2, "lives": 1}],
    pins: [{}],
    waiting: [{"needs": (2,)}, {"needs": (2, 2), "locked_look": True}],
    claiming: [{}],
    places: [
        {"rounds": 2, "batches": 0, "rewrites": 1},
        {"rounds": 1, "batches": 0, "lives": 1},
        {"rounds": 2, "batches": 0, "frames": 1, "crashes": 1},
        {"rounds": 1, "views": 1},
        {"rounds": 3, "batches": 0, "rewrites": 1},
        {"rounds": 3, "batches": 0, "views": 1},
        {"rounds": 1, "crashes": 1},
    ],
}


def name(model: Any) -> str:
    return str(model.__name__).rpartition(".")[2]


def cases(table: str) -> list[Any]:
    return [
        pytest.param(model, mutation, id=f"{name(model)}: {mutation}")
        for model in SIZES
        for mutation in getattr(model, table, {})
    ]


@pytest.mark.parametrize(("model", "mutation"), cases("MUTATIONS"))
def test_mutation_is_caught(model: Any, mutation: str, report: Report) -> None:
    for sizes in SIZES[model]:
        result = explore(*model.make(mutation, **sizes))
        if result.violation is not None:
            report(f"{name(model)}, {mutation}", result)
            assert result.trace
            return
    pytest.fail(f"nothing found: {model.MUTATIONS[mutation]}")


@pytest.mark.parametrize(("model", "mutation"), cases("HARMLESS"))
def test_harmless_mutation(model: Any, mutation: str, report: Report) -> None:
    """Listed with the reason; should it turn out to matter, the model has learnt something."""
    for sizes in SIZES[model][:3]:  # the cheap ones: nothing is found that would end it early
        result = explore(*model.make(mutation, **sizes))
        assert result.violation is None, str(result)
        report(f"{name(model)}, {mutation}, {sizes} (harmless)", result)


def test_there_are_enough_of_them() -> None:
    assert sum(len(model.MUTATIONS) for model in SIZES) >= 30
