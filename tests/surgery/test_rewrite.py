"""Graph output: any batch size, both modes, the model's own parameter names."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from support.cases import IMAGE, Net, build


def graph_cut(name: str, kept: float = 0.5):
    network, example = build(name)
    graph = sc.trace(network, example, output="graph")
    plan = sc.random_plan(graph, kept=kept)
    return network, example, plan, sc.cut(network, plan)


def test_parameter_names_are_preserved() -> None:
    network, _, _, small = graph_cut("split_by_literal_widths")
    assert set(small.state_dict()) == set(network.state_dict())
    assert small.a.weight.shape[0] == 6


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_the_batch_size_is_dynamic(batch: int) -> None:
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
    before = small.n.running_mean.clone()
    small(IMAGE.float())
    assert torch.equal(before, small.n.running_mean)


def test_a_pad_shrinks_with_its_channels() -> None:
    network, example, plan, small = graph_cut("option_a_shortcut", kept=0.25)
    assert small.c.weight.shape[0] < 16
    assert sc.verify(network, plan, example) <= 1e-9


def test_computed_weights_become_plain_parameters() -> None:
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


def test_arguments_unlike_the_example_are_refused() -> None:
    _, example, _, small = graph_cut("split_by_literal_widths")
    with pytest.raises(sc.SecateurError, match="not nested as in the example"):
        small(example, example)


def test_a_plan_for_another_network_is_refused() -> None:
    _, _, plan, _ = graph_cut("split_by_literal_widths")
    other, _ = build("plain")
    with pytest.raises(sc.SecateurError, match="another network"):
        sc.cut(other, plan)


def test_frozen_parameters_and_temporary_buffers_are_preserved() -> None:
    network, example = build("layer_scale_and_buffer")
    network.a.weight.requires_grad_(False)
    network.register_buffer("shift", network.shift, persistent=False)
    small = sc.cut(network, sc.random_plan(sc.trace(network, example, output="graph")))
    assert not small.a.weight.requires_grad and small.b.weight.requires_grad
    assert "shift" not in small.state_dict() and small.shift.shape[1] == 4


def test_a_part_without_gradients_restores_the_gradient_mode() -> None:
    network, example, plan, small = graph_cut("part_without_gradients")
    with torch.no_grad():
        small(example)
        assert not torch.is_grad_enabled()
    small(example).sum().backward()
    assert small.a.weight.grad is None and small.b.weight.grad is not None
    assert sc.verify(network, plan, example) <= 1e-9
    again = sc.random_plan(sc.trace(small, example, output="graph"), seed=1)
    assert sc.verify(small, again, example) <= 1e-9


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_a_spectral_norm_becomes_plain_weights_that_train(norm) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), norm(nn.Conv2d(8, 6, 1)), nn.Conv2d(6, 5, 1)).eval()
    x = IMAGE.float()
    graph = sc.trace(network, x, output="graph")
    assert [group.size for group in graph.prunable] == [8, 6]
    assert any("now plain parameters" in note for note in graph.notes)
    plan = sc.random_plan(graph)
    assert sc.verify(network, plan, x) <= 1e-5
    small = sc.cut(network, plan).train()
    small(x).sum().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())
    batches = next(tensor for name, tensor in small.named_buffers() if name.endswith("num_batches_tracked"))
    assert batches == 1  # an update that serves no weight stays
