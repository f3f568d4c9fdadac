"""Fisher weights: an oracle, and an op without gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.network.batches import Call, float_outputs
from secateur.network.divergence import output_divergence
from secateur.network.observer import LayerObserver
from secateur.network.processes import batch_source
from secateur.refit.fisher import Act, _random_loss, fisher_weights


def test_one_sample_after_the_other_gives_the_same() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x = torch.randn(6, 3).double()

    def run(batch: Call, act: Act) -> list[Tensor]:
        with LayerObserver(network, act):
            return float_outputs(network, batch)

    found = fisher_weights(run, [((x[:4],), {}), ((x[4:],), {})], {"0.weight": 5}, seed=0)
    assert list(found) == ["0.weight"]
    wanted = torch.zeros(5).double()
    for number, part in enumerate((x[:4], x[4:])):
        source = batch_source(0, number)
        way = 2.0 * torch.randint(0, 2, (len(part), 1), generator=source) - 1
        size = network(part).square().sum(1).mean().sqrt().detach()
        for sample, sign in zip(part, way, strict=True):
            hidden = network[0](sample).detach().requires_grad_()
            (gradient,) = torch.autograd.grad((network[2](hidden.tanh()) * sign / size).sum(), hidden)
            wanted += gradient.square() / len(x)
    torch.testing.assert_close(found["0.weight"], wanted)


def test_the_mean_over_losses_is_the_fisher_information() -> None:
    """The squared product of the gradient and a change is, on average, the divergence that the change brings."""
    torch.manual_seed(0)
    scores, change = torch.randn(1, 4).double(), 1e-3 * torch.randn(1, 4).double()
    source = torch.Generator().manual_seed(0)
    squares = []
    for _ in range(20_000):
        given = scores.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(_random_loss([given], source), given)
        squares.append(float((gradient * change).sum()) ** 2)
    found = torch.tensor(squares).double()
    wanted = output_divergence([scores + change], [scores])
    # Within 4 standard errors of the mean but once in 16,000 runs.
    assert abs(float(found.mean()) - wanted) < 4 * float(found.std()) / len(found) ** 0.5 + 1e-3 * wanted


@torch.library.custom_op("secateur_test::no_backward", mutates_args=())
def no_backward(x: Tensor) -> Tensor:
    return torch.sin(x)


@no_backward.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class WithoutBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(no_backward(self.a(x)))))


def test_an_op_without_gradients_is_named_with_methods_that_need_none() -> None:
    network, x = WithoutBackward(), torch.randn(16, 3)
    with pytest.raises(sc.SecateurError, match=r"gradients .* not be computed: .*no_backward") as caught:
        sc.prune(network, x, {"params": "70%"})
    assert "pfp, ft" in str(caught.value.remedy) and "register_autograd" in str(caught.value.remedy)
    for method in ("pfp", "ft"):
        assert sc.prune(network, x, {"params": "70%"}, method=method).verification < 1e-5
