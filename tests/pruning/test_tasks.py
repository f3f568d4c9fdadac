"""Networks of other tasks in sc.prune: two modes, outputs that are None, several dtypes, and bad scopes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.errors import SecateurError


class Head(nn.Module):
    """Decoded boxes and feature maps in evaluation, a dict of raw maps in training, as the heads of YOLO have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Any:
        boxes, scores = self.boxes(x), self.scores(x)
        if self.training:
            return {"boxes": boxes, "scores": scores, "feats": [x]}
        return torch.cat([boxes.exp(), scores.sigmoid()], 1).flatten(2), {"boxes": boxes, "feats": [x]}


def yolo() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 12, 3, 1, 1), nn.SiLU(), Head(12)
    )


FREE = ["1.feats", "feats"]
IMAGES = torch.randn(64, 3, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("training", [False, True])
def test_a_yolo_is_pruned_in_either_mode_runs_in_both_and_keeps_its_mode(training: bool) -> None:
    model = yolo().train(training)
    before = copy.deepcopy(model.state_dict())
    res = sc.prune(model, IMAGES, {"macs": "50%"}, free_outputs=FREE, samples=48)
    assert model.training is res.model.training is training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert res.verification < 1e-5 and res.model[3].out_channels < 12, "a free output does not keep its channels"
    assert res.model.eval()(IMAGES)[0].shape == (64, 7, 36)
    assert res.model.train()(IMAGES)["scores"].shape == (64, 3, 6, 6)


def test_the_mode_does_not_change_the_result() -> None:
    plans = [
        sc.prune(yolo().train(mode), IMAGES, {"macs": "50%"}, free_outputs=FREE, samples=48).plan.kept
        for mode in (False, True)
    ]
    assert plans[0] == plans[1]


class WithNone(nn.Module):
    """Returns scores, and None where a loss or an attention map could be."""

    def __init__(self, only: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.only = nn.Linear(6, 16), nn.Linear(16, 4), only

    def forward(self, x: Tensor) -> Any:
        y = self.last(self.first(x).relu())
        return None if self.only else {"loss": None, "logits": y, "maps": (None, None)}


ROWS = torch.randn(64, 6, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("output", ["module", "graph"])
def test_outputs_that_are_none_stay_none(output: Any) -> None:
    res = sc.prune(WithNone().eval(), ROWS, {"params": "60%"}, output=output, samples=48)
    found = res.model(ROWS[:3])
    assert found["loss"] is None and found["maps"] == (None, None) and found["logits"].shape == (3, 4)
    assert res.verification < 1e-5


def test_a_network_whose_only_output_is_none_is_refused() -> None:
    with pytest.raises(SecateurError, match="WithNone: forward returns no tensor"):
        sc.prune(WithNone(only=True).eval(), ROWS, {"params": "60%"}, samples=48)


class Mixed(nn.Module):
    """A body in single precision and a head in double precision, with casts between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 16), nn.Linear(16, 12).double(), nn.Linear(12, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).relu().double()).relu())


def test_layers_of_several_dtypes_are_cut_repaired_and_keep_their_dtypes() -> None:
    torch.manual_seed(0)
    model = Mixed().eval()
    res = sc.prune(model, ROWS, {"params": "50%"}, samples=48)
    assert [p.dtype for p in res.model.parameters()] == [p.dtype for p in model.parameters()]
    assert res.verification < 1e-5 and res.repair is not None
    assert res.model.first.out_features < 16 and res.model.second.out_features < 12


def test_data_of_another_dtype_is_refused_and_the_model_is_unchanged() -> None:
    model = Mixed().eval()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(SecateurError, match=r"(?i)dtype|double"):
        sc.prune(model, ROWS.double(), {"params": "50%"}, samples=48)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


class Parts(nn.Module):
    """Parts that cannot be pruned on their own: one never runs, one runs at two sizes, one returns None."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.never = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 3, 1)), nn.Conv2d(3, 3, 1)
        self.sizes, self.silent = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 3, 1)), Silent()

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        self.silent(x)
        return self.sizes(x).mean((2, 3)) + self.sizes(x[..., ::2]).mean((2, 3))


class Silent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> None:
        self.layer(x)


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ("boddy", r"matches no submodule(.|\n)*nearest: body"),
        ("never", "never: it never runs on this data"),
        ("sizes", "sizes: it runs 2 times in one forward pass, with inputs of different shapes"),
        ("silent", "silent: it returns None"),
    ],
)
def test_a_bad_scope_is_refused_and_the_model_is_unchanged(scope: str, message: str) -> None:
    model = Parts().train()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(SecateurError, match=message):
        sc.prune(model, IMAGES, {"macs": "50%"}, scope=scope, samples=48)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training and not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert sc.prune(model, IMAGES, {"macs": "50%"}, scope="body", samples=48).verification < 1e-5


def test_maps_of_several_samples_in_one_batch_are_repaired() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 4, 1)).eval()
    res = sc.prune(net, IMAGES, {"macs": "60%"}, task="segmentation", samples=48)
    assert res.repair is not None and res.repair.after < res.repair.before
