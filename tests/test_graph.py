"""What a channel graph says of itself."""

from __future__ import annotations

import pytest
from cases import build

import secateur as sc

NETWORK, EXAMPLE = build("residual")
GRAPH = sc.trace(NETWORK, EXAMPLE)


def test_a_group_names_its_layers() -> None:
    group = GRAPH["a"]
    assert group.producers == ("a", "c")
    assert group.consumers == ("b", "d")
    assert group.size == 8 and group.prunable


def test_the_table_has_a_line_for_each_group() -> None:
    lines = str(GRAPH).splitlines()
    assert len(lines) == 1 + len(GRAPH.groups)
    assert lines[1].split() == ["a", "8", "prunable"]
    assert "kept: it is an output of the network" in str(GRAPH)


def test_an_unknown_group_is_refused_with_the_known_ones() -> None:
    with pytest.raises(sc.SecateurError, match=r"no group 'z'\n.*a, b, d") as caught:
        GRAPH["z"]
    assert caught.value.remedy
