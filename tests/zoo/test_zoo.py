"""The networks have the sizes of the papers, counted by hand, and can be cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from secateur.surgery.cut import cut
from secateur.surgery.plan import random_plan
from secateur.surgery.verify import verify
from secateur.tracing.trace import trace
from secateur.zoo import NETWORKS, DeepKnight, DenseNetCifar, ResNetCifar, WideResNet

CUT = ["resnet20", "resnet20-b", "vgg16-bn", "densenet22", "densenet22-bc", "wrn16-8", "deepknight"]


def conv(before: int, after: int, size: int = 3, bias: bool = False) -> int:
    return before * after * size * size + (after if bias else 0)


def norm(width: int) -> int:
    return 2 * width


def linear(before: int, after: int) -> int:
    return before * after + after


def resnet(depth: int, shortcuts: int = 0) -> int:
    n = (depth - 2) // 6
    first = conv(3, 16) + norm(16)
    stages = [(2 * n - (grows != w)) * conv(w, w) + 2 * n * norm(w) for w, grows in ((16, 16), (32, 16), (64, 32))]
    return first + sum(stages) + conv(16, 32) + conv(32, 64) + shortcuts + linear(64, 10)


def vgg16() -> int:
    widths = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    layers = sum(conv(before, after, bias=True) + norm(after) for before, after in pairwise(widths))
    return layers + linear(512, 512) + norm(512) + linear(512, 10)


def densenet22() -> int:
    layers = sum(norm(before) + conv(before, 12) for start in (24, 96, 168) for before in range(start, start + 72, 12))
    between = sum(norm(width) + conv(width, width, 1) for width in (96, 168))
    return conv(3, 24) + layers + between + norm(240) + linear(240, 10)


def densenet22_bc() -> int:
    layers = sum(
        norm(before) + conv(before, 48, 1) + norm(48) + conv(48, 12)
        for start in (24, 30, 33)  # 24 + 36 = 60, halved; 30 + 36 = 66, halved
        for before in range(start, start + 36, 12)
    )
    between = sum(norm(width) + conv(width, width // 2, 1) for width in (60, 66))
    return conv(3, 24) + layers + between + norm(69) + linear(69, 10)


def wrn16_8() -> int:
    total = conv(3, 16)
    for before, after in ((16, 128), (128, 256), (256, 512)):
        total += norm(before) + conv(before, after) + norm(after) + conv(after, after) + conv(before, after, 1)
        total += 2 * (norm(after) + conv(after, after))
    return total + norm(512) + linear(512, 10)


def deepknight() -> int:
    layers = ((3, 24, 5), (24, 36, 5), (36, 48, 3), (48, 64, 3), (64, 64, 3))
    convs = sum(conv(before, after, size, bias=True) for before, after, size in layers)
    return convs + linear(64 * 9 * 14, 1000) + linear(1000, 100) + linear(100, 1)


SIZES = {
    "resnet20": (269_722, resnet(20)),
    "resnet56": (853_018, resnet(56)),
    "resnet110": (1_727_962, resnet(110)),
    "resnet56-b": (855_770, resnet(56, conv(16, 32, 1) + norm(32) + conv(32, 64, 1) + norm(64))),
    "vgg16-bn": (14_991_946, vgg16()),
    "densenet22": (290_986, densenet22()),
    "densenet22-bc": (71_686, densenet22_bc()),
    "wrn16-8": (10_961_370, wrn16_8()),
    "deepknight": (8_268_901, deepknight()),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameters(name: str) -> None:
    with torch.device("meta"):
        model = NETWORKS[name]()
    known, counted = SIZES[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == known == counted


@pytest.mark.parametrize("name", CUT)
def test_a_third_of_the_parameters_can_be_cut(name: str) -> None:
    model = NETWORKS[name]().eval()
    example = torch.randn(1, *model.input_shape)
    plan = random_plan(trace(model, example), kept=0.5, seed=0)
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, cut(model, plan)))
    assert after <= 0.7 * before
    assert verify(model, plan, example) < 1e-5


def test_outputs() -> None:
    assert NETWORKS["densenet22"]()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert NETWORKS["deepknight"]()(torch.zeros(2, 3, 120, 160)).shape == (2,)


def test_deepknight_accepts_other_frames() -> None:
    model = DeepKnight(66, 200)
    assert model.head[0].in_features == 64 * 2 * 19
    assert model.input_shape == (3, 66, 200)
    assert model(torch.zeros(1, *model.input_shape)).shape == (1,)
    assert DeepKnight(53, 53)(torch.zeros(1, 3, 53, 53)).shape == (1,)
    with pytest.raises(ValueError, match="53x53"):
        DeepKnight(52, 160)


def test_invalid_depths_are_refused() -> None:
    for kind, wrong in ((DenseNetCifar, 23), (WideResNet, 20), (ResNetCifar, 18)):
        with pytest.raises(ValueError, match="depth is"):
            kind(wrong)
    with pytest.raises(ValueError, match="6n"):
        DenseNetCifar(25, compact=True)
