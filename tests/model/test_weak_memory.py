"""Memory orders outside the index lock: the code's suffice, each weaker one of the table is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model import weak
from tests.model.explorer import Result, explore
from tests.model.litmus import CASES, HARMLESS, MUTATIONS

Report = Callable[[str, object], None]


def run(name: str, weaker: dict[str, str], *, x86: bool = False) -> Result:
    case = CASES[name]
    assert set(weaker) <= set(case.orders)
    return explore(*weak.make(case.build({**case.orders, **weaker}), case.wrong, case.start, x86=x86))


@pytest.mark.parametrize("name", CASES)
def test_orders_suffice(name: str, report: Report) -> None:
    for x86 in (False, True):
        result = run(name, {}, x86=x86)
        assert result.violation is None, str(result)
    report(f"weak memory, {name}", run(name, {}))


@pytest.mark.parametrize(("name", "access", "order"), MUTATIONS)
def test_weaker_order_is_caught(name: str, access: str, order: str, report: Report) -> None:
    result = run(name, {access: order})
    assert result.violation is not None
    on_x86 = run(name, {access: order}, x86=True).violation is not None
    report(f"weak memory, {name}, {access} {order} ({'x86 too' if on_x86 else 'never on x86'})", result)


@pytest.mark.parametrize(("name", "access", "order"), HARMLESS)
def test_harmless_order(name: str, access: str, order: str) -> None:
    assert HARMLESS[name, access, order]
    assert run(name, {access: order}).violation is None


def test_a_store_buffer_breaks_dekker() -> None:
    """The model is weak enough for the oldest example, and x86 with it."""

    def thread(mine: str, other: str, order: str) -> list[weak.Access]:
        return [weak.store(mine, 1, order), weak.load(other, f"saw {other}", order)]

    def both_in(found: dict[str, int]) -> str | None:
        return "both entered" if found["saw x"] == found["saw y"] == 0 else None

    for order, broken in ((weak.RELAXED, True), (weak.SEQ_CST, False)):
        for x86 in (False, True):
            programs = [thread("x", "y", order), thread("y", "x", order)]
            assert (explore(*weak.make(programs, both_in, {}, x86=x86)).violation is not None) == broken
