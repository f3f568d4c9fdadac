"""Graph output: any batch size, both modes, the model's own parameter names."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from cases import IMAGE, Net, build
from torch import Tensor, nn

import secateur as sc


def graph_cut(name: str, kept: float = 0.5):
    network, example = build(name)
    graph = sc.trace(network, example, output="graph")
    plan = sc.random_plan(graph, kept=kept)
    return network, example, plan, sc.cut(network, plan)


def test_parameter_names_stay() -> None:
    network, _, _, small = graph_cut("split_by_literal_widths")
    assert set(small.state_dict()) == set(network.state_dict())
    assert small.a.weight.shape[0] == 6


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_the_batch_size_is_free(batch: int) -> None:
    network, _, plan, small = graph_cut("split_by_literal_widths")
    masked = sc.mask(network, plan)
    x = torch.randn(batch, 3, 8, 8, dtype=torch.float64)
    assert torch.allclose(small(x), masked(x))


def test_training_mode_updates_statistics_and_trains() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        return m.b(F.relu(F.dropout(m.n(m.a(x)).view(-1, 8, 64), 0.0, m.training)).view(-1, 8, 8, 8))

    network = Net(run, a=nn.Conv2d(3, 8, 1), n=nn.BatchNorm2d(8), b=nn.Conv2d(8, 5, 1))
    plan = sc.random_plan(sc.trace(network, IMAGE.float(), output="graph"))
    small = sc.cut(network, plan)
    assert small.training
    before = small.n.running_mean.clone()
    small(IMAGE.float()).sum().backward()
    assert not torch.equal(before, small.n.running_mean) and small.n.num_batches_tracked == 1
    assert small.a.weight.grad is not None
    small.eval()
    settled = small.n.running_mean.clone()
    small(IMAGE.float())
    assert torch.equal(settled, small.n.running_mean)


def test_a_pad_shrinks_with_its_channels() -> None:
    network, example, plan, small = graph_cut("option_a_shortcut", kept=0.25)
    assert small.c.weight.shape[0] < 16
    assert sc.verify(network, plan, example) <= 1e-9


def test_computed_weights_become_plain() -> None:
    network, example, plan, small = graph_cut("weight_standardised")
    graph = sc.trace(network, example, output="graph")
    assert any("3 layers" in note for note in graph.notes)
    assert small.b.weight.shape == (4, 4, 3, 3)
    assert sc.verify(network, plan, example) <= 1e-9


def test_the_result_can_be_copied_saved_and_cut_again() -> None:
    _, example, _, small = graph_cut("split_by_literal_widths")
    twin = copy.deepcopy(small)
    twin.load_state_dict(small.state_dict())
    assert torch.equal(twin(example), small(example))
    again = sc.random_plan(sc.trace(small, example, output="graph"), kept=0.5, seed=1)
    assert sc.verify(small, again, example) <= 1e-9


def test_other_arguments_than_traced_are_refused() -> None:
    _, example, _, small = graph_cut("split_by_literal_widths")
    with pytest.raises(sc.SecateurError, match="arranged"):
        small(example, example)


def test_a_plan_for_another_network_is_refused() -> None:
    _, _, plan, _ = graph_cut("split_by_literal_widths")
    other, _ = build("plain")
    with pytest.raises(sc.SecateurError, match="another network"):
        sc.cut(other, plan)


def test_frozen_parameters_and_temporary_buffers_stay_so() -> None:
    network, example = build("layer_scale_and_buffer")
    network.a.weight.requires_grad_(False)
    network.register_buffer("shift", network.shift, persistent=False)
    small = sc.cut(network, sc.random_plan(sc.trace(network, example, output="graph")))
    assert not small.a.weight.requires_grad and small.b.weight.requires_grad
    assert "shift" not in small.state_dict() and small.shift.shape[1] == 4


def test_a_part_without_gradients_leaves_the_mode_as_it_was() -> None:
    network, example, plan, small = graph_cut("part_without_gradients")
    with torch.no_grad():
        small(example)
        assert not torch.is_grad_enabled()
    small(example).sum().backward()
    assert small.a.weight.grad is None and small.b.weight.grad is not None
    assert sc.verify(network, plan, example) <= 1e-9
    again = sc.random_plan(sc.trace(small, example, output="graph"), seed=1)
    assert sc.verify(small, again, example) <= 1e-9
