"""The sum tree against NumPy's running sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from conduit_store.native import native

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)  # fmt: skip
Array = npt.NDArray[Any]
SIZES = st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 511, 512, 513, 3000])


def tree_of(leaves: Array) -> native.SumTree:
    tree = native.SumTree(len(leaves))
    tree.update(list(range(len(leaves))), leaves.tolist())
    return tree


@st.composite
def integer_leaves(draw: st.DrawFn) -> Array:
    """Mostly zeros, or mostly not: sums are exact."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, share = draw(SIZES), draw(st.sampled_from([0.02, 0.5, 1.0]))
    leaves = rng.integers(1, draw(st.sampled_from([2, 10, 2**30])), n).astype(float)
    leaves[rng.random(n) > share] = 0
    return leaves


@st.composite
def float_leaves(draw: st.DrawFn) -> Array:
    """Of very different sizes, some zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    leaves = 10.0 ** rng.uniform(-draw(st.integers(0, 30)), draw(st.integers(0, 30)), draw(SIZES))
    leaves[rng.random(len(leaves)) < draw(st.sampled_from([0.0, 0.3, 0.95]))] = 0
    return leaves


@QUICK
@given(integer_leaves(), st.integers(0, 2**32))
def test_integers_are_found_exactly(leaves: Array, seed: int) -> None:
    tree, edges = tree_of(leaves), np.cumsum(leaves)
    assert tree.total() == edges[-1]
    assert tree.consistent()
    if edges[-1] == 0:
        return
    whole = np.concatenate([[0], edges[:-1], edges - 1, np.random.default_rng(seed).integers(0, int(edges[-1]), 200)])
    masses = whole[whole < edges[-1]].astype(float)
    masses = np.concatenate([masses, masses + 0.5])
    assert tree.find(masses.tolist()) == np.searchsorted(edges, masses, side="right").tolist()
    beyond = [edges[-1], edges[-1] * 2, np.inf]
    assert tree.find(beyond) == [int(np.flatnonzero(leaves)[-1])] * 3


@QUICK
@given(integer_leaves(), st.data())
def test_sums_of_ranges(leaves: Array, data: st.DataObject) -> None:
    tree, edges = tree_of(leaves), np.concatenate([[0], np.cumsum(leaves)])
    for _ in range(20):
        first = data.draw(st.integers(0, len(leaves)))
        last = data.draw(st.integers(first, len(leaves)))
        assert tree.range_sum(first, last) == edges[last] - edges[first]


@QUICK
@given(integer_leaves(), st.integers(0, 2**32))
def test_leaves_that_are_all_equal_are_found_the_same_way_by_their_number(given: Array, seed: int) -> None:
    rng = np.random.default_rng(seed)
    leaves = np.minimum(given, 1)
    first, last = sorted(rng.integers(0, len(leaves) + 1, 2))
    leaves[first:last] = 1  # full nodes beside others
    tree, total = tree_of(leaves), float(leaves.sum())
    whole, beyond = np.arange(total), [total, total * 2, np.inf]
    masses = np.concatenate([rng.random(300) * total, whole, whole + 0.5, beyond])
    assert tree.find(masses.tolist(), equal=True) == tree.find(masses.tolist())


@QUICK
@given(float_leaves(), st.integers(0, 2**32))
def test_floats_are_found_within_rounding(leaves: Array, seed: int) -> None:
    tree, edges = tree_of(leaves), np.cumsum(leaves)
    assert tree.consistent()
    total = tree.total()
    np.testing.assert_allclose(total, leaves.sum(), rtol=1e-13)
    if total == 0:
        return
    masses = np.concatenate([np.random.default_rng(seed).random(300) * total, [0.0, np.nextafter(total, 0), total]])
    found = np.array(tree.find(masses.tolist()))
    assert (leaves[found] > 0).all(), "a leaf of zero was drawn"
    slack = 1e-12 * total
    assert (edges[found] >= masses - slack).all()
    assert (edges[found] - leaves[found] <= masses + slack).all()


@QUICK
@given(float_leaves(), st.integers(0, 2**32), st.integers(1, 50))
def test_a_tree_follows_from_its_leaves_however_they_came(leaves: Array, seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    tree = native.SumTree(len(leaves))
    for _ in range(rounds):
        some = rng.integers(0, len(leaves), rng.integers(1, 40))
        tree.update(some.tolist(), rng.random(len(some)).tolist())
        assert tree.consistent()
    order = rng.permutation(len(leaves))
    tree.update(order.tolist(), leaves[order].tolist())
    fresh = tree_of(leaves)
    assert tree.total() == fresh.total()
    masses = (rng.random(100) * fresh.total()).tolist()
    assert tree.find(masses) == fresh.find(masses)


@QUICK
@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_the_order_of_masses_does_not_matter(n: int, seed: int) -> None:
    """They are found in groups, level by level."""
    rng = np.random.default_rng(seed)
    tree = tree_of(rng.random(n))
    masses = rng.random(rng.integers(1, 300)) * tree.total()
    assert tree.find(masses.tolist()) == [tree.find([mass])[0] for mass in masses.tolist()]
