"""Entrywise bounds: equal to a slow oracle on a chain, and never below the true error of real cuts."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from secateur.channels.program import export
from secateur.errors import SecateurError
from secateur.theory.propagation import propagate


def positive_gap(value: float, error: float) -> float:
    """Return how far relu(value) may move if value moves by at most error."""
    return max(max(value + error, 0) - max(value, 0), max(value, 0) - max(value - error, 0))


@torch.no_grad()
@pytest.mark.parametrize("seed", range(5))
def test_linear_layers_against_slow_loops(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
    x = torch.randn(1, 3, dtype=torch.float64)
    eps = {"0.weight": 0.1, "2.weight": 0.05}
    found = propagate(export(model, x), [x], eps)
    first, second = model[0], model[2]
    z = first(x)[0]
    own = [eps["0.weight"] * sum(abs(float(first.weight[i, j] * x[0, j])) for j in range(3)) for i in range(4)]
    a, e = torch.relu(z), [positive_gap(float(z[i]), own[i]) for i in range(4)]
    for i in range(2):
        moved = sum(abs(float(second.weight[i, j])) * e[j] for j in range(4))
        terms = sum(abs(float(second.weight[i, j] * a[j])) for j in range(4))
        assert float(found.error[0, i]) == pytest.approx(1.05 * moved + 0.05 * terms)  # type: ignore[index]
    assert torch.equal(found.value, model(x))


def test_a_convolution_counts_each_channel_once() -> None:
    """z+ + z- adds up the windows of channels, not single entries."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 2, 2, stride=2, padding=1).double()
    x = torch.randn(1, 3, 5, 5, dtype=torch.float64)
    error = propagate(export(conv, x), [x], {"weight": 0.5}).error
    assert error is not None
    for i in range(2):
        terms = sum(
            torch.nn.functional.conv2d(x[:, j : j + 1], conv.weight[i : i + 1, j : j + 1], stride=2, padding=1).abs()
            for j in range(3)
        )
        assert torch.allclose(error[0, i], 0.5 * terms[0, 0])


class Busy(nn.Module):
    """Most of the ops that have a bound, with joins."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.conv3 = nn.Conv2d(12, 4, 1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu_(self.norm(self.conv1(x)))
        b = nn.functional.silu(self.conv2(a)) + 0.5 * a
        c = torch.cat([b, nn.functional.hardtanh(a)], 1)
        c = nn.functional.max_pool2d(c, 2)
        c = torch.sigmoid(self.conv3(c)) * nn.functional.gelu(self.conv3(c))
        c = nn.functional.avg_pool2d(nn.functional.pad(c, (1, 0, 0, 1), value=0.3), 2)
        return self.fc(c.flatten(1)[:, :16] - 0.1)


@pytest.mark.parametrize("seed", range(8))
def test_real_errors_stay_within_the_bound(seed: int) -> None:
    """Channels of a weight move by a factor of 1 +- eps, so that every sum moves by at most eps of its terms."""
    torch.manual_seed(seed)
    model = Busy().eval()
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(8, 2, 6, 6))
    model.eval()
    x, eps = torch.randn(1, 2, 6, 6), {"conv1.weight": 0.05, "conv3.weight": 0.02}
    found = propagate(export(model, x), [x], eps)
    assert found.error is not None and torch.allclose(found.value, model(x), atol=1e-6)
    worst = torch.zeros_like(found.error)
    for _ in range(50):
        moved = Busy().eval()
        moved.load_state_dict(model.state_dict())
        with torch.no_grad():
            for name, one in eps.items():
                weight = moved.get_parameter(name)
                sign = torch.randint(0, 2, (1, weight.shape[1], 1, 1)) * 2 - 1  # a channel moves as a whole
                weight.mul_(1 + one * sign)
            worst = torch.maximum(worst, (moved(x) - model(x)).abs())
    assert (worst <= found.error + 1e-6).all() and (worst > 0).all()


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
def test_dropped_channels_stay_within_the_bound(seed: int) -> None:
    """Channels of a hidden layer are dropped; eps is their true share in the sums, so the bound must hold."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    x = torch.randn(1, 5)
    program = export(model, x)
    for gone in itertools.combinations(range(8), 2):
        a = model[:2](x)[0]
        terms = (model[2].weight * a).abs()
        share = float((terms[:, list(gone)].sum(1) / terms.sum(1).clamp(min=1e-12)).max())
        bound = propagate(program, [x], {"2.weight": share}).error
        cut = a.clone()
        cut[list(gone)] = 0
        true = (model[2:](cut[None]) - model(x)).abs()
        assert (true <= (0.0 if bound is None else bound) + 1e-5).all()  # None where both channels are dead


def test_exact_networks_have_no_error() -> None:
    model, x = Busy().eval(), torch.randn(1, 2, 6, 6)
    assert propagate(export(model, x), [x], {}).error is None


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(x), 1)


def test_an_unknown_op_is_refused_by_name() -> None:
    model, x = Attention().eval(), torch.randn(1, 4)
    with pytest.raises(SecateurError, match="no bound is known for an op that errors reach: the op softmax"):
        propagate(export(model, x), [x], {"fc.weight": 0.1})
    assert propagate(export(model, x), [x], {}).error is None  # no error reaches it


def test_a_weight_that_no_layer_uses_is_refused() -> None:
    model, x = Attention().eval(), torch.randn(1, 4)
    with pytest.raises(SecateurError, match="no op of its program uses its weight") as caught:
        propagate(export(model, x), [x], {"other.weight": 0.1})
    assert caught.value.layer == "other.weight"
