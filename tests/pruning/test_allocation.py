"""Ways to share a budget: levels that fall, uniform parts, slopes on the lower envelope of the divergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import secateur as sc
from secateur.errors import UsageError
from secateur.methods.base import Evidence
from secateur.pruning.allocation import NAMES, Allocation, slopes, uniform
from support.cases import build

HARMS = st.lists(st.floats(0, 1e6), max_size=20).map(lambda steps: np.cumsum([0.0, *steps]))


def evidence_of(name: str, kept: dict[str, list[int]] | None = None) -> Evidence:
    """What is known of a network of `cases`, all units left but where `kept` says otherwise."""
    network, example = build(name)
    graph = sc.trace(network, example)
    left = {group.name: list(range(group.size)) for group in graph.prunable} | (kept or {})
    shown = sc.mask(network, sc.Plan.keeping(graph, kept)) if kept else network
    return Evidence(shown, graph, [((example,), {})], None, left)


def slow_envelope(divergence: Any) -> list[float]:
    """At every place the lowest that a line between two samples of the curve reaches."""
    found = []
    for k in range(len(divergence)):
        lines = [divergence[k]]
        for a in range(k):
            for b in range(k + 1, len(divergence)):
                lines.append(divergence[a] + (divergence[b] - divergence[a]) * (k - a) / (b - a))
        found.append(min(lines))
    return found


@given(divergence=HARMS, cost=st.floats(1e-6, 1.0))
def test_slopes_are_those_of_the_lower_envelope(divergence: Any, cost: float) -> None:
    found = slopes(divergence, cost)
    assert len(found) == len(divergence) and found[0] == np.inf
    assert (found[1:-1] >= found[2:]).all() and (found >= 0).all()
    wanted = np.diff(slow_envelope(divergence))[::-1] / cost  # the last to go is the first to come
    np.testing.assert_allclose(found[1:], wanted, rtol=1e-6, atol=1e-6 * float(divergence[-1] + 1) / cost)


def test_slopes_by_hand() -> None:
    assert slopes(np.array([0.0, 1.0, 1.5]), cost=0.5).tolist() == [np.inf, 1.5, 1.5]
    assert slopes(np.array([0.0, 1.0, 4.0]), cost=2.0).tolist() == [np.inf, 1.5, 0.5]
    assert slopes(np.array([0.0]), cost=1.0).tolist() == [np.inf]
    assert slopes(np.zeros(4), cost=1.0).tolist() == [np.inf, 0, 0, 0]
    assert slopes(np.array([0.0, 1e20]), cost=0.0)[1] > 1e40  # what costs nothing stays


@pytest.mark.parametrize("units", [1, 2, 7, 64])
def test_uniform_levels_keep_the_same_part_of_every_group(units: int) -> None:
    levels = uniform(units)
    assert len(levels) == units and (np.diff(levels) < 0).all() and 0 < levels.min() <= levels.max() < 1
    for part in (0.0, 0.1, 0.25, 0.5, 0.9, 1.0):
        assert abs((levels >= 1 - part).sum() - part * units) <= 0.5 + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_every_group_has_falling_levels(name: str) -> None:
    evidence = evidence_of("residual")
    found = Allocation(name).levels(evidence, {"a": 0.1, "b": 0.2})
    assert {group: len(levels) for group, levels in found.items()} == {"a": 8, "b": 6}
    assert all((levels[:-1] >= levels[1:]).all() for levels in found.values())


@pytest.mark.parametrize("name", NAMES)
def test_only_the_units_left_are_shared_out(name: str) -> None:
    evidence = evidence_of("residual", kept={"a": [0, 2, 3], "b": [1, 4]})
    found = Allocation(name).levels(evidence, {"a": 0.1, "b": 0.2})
    assert {group: len(levels) for group, levels in found.items()} == {"a": 3, "b": 2}


def test_dearer_units_have_lower_levels() -> None:
    evidence = evidence_of("residual")
    cheap, dear = (Allocation("residual").levels(evidence, {"a": cost, "b": 0.2}) for cost in (0.1, 0.4))
    np.testing.assert_allclose(cheap["a"][1:], dear["a"][1:] * 4)
    assert (cheap["b"] == dear["b"]).all()


def test_a_group_that_nothing_is_known_of_is_left_out() -> None:
    evidence = evidence_of("bare_matrices")
    assert Allocation("residual").levels(evidence, {"a": 0.1, "w": 0.1}) == {}
    assert Allocation("uniform").levels(evidence, {}).keys() == {"a", "w"}


def test_another_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"allocation is 'fair'[\s\S]*uniform, pfp, residual"):
        Allocation("fair")
    with pytest.raises(UsageError, match="allocation is 'fair'"):
        sc.plan(*build("plain"), {"params": "50%"}, allocation="fair")
