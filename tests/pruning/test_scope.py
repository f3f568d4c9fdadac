"""Pruning parts of a larger model, which runs as a whole on its own data."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.errors import SecateurError, UsageError
from secateur.pruning.scope import samples_of
from support.detectors import Detector, detector, pictures


@pytest.fixture(scope="module")
def pruned() -> sc.Pruned:
    return sc.prune(detector(), pictures(20), {"macs": "50%"}, scope="backbone", samples=48)


def test_the_whole_model_runs_with_a_smaller_part(pruned: sc.Pruned) -> None:
    model, (images, _) = detector(), pictures(1, seed=9)[0]
    assert isinstance(pruned.model, Detector)
    assert pruned.model(images)[0].keys() == model(images)[0].keys()
    assert pruned.after.macs <= 0.5 * pruned.before.macs and pruned.verification < 1e-5
    assert pruned.repair is not None and pruned.repair.after < pruned.repair.before
    assert pruned.samples == 48 and pruned.agreement is not None and pruned.agreement.samples == 32
    assert torch.equal(pruned.model.head[0].weight, model.head[0].weight), "the rest is as it was"
    assert "only backbone was pruned" in pruned.summary()


def test_the_original_is_left_alone() -> None:
    model = detector()
    before = copy.deepcopy(model.state_dict())
    sc.prune(model, pictures(8), {"params": "60%"}, scope="backbone", samples=24, method="ft")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_a_scoped_result_is_saved_loaded_verified_and_repaired(pruned: sc.Pruned, tmp_path: Path) -> None:
    model, data = detector(), pictures(4)
    sc.save(tmp_path / "small.safetensors", pruned)
    loaded = sc.load(tmp_path / "small.safetensors", Detector()).eval()
    images = data[0][0]
    for one, other in zip(loaded(images), pruned.model(images), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
    plan = sc.Plan.from_json(pruned.plan.to_json())
    assert plan.scope == ("backbone",) and plan == pruned.plan
    assert sc.verify(model, plan, data) < 1e-5
    repaired = sc.repair(sc.cut(model, plan), model, data, plan)
    assert isinstance(repaired, Detector) and repaired(images)[0].keys() == {"boxes", "labels", "scores"}
    again = sc.prune(pruned.model, pictures(20), {"macs": "70%"}, scope="backbone", samples=48)
    sc.save(tmp_path / "smaller.safetensors", again)
    found = sc.load(tmp_path / "smaller.safetensors", Detector()).eval()(images)
    assert all(torch.equal(one["boxes"], other["boxes"]) for one, other in zip(found, again.model(images), strict=True))


def test_trace_plan_and_compare_take_a_scope() -> None:
    model, data = detector(), pictures(16)
    graph = sc.trace(model, data[0], scope="backbone")
    assert [group.name for group in graph.prunable] == ["backbone.0", "backbone.3"]
    plan = sc.plan(model, data, {"macs": "50%"}, scope="backbone", samples=32, method="ft")
    assert plan.scope == graph.scope == sc.random_plan(graph).scope == ("backbone",)
    found = sc.compare(model, data, {"macs": ["50%"]}, ["ft", "random"], scope="backbone", samples=24)
    assert all(row.value is not None for row in found.rows)


def test_images_of_different_sizes() -> None:
    res = sc.prune(detector(), pictures(12, sizes=(16, 24, 20)), {"macs": "60%"}, scope="backbone", samples=32)
    assert res.repair is not None and res.verification < 1e-5


def test_a_part_that_runs_on_regions_of_the_images() -> None:
    res = sc.prune(detector(), pictures(12), {"params": "50%"}, scope="head", samples=32)
    assert 32 <= res.samples and res.model.head[0].out_features < 24


class Siamese(nn.Module):
    """Two encoders that take keywords, and a choice by values between them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4)) for _ in range(2))
        self.last = nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        one, two = self.left(a), self.right(b)
        return self.last(one if one.sum() > two.sum() else two)


def test_several_submodules_share_one_budget_and_batches_may_be_dicts() -> None:
    torch.manual_seed(0)
    model = Siamese().eval()
    data = [{"a": torch.randn(8, 6), "b": torch.randn(8, 6)} for _ in range(10)]
    with pytest.raises(SecateurError, match=r"scope='left' \(48% of the parameters\) or scope='right'"):
        sc.prune(model, data, {"params": "50%"})
    res = sc.prune(model, data, {"params": "50%"}, scope=["left", "right"], samples=48)
    assert res.plan.scope == ("left", "right") and res.after.params <= 0.5 * res.before.params
    assert res.model(**data[0]).shape == (8, 3)
    fresh = [{"a": torch.randn(40, 6), "b": torch.randn(40, 6)}]
    assert sc.certify(model, res.model, fresh, example=data[0], used=res.fingerprints)["disagreement"].samples == 40


def test_certified_samples_must_be_new() -> None:
    torch.manual_seed(0)
    model, data = Siamese().eval(), [{"a": torch.randn(8, 6), "b": torch.randn(8, 6)} for _ in range(10)]
    res = sc.prune(model, data, {"params": "60%"}, scope="left", samples=80)
    with pytest.raises(SecateurError, match="were used before"):
        sc.certify(model, res.model, data, used=res.fingerprints, example=data[0])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"output": "graph"}, "cuts a program as a whole"),
        ({"heldout": [1], "budget": {"drop": "1%"}}, "a budget in drop is about the whole model"),
        ({"scope": "spare"}, "never runs"),
        ({"data": []}, "there is no data"),
    ],
)
def test_what_a_scope_cannot_do_is_refused(more: dict[str, Any], message: str) -> None:
    given = {"data": pictures(2), "budget": {"macs": "50%"}, "scope": "backbone"} | more
    with pytest.raises(SecateurError, match=message):
        sc.prune(detector(), **given)


def test_nan_in_a_list_of_images_and_graphs_of_the_whole_are_refused() -> None:
    data = pictures(2)
    data[1][0][2][0, 0, 0] = float("nan")
    with pytest.raises(SecateurError, match="sample 2 of batch 1"):
        sc.prune(detector(), iter(data), {"macs": "50%"}, scope="backbone")
    graph = sc.trace(detector(), pictures(1)[0], scope="backbone")
    with pytest.raises(UsageError, match="exclude each other"):
        sc.prune(detector(), data, {"macs": "50%"}, scope="backbone", graph=graph)


def test_samples_of_a_call() -> None:
    assert samples_of((([torch.zeros(3, 4, 4)] * 5,), {})) == 5
    assert samples_of(((torch.zeros(7, 3),), {})) == 7
