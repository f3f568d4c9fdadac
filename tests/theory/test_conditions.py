"""Condition numbers against slow loops, and networks that are no chains."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from secateur.channels.program import export
from secateur.errors import SecateurError
from secateur.theory.conditions import condition_numbers, layer_order


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(),
        nn.Linear(4, 2),
    )  # fmt: skip
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    with torch.no_grad():
        norm.weight.uniform_(-1, 1)
        norm.bias.uniform_(-1, 1)
    return model.eval()


@torch.no_grad()
def slow(model: nn.Sequential, x: Tensor) -> list[float]:
    """Return the condition numbers term by term: |w| |a| summed, over the output with bias and norm."""
    conv, norm = model[0], model[1]
    out = norm(conv(x))
    factors = norm.weight.abs() / (norm.running_var + norm.eps).sqrt()
    worst = [0.0, 0.0, 0.0]
    for i in range(out.shape[1]):
        for r in range(out.shape[2]):
            for c in range(out.shape[3]):
                terms = sum(
                    abs(float(conv.weight[i, j, u, v])) * abs(float(x[0, j, r + u, c + v]))
                    for j in range(2) for u in range(2) for v in range(2)
                )  # fmt: skip
                worst[0] = max(worst[0], terms * float(factors[i]) / abs(float(out[0, i, r, c])))
    a = model[:5](x)[0]
    for place, layer in ((1, model[5]), (2, model[7])):
        for i, z in enumerate(layer(a)):
            terms = sum(abs(float(layer.weight[i, j])) * abs(float(a[j])) for j in range(len(a)))
            worst[place] = max(worst[place], terms / abs(float(z)))
        a = torch.relu(layer(a))
    return worst


@pytest.mark.parametrize("seed", range(5))
def test_against_slow_loops(seed: int) -> None:
    model = chain()
    x = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(seed))
    program = export(model, x)
    found = condition_numbers(program, [x])
    assert list(found) == layer_order(program) == ["0.weight", "5.weight", "7.weight"]
    assert list(found.values()) == pytest.approx(slow(model, x), rel=1e-4)
    assert min(found.values()) >= 0


def test_an_output_of_zero_has_no_bound() -> None:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -1.0]]))
    x = torch.ones(1, 2)
    assert condition_numbers(export(model, x), [x]) == {"weight": float("inf")}
    assert condition_numbers(export(model, x), [torch.zeros(1, 2)]) == {"weight": 0.0}  # 0/0 is no error


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x)) + x


class Averaged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        (Residual(), "not a chain of layers"),
        (Averaged(), "averages values of both signs"),
        (nn.Sequential(nn.Conv2d(2, 2, 3), nn.Sigmoid()), "relative errors cannot be followed: the op sigmoid"),
    ],
)
def test_other_networks_are_refused(model: nn.Module, cause: str) -> None:
    x = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    with pytest.raises(SecateurError, match=cause) as caught:
        condition_numbers(export(model.eval(), x), [x])
    assert "propagated bound" in str(caught.value)
