"""Attributes that hold a width follow a cut, or a note names them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from support.cases import IMAGE, build


class Bottleneck(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.relu(self.a(x)))


class C2f(nn.Module):
    """The block of YOLO: its method `forward_split`, used by exporters, reads the width from an attribute."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.c = after // 2
        self.one, self.two = nn.Conv2d(before, 2 * self.c, 1), nn.Conv2d(4 * self.c, after, 1)
        self.m = nn.ModuleList(Bottleneck(self.c) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.gathered(list(self.one(x).chunk(2, 1)))

    def forward_split(self, x: Tensor) -> Tensor:
        return self.gathered(list(self.one(x).split((self.c, self.c), 1)))

    def gathered(self, parts: list[Tensor]) -> Tensor:
        for part in self.m:
            parts.append(part(parts[-1]))
        return self.two(torch.cat(parts, 1))


def test_the_width_of_a_block_follows_the_cut() -> None:
    network = nn.Sequential(C2f(3, 16), nn.ReLU(), nn.Conv2d(16, 5, 1)).eval()
    graph = sc.trace(network, IMAGE.float())
    plan = sc.random_plan(graph, kept=0.5)
    assert sc.verify(network, plan, IMAGE.float()) <= 1e-5
    small = sc.cut(network, plan)
    x = IMAGE.float()
    assert small[0].c == 4 and network[0].c == 8
    assert torch.allclose(small[0].forward_split(x), small[0](x))
    assert any("0.c (8) is set to the new width" in note for note in graph.notes)
    assert sc.cut(network, sc.Plan.from_json(plan.to_json()))[0].c == 4


def test_a_pruned_block_is_repaired_stored_and_pruned_again_with_its_width(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(C2f(3, 16), nn.ReLU(), nn.Conv2d(16, 5, 1), nn.Flatten()).eval()
    images = torch.randn(24, 3, 8, 8)
    result = sc.prune(network, images, budget={"params": "50%"})
    small = result.model
    assert small[0].c < 8 and torch.allclose(small[0].forward_split(images), small[0](images), atol=1e-6)
    path = tmp_path / "small.safetensors"
    sc.save(path, result)
    assert sc.load(path, network)[0].c == small[0].c
    again = sc.random_plan(sc.trace(small, images[:1]), kept=0.5)
    twice, once = sc.cut(small, again), sc.cut(network, result.plan.then(again))
    assert twice[0].c == once[0].c < small[0].c


class Sized(nn.Module):
    def __init__(self, **attributes: object) -> None:
        super().__init__()
        self.a, self.b, self.d = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 5, 1)
        vars(self).update(attributes)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(F.relu(self.b(F.relu(self.a(x)))))

    def empty(self) -> Tensor:
        return torch.zeros(self.width)


@pytest.mark.parametrize("width", [8, [8, 5]])
def test_a_width_of_several_groups_and_a_list_of_widths_stay_with_a_note(width: object) -> None:
    network = Sized(width=width).eval()
    graph = sc.trace(network, IMAGE.float())
    assert [note for note in graph.notes if "width" in note and "a and b" in note and "set it after the cut" in note]
    assert sc.cut(network, sc.random_plan(graph)).width == width


@pytest.mark.parametrize("attributes", [{"width": 7}, {"other": 8}, {"width": True}, {"width": "8"}])
def test_other_attributes_stay_without_a_note(attributes: dict[str, object]) -> None:
    network = Sized(**attributes).eval()
    graph = sc.trace(network, IMAGE.float())
    assert not graph.notes
    small = sc.cut(network, sc.random_plan(graph))
    assert all(vars(small)[name] == value for name, value in attributes.items())


class Counting(Sized):
    """Its attribute equals a width by chance, and forward depends on it."""

    def __init__(self) -> None:
        super().__init__(width=6)
        self.b = nn.Conv2d(8, 6, 1)
        self.d = nn.Conv2d(6, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.width


def test_an_attribute_that_forward_uses_otherwise_stays() -> None:
    network, x = Counting().eval(), IMAGE.float()
    graph = sc.trace(network, x)
    assert {group.name: group.size for group in graph.prunable} == {"a": 8, "b": 6}
    plan = sc.random_plan(graph)
    assert sc.cut(network, plan).width == 6
    assert sc.verify(network, plan, x) <= 1e-5


def test_the_number_of_heads_follows_the_cut() -> None:
    network, example = build("fused_attention")
    graph = sc.trace(network, example)
    plan = sc.Plan.keeping(graph, {"attention.qkv": [1, 3]})
    small = sc.cut(network, plan)
    assert small.attention.num_heads == 2 and network.attention.num_heads == 4
    assert small.attention.qkv.weight.shape == (18, 8) and small.attention.proj.weight.shape == (8, 6)
    assert sc.verify(network, plan, example) < 1e-12
    assert any("attention.num_heads count attention heads" in note for note in graph.notes)
