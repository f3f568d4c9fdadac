"""After a cut, the size attributes of modules match their tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import secateur as sc
from secateur._torch import Convolution, NormWithStatistics
from support.cases import CASES, build


def check(module: nn.Module) -> None:
    if isinstance(module, Convolution):
        wide, narrow = module.weight.shape[0], module.weight.shape[1] * module.groups
        assert (module.in_channels, module.out_channels) == ((wide, narrow) if module.transposed else (narrow, wide))
        assert module.in_channels % module.groups == 0 and module.out_channels % module.groups == 0
    elif isinstance(module, nn.Linear):
        assert (module.out_features, module.in_features) == module.weight.shape
    elif isinstance(module, nn.GroupNorm):
        assert module.num_channels % module.num_groups == 0
        assert module.weight is None or module.weight.shape == (module.num_channels,)
    elif isinstance(module, NormWithStatistics):
        for tensor in (module.weight, module.running_mean):
            assert tensor is None or tensor.shape == (module.num_features,)
    elif isinstance(module, nn.PReLU):
        assert module.weight.shape == (module.num_parameters,)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.module])
def test_attributes_match_the_tensors(name: str) -> None:
    network, example = build(name)
    small = sc.cut(network, sc.random_plan(sc.trace(network, example), kept=0.6))
    for module in small.modules():
        check(module)


def test_many_narrow_groups_are_removed_as_a_whole() -> None:
    network, example = build("many_narrow_groups")
    small = sc.cut(network, sc.Plan.keeping(sc.trace(network, example), {"0": [1, 4, 6]}))
    assert (small[1].groups, small[1].in_channels, small[1].out_channels) == (3, 6, 9)


def test_few_wide_groups_keep_their_number() -> None:
    network, example = build("few_wide_groups")
    small = sc.cut(network, sc.Plan.keeping(sc.trace(network, example), {"0": [1, 4, 6], "1": [0]}))
    assert (small[1].groups, small[1].in_channels, small[1].out_channels) == (2, 6, 2)


def test_a_norm_without_tensors_gets_its_new_width() -> None:
    network, example = build("norms_by_channel")
    small = sc.cut(network, sc.random_plan(sc.trace(network, example), kept=0.5))
    assert small[7].num_features == 4  # batch norm without affine parameters and statistics
    assert small[9].num_features == 4  # instance norm
    network, example = build("group_norms")
    small = sc.cut(network, sc.random_plan(sc.trace(network, example), kept=0.5))
    assert (small[3].num_groups, small[3].num_channels) == (2, 4)


def test_an_embedding_is_narrowed() -> None:
    network = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 5))
    example = torch.tensor([[1, 2], [3, 4]])
    plan = sc.random_plan(sc.trace(network, example))
    small = sc.cut(network, plan)
    assert small[0].embedding_dim == 4 and small[0].weight.shape == (10, 4)
    assert sc.verify(network, plan, example) <= 1e-5


def test_a_transposed_layer_that_produces_fewer_channels_keeps_its_groups() -> None:
    model = nn.Sequential(nn.Conv1d(1, 3, 1), nn.ConvTranspose1d(3, 4, 4), nn.Conv1d(4, 2, 1)).double()
    example = torch.randn(2, 1, 9, dtype=torch.float64)
    plan = sc.Plan.keeping(sc.trace(model, example), {"1": [1, 2, 3]})
    small = sc.cut(model, plan)
    assert (small[1].groups, small[1].in_channels, small[1].out_channels) == (1, 3, 3)
    assert sc.verify(model, plan, example) < 1e-12
