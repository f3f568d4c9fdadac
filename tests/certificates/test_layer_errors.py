"""The error of each layer against the definition, as a slow loop over samples, outputs and channels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.certificates.layer_errors import LayerErrors
from secateur.network.batches import Call


class Net(nn.Module):
    """Two convolutions, a flatten, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 5, 3, stride=2)
        self.hidden = nn.Linear(5 * 4, 7)
        self.last = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(torch.relu(self.hidden(x.flatten(1))))


def forward(network: nn.Module, call: Call) -> Tensor:
    with torch.no_grad():
        return network(*call[0], **call[1])


def by_hand(weight: Tensor, x: Tensor, what: Tensor, xhat: Tensor, kept: list[int], shift: Tensor) -> float:
    """One sample; inputs [units, positions, entries], weights [outputs, units, entries]: by the definition."""
    worst = 0.0
    for row, i in enumerate(kept):
        for p in range(x.shape[1]):
            parts = [float(weight[i, j] @ x[j, p]) for j in range(x.shape[0])]
            zhat = sum(float(what[row, j] @ xhat[j, p]) for j in range(xhat.shape[0]))
            total = sum(abs(part) for part in parts)
            error = abs(zhat + float(shift[row]) - sum(parts))
            worst = max(worst, error / total if error else 0.0)
    return worst


def windows(x: Tensor, stride: int) -> Tensor:
    """Windows of 3 x 3 of one sample: [channels, positions, 9]."""
    found = torch.nn.functional.unfold(x[None], 3, stride=stride)[0]
    return found.view(len(x), 9, -1).transpose(1, 2)


def test_the_errors_are_the_definition() -> None:
    torch.manual_seed(1)
    model = Net().double()
    images = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    graph = sc.trace(model, images[:1])
    plan = sc.Plan.keeping(graph, {"first": [0, 2, 5], "second": [1, 3, 4], "hidden": [0, 1, 4, 6]})
    small = sc.cut(model, plan)
    with torch.no_grad():
        small.hidden.bias += 0.1  # as a repair would
    errors = LayerErrors(model, small, plan)
    f, fhat = errors.run(((images,), {}), forward)
    assert torch.equal(f, model(images)) and torch.equal(fhat, small(images))
    assert not errors.left_out
    with torch.no_grad():
        for number, image in enumerate(images):
            a, ahat = (torch.relu(net.first(image)) for net in (model, small))
            b, bhat = (torch.relu(net.second(x)) for net, x in ((model, a), (small, ahat)))
            c, chat = (torch.relu(net.hidden(x.flatten())) for net, x in ((model, b), (small, bhat)))
            wanted = {
                "second": by_hand(
                    model.second.weight.flatten(2), windows(a, 2), small.second.weight.flatten(2), windows(ahat, 2),
                    [1, 3, 4], torch.zeros(3),
                ),
                "hidden": by_hand(
                    model.hidden.weight.view(7, 5, 4), b.view(5, 1, 4), small.hidden.weight.view(4, 3, 4),
                    bhat.view(3, 1, 4), [0, 1, 4, 6], torch.full((4,), 0.1, dtype=torch.float64),
                ),
                "last": by_hand(
                    model.last.weight[..., None], c[:, None, None], small.last.weight[..., None],
                    chat[:, None, None], [0, 1, 2], torch.zeros(3),
                ),
            }  # fmt: skip
            for layer, worst in wanted.items():
                assert errors.found[sc.Slot(f"{layer}.weight", 1)][number] == pytest.approx(worst, rel=1e-9)


def test_a_network_that_was_not_changed_has_no_error() -> None:
    model = Net()
    images = torch.randn(5, 2, 6, 6)
    plan = sc.random_plan(sc.trace(model, images[:1]))
    errors = LayerErrors(sc.mask(model, plan), sc.cut(model, plan), plan)
    errors.run(((images,), {}), forward)
    assert all(len(found) == 5 and max(found) < 1e-5 for found in errors.found.values())
    assert len(errors.found) == 3


def test_grouped_layers_and_samples_of_zeros() -> None:
    model = nn.Sequential(nn.Conv2d(2, 8, 1, bias=False), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 3, 1))
    images = torch.randn(3, 2, 5, 5)
    images[1] = 0
    graph = sc.trace(model, images[:1])
    plan = sc.random_plan(graph, 0.5)
    errors = LayerErrors(model, sc.cut(model, plan), plan)
    errors.run(((images,), {}), forward)
    assert not errors.left_out and sc.Slot("2.weight", 1) in errors.found
    found = errors.found[sc.Slot("2.weight", 1)]
    assert found[1] == 0 and found[0] > 0  # 0 / 0 is 0


class Folding(Net):
    """A layer that takes the samples of a batch as one."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(torch.relu(self.hidden(x.flatten(1)))[None])[0]


def test_a_layer_that_mixes_samples_is_left_out() -> None:
    model = Folding()
    images = torch.randn(4, 2, 6, 6)
    plan = sc.random_plan(sc.trace(model, images[:1]))
    errors = LayerErrors(model, sc.cut(model, plan), plan)
    errors.run(((images,), {}), forward)
    assert [slot.parameter for slot in errors.left_out] == ["last.weight"]
    assert "sample by sample" in errors.left_out[sc.Slot("last.weight", 1)]


def test_a_graph_cut() -> None:
    model = Net()
    images = torch.randn(2, 2, 6, 6)
    plan = sc.random_plan(sc.trace(model, images, output="graph"))
    errors = LayerErrors(model, sc.cut(model, plan), plan)
    f, _ = errors.run(((images,), {}), forward)
    torch.testing.assert_close(f, model(images))
    assert len(errors.found) == 3 and not errors.left_out
