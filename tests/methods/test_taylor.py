"""Taylor: the derivative of the loss when a filter is scaled, squared; the network stays exactly as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.errors import SecateurError, UsageError
from secateur.methods.taylor import Taylor
from support.cases import Net
from support.evidences import IMAGES, PRODUCERS, case_evidence, evidence_of

STEP = 1e-5


def classifier() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 7), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(7, 4)).double().eval()


CLASSES = torch.tensor([0, 3, 1, 2, 2, 0])


def scaled(network: Any, name: str, group: str, unit: int, factor: float) -> None:
    with torch.no_grad():
        if name == "weight_normed":  # its weight is computed: scale what scales it
            network.b.parametrizations.weight.original0[unit] *= factor
        else:
            for part in PRODUCERS[name][group](network, unit):
                part.mul_(factor)


def by_differences(network: Any, name: str, group: str, unit: int, loss: Callable[[], float]) -> float:
    """d loss / d scale of a unit's filters at 1."""
    values = []
    for factor in (1 + STEP, 1 - STEP):
        scaled(network, name, group, unit, factor)
        values.append(loss())
        scaled(network, name, group, unit, 1 / factor)
    return (values[0] - values[1]) / (2 * STEP)


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("name", PRODUCERS)
def test_scores_are_the_squared_derivatives_by_scale(name: str, classes: bool) -> None:
    network, evidence = case_evidence(name)
    call = evidence.batches[0][0]
    with torch.no_grad():
        shape = network(*call).shape
    generator = torch.Generator().manual_seed(5)
    if classes:
        labels = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    else:
        labels = torch.randn(shape, generator=generator, dtype=torch.float64)

    def loss() -> float:
        with torch.no_grad():
            out = network(*call)
            return float(F.cross_entropy(out, labels) if classes else (out - labels).square().mean())

    found = Taylor().scores(replace(evidence, labels=[labels]))
    assert found.keys() == PRODUCERS[name].keys()
    for group, scores in found.items():
        slopes = [abs(by_differences(network, name, group, unit, loss)) for unit in range(len(scores))]
        rounding = 1e-14 * max(1.0, loss()) / STEP  # what the difference of two losses cannot tell
        assert scores.sqrt().tolist() == pytest.approx(slopes, rel=1e-6, abs=rounding)


def slow(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Of the first layer's filters: gradient times weight, by backward."""
    copy = classifier()
    copy.load_state_dict(network.state_dict())
    F.cross_entropy(copy(x), y).backward()
    return torch.stack([(g * w).sum() for g, w in zip(copy[0].weight.grad, copy[0].weight.detach(), strict=True)])


@pytest.mark.parametrize("batch", [1, 2, 4, 6, 100])
def test_squares_are_averaged_over_batches_by_their_samples(batch: int) -> None:
    network = classifier()
    evidence = evidence_of(network, labels=[CLASSES])
    sizes = [len(part) for part in CLASSES.split(batch)]
    parts = [slow(network, x, y).square() for x, y in zip(IMAGES.split(batch), CLASSES.split(batch), strict=True)]
    wanted = sum(size * part for size, part in zip(sizes, parts, strict=True)) / 6
    torch.testing.assert_close(Taylor(batch=batch).scores(evidence)["0"], wanted, rtol=1e-10, atol=0)


def test_only_units_left_are_scored_in_their_order() -> None:
    network, kept = classifier(), [1, 4, 5]
    evidence = evidence_of(network, labels=[CLASSES], kept={"0": kept})
    torch.testing.assert_close(
        Taylor().scores(evidence)["0"], slow(evidence.network, IMAGES, CLASSES).square()[kept], rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_network_is_left_as_it_was(guard: Any) -> None:
    network = classifier().train()
    evidence = evidence_of(network, labels=[CLASSES])
    wanted = Taylor().scores(evidence)
    for number, parameter in enumerate(network.parameters()):
        parameter.requires_grad_(number % 2 == 1)
        parameter.grad = torch.full_like(parameter, 2.0) if number % 3 == 0 else None
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    gradients = [parameter.grad for parameter in network.parameters()]
    with guard():
        found = Taylor().scores(evidence)
    assert all(torch.equal(found[group], wanted[group]) for group in wanted)
    assert not any(scores.requires_grad for scores in found.values())
    assert [p.requires_grad for p in network.parameters()] == [n % 2 == 1 for n in range(8)]
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        assert parameter.grad is gradient and (gradient is None or (gradient == 2).all())
    assert network.training and all(torch.equal(before[name], t) for name, t in network.state_dict().items())


def test_flags_come_back_after_an_error_too() -> None:
    network = classifier().requires_grad_(False)
    with pytest.raises(UsageError):
        Taylor().scores(evidence_of(network, labels=[CLASSES + 100]))
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_targets_may_lack_the_axis_of_one() -> None:
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x, y = torch.randn(4, 3).double(), torch.randn(4).double()
    one, other = (Taylor().scores(evidence_of(network, x, labels=[labels]))["0"] for labels in (y, y[:, None]))
    assert torch.equal(one, other)


def test_a_filter_that_gets_no_gradient_is_left_out() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        return m.c(F.relu(m.b(F.relu(m.a(x).detach()))))

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 6, 1), c=nn.Conv2d(6, 5, 1)).double()
    evidence = evidence_of(network, labels=[torch.randn(6, 5, 8, 8).double()])
    assert {group.name for group in evidence.graph.prunable} == {"a", "b"}
    assert Taylor().scores(evidence).keys() == {"b"}


