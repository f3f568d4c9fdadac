"""How a channel graph is printed and looked up."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import secateur as sc
from secateur.channels.graph import Share
from secateur.tables import plain
from support.cases import build

NETWORK, EXAMPLE = build("residual")
GRAPH = sc.trace(NETWORK, EXAMPLE)


def test_a_group_names_its_layers() -> None:
    group = GRAPH["a"]
    assert group.producers == ("a", "c")
    assert group.consumers == ("b", "d")
    assert group.size == 8 and group.prunable


def test_print_shows_each_group_and_the_reasons_below() -> None:
    head, rule, *lines = str(GRAPH).splitlines()
    assert head.split() == ["group", "channels", "status"] and set(rule.strip()) == {"─"}
    rows = [line.split(maxsplit=2) for line in lines[: len(GRAPH.groups)]]
    assert rows == [
        ["a", "8", "prunable"],
        ["b", "6", "prunable"],
        ["d", "5", "kept (1)"],
        ["a:input", "3", "kept (2)"],
    ]
    below = "\n".join(lines[len(GRAPH.groups) :])
    assert "(1) it is an output of the network" in below
    assert "(2) it consumes the network's input 'x'\n    at aten.conv2d, a, base.py:" in below
    assert below.endswith("2 of 4 groups can be cut: 14 of 22 channels.")


def test_a_long_table_shows_the_largest_groups() -> None:
    shown = plain(GRAPH.table({g.name: Share(g.size / 100, g.size / 50) for g in GRAPH.groups}, rows=2))
    assert [line.split()[0] for line in shown.splitlines()[2:4]] == ["a", "b"]
    assert "8.0%   16.0%" in shown and "2 smaller groups are not shown" in shown


def test_a_group_as_plain_data() -> None:
    data = GRAPH["a"].as_dict(Share(0.25, 0.5), indices=True)
    assert (data["producers"], data["consumers"], data["params_share"]) == (["a", "c"], ["b", "d"], 0.25)
    assert data["slots"][0] == {"parameter": "a.weight", "axis": 0, "indices": tuple((i,) for i in range(8))}


def test_the_old_flags_of_a_group_warn() -> None:
    group = GRAPH["b"]
    with pytest.warns(DeprecationWarning, match=r"Group.makes .* use Group.produces"):
        assert [slot for slot, makes in zip(group.slots, group.makes, strict=True) if makes] == list(group.produces)
    with pytest.warns(DeprecationWarning, match=r"Group.reads .* use Group.consumes"):
        assert [slot for slot, reads in zip(group.slots, group.reads, strict=True) if reads] == list(group.consumes)


def test_an_unknown_group_is_refused_with_the_known_ones() -> None:
    with pytest.raises(sc.SecateurError, match=r"no group 'z'\n.*a, b, d") as caught:
        GRAPH["z"]
    assert caught.value.remedy


class FixedWidth(nn.Module):
    """Its forward contains the width of the only group that could be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)).reshape(-1, 8))


@pytest.mark.parametrize(
    ("network", "keep", "remedy"),
    [
        (FixedWidth(), [], "use output='graph'"),
        (nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), ["0"], "keep fewer layers"),
        (nn.Linear(3, 2), [], "prune a network with hidden channels"),
    ],
)
def test_the_remedy_for_a_network_without_prunable_groups_can_help(
    network: nn.Module, keep: list[str], remedy: str
) -> None:
    with pytest.raises(sc.SecateurError, match="no group of this network can be cut") as caught:
        sc.trace(network, torch.zeros(1, 3), keep=keep).check_prunable()
    assert caught.value.remedy is not None and caught.value.remedy.startswith(remedy)
