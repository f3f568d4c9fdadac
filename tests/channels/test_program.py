"""Examples, wrappers, and the exported program of a model."""

from __future__ import annotations

import torch
from torch import nn

from secateur.channels.program import export
from secateur.network.examples import call_arguments, describe, doubled, revive
from secateur.network.modules import meta_copy, named_tensors, owner, unwrap
from support.cases import build


def test_an_example_is_a_tensor_a_tuple_or_a_dict() -> None:
    x = torch.zeros(2)
    assert call_arguments(x) == ((x,), {})
    assert call_arguments((x, 3)) == ((x, 3), {})
    assert call_arguments({"x": x}) == ((), {"x": x})


def test_an_example_can_be_restored_from_plain_data() -> None:
    example = (torch.zeros(1, 3, dtype=torch.float64), {"mask": torch.zeros(2, dtype=torch.int64)}, 7)
    again = revive(describe(example))
    assert again[0].shape == (1, 3) and again[0].dtype == torch.float64
    assert again[1]["mask"].dtype == torch.int64 and again[2] == 7


def test_a_single_sample_is_doubled_for_training() -> None:
    assert doubled((torch.zeros(1, 3), torch.zeros(4, 3)))[0].shape == (2, 3)
    assert doubled((torch.zeros(1, 3), torch.zeros(4, 3)))[1].shape == (4, 3)


def test_wrappers_are_removed() -> None:
    layer = nn.Linear(2, 2)
    assert unwrap(nn.DataParallel(torch.compile(layer))) is layer


def test_owner_of_a_parametrized_tensor_is_the_layer() -> None:
    assert owner("block.conv.weight") == "block.conv"
    assert owner("conv.parametrizations.weight.original0") == "conv"
    assert owner("gamma") == ""


def test_a_program_names_tied_tensors_once() -> None:
    network, example = build("tied_weights")
    assert "c.weight" not in named_tensors(network)
    program = export(network, example)
    assert "b.weight" in program.tensors and "c.weight" not in program.tensors


def test_a_meta_copy_has_shapes_and_no_storage() -> None:
    network, _ = build("tied_weights")
    shadow = meta_copy(network)
    assert all(p.is_meta for p in shadow.parameters())
    assert shadow.b.weight is shadow.c.weight
    assert not any(p.is_meta for p in network.parameters())