@pytest.mark.parametrize("run", [lambda m, x: m.b(F.relu(m.a(x))).detach(), lambda m, x: m.b(m.a(x).detach())])
def test_a_loss_without_any_gradient_is_refused(run: Any) -> None:
    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1)).double()
    with pytest.raises(SecateurError, match="no filter gets a gradient"):
        Taylor().scores(evidence_of(network, labels=[torch.randn(6, 5, 8, 8).double()]))


def test_labels_that_do_not_fit_are_refused() -> None:
    evidence = evidence_of(classifier())
    wrong: list[tuple[list[Tensor] | None, str]] = [
        (None, r"needs labels(.|\n)*remedy: give pairs: data=\[\(inputs, labels\)"),
        ([], "labels for 0 of 1 batches"),
        ([CLASSES[:5]], r"6 samples has labels of shape \(5,\)"),
        ([torch.tensor(3)], r"6 samples has labels of shape \(\)"),
        ([CLASSES[:, None]], r"has the shape \(6, 4\), the labels have \(6, 1\)"),
        ([CLASSES + 1], "class indices from 0 to 3"),
        ([CLASSES - 1], "class indices from 0 to 3"),
        ([CLASSES.double()], "numbers to predict in the shape"),
    ]
    for labels, text in wrong:
        with pytest.raises(UsageError, match=text):
            Taylor().scores(replace(evidence, labels=labels))
    with pytest.raises(SecateurError, match="there is no data"):
        Taylor().scores(replace(evidence, batches=[], labels=[]))
    with pytest.raises(UsageError, match="batch is 0"):
        Taylor(batch=0)


def test_outputs_without_a_known_loss_and_values_that_are_no_numbers_are_refused() -> None:
    _, evidence = case_evidence("two_inputs_dict_output")
    with pytest.raises(UsageError, match="returns a dict instead of a tensor"):
        Taylor().scores(replace(evidence, labels=[torch.tensor([0, 1])]))
    with pytest.raises(SecateurError, match="0: 6 of 6 values of its scores are NaN"):
        evidence = evidence_of(classifier(), labels=[CLASSES])
        Taylor().scores(replace(evidence, batches=[((torch.full_like(IMAGES, torch.nan),), {})]))


def test_it_reports_its_settings() -> None:
    assert Taylor(batch=8).settings() == {"batch": 8}
