"""Moving averages equal a slow loop, and the statistics of batch norms those of all samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from secateur.training.averages import Average, estimate_norms
from secateur.training.loop import Epoch, Training, evaluate, train
from support.training_cases import Epochs, network, same, weights


def test_the_average_equals_a_slow_loop() -> None:
    model = nn.Linear(2, 1)
    history = [weights(model)]
    average = Average(model, decay=0.8)
    for _ in range(30):
        with torch.no_grad():
            model.weight.normal_()
            model.bias.normal_()
        average.update()
        history.append(weights(model))
    for name in ("weight", "bias"):
        wanted = history[0][name].double()
        for step, values in enumerate(history[1:]):
            decay = min(0.8, (1 + step) / (10 + step))
            wanted = decay * wanted + (1 - decay) * values[name].double()
        torch.testing.assert_close(average.values[name].double(), wanted, rtol=1e-5, atol=1e-6)


def test_the_average_is_in_place_for_a_moment() -> None:
    model = network()
    average = Average(model, decay=0.5)
    start = weights(model)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(1)
    moved = weights(model)
    with pytest.raises(KeyError), average.in_place():
        assert same(weights(model), start)
        raise KeyError
    assert same(weights(model), moved)


def test_training_returns_the_average_and_validates_it() -> None:
    settings = Training(epochs=3, lr=0.1, ema=0.9)
    model, held_out = network(dropout=0.0), list(Epochs().epoch(9))
    seen: list[Epoch] = []
    inside = []

    def look(epoch: Epoch) -> None:
        seen.append(epoch)
        inside.append(evaluate(model, held_out))

    train(model, Epochs(), settings, validation=held_out, on_epoch=look)
    assert [epoch.validation for epoch in seen] == inside
    after = evaluate(model, held_out)  # in the network's own memory format again, so up to rounding
    assert after.loss == pytest.approx(inside[-1].loss, rel=1e-6) and after.top1 == inside[-1].top1
    plain = network(dropout=0.0)
    train(plain, Epochs(), Training(epochs=3, lr=0.1))
    assert not same(weights(plain), weights(model))


def test_norms_are_estimated_on_all_samples() -> None:
    """The mean over equal batches is that of all samples; the variance is a mean over batches, as in torch."""
    model = network(dropout=0.5)
    batches = list(Epochs(count=6).epoch(0))
    with torch.no_grad():
        maps = [model[0](x) for x, _ in batches]
    model[1].momentum = 0.3
    estimate_norms(model, batches, lambda batch: model(batch[0]))
    torch.testing.assert_close(model[1].running_mean, torch.cat(maps).mean((0, 2, 3)))
    torch.testing.assert_close(model[1].running_var, torch.stack([m.var((0, 2, 3)) for m in maps]).mean(0))
    assert model[1].momentum == 0.3 and all(module.training for module in model.modules())


def test_norms_are_kept_without_batches_and_without_norms() -> None:
    model = network()
    before = weights(model)
    estimate_norms(model, [], print)
    assert same(weights(model), before)
    estimate_norms(network(norm=False), Epochs().epoch(0), print)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_norms_of_the_result_are_estimated_again(tmp_path: Path, ema: float | None) -> None:
    """The average has no statistics of its own: they are estimated on its own activations."""
    settings = Training(epochs=2, lr=0.1, norm_batches=3, ema=ema, memory_format="contiguous")
    model = network(dropout=0.0)
    train(model, Epochs(), settings, state_path=tmp_path / "state")
    with torch.no_grad():
        maps = [model[0](x) for x, _ in list(Epochs().epoch(2))[:3]]
    torch.testing.assert_close(model[1].running_mean, torch.cat(maps).mean((0, 2, 3)))
    again = network(dropout=0.0)
    assert train(again, Epochs(), settings, state_path=tmp_path / "state").resumed == 2
    assert same(weights(again), weights(model))
