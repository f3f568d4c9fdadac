"""The loop equals a bare loop, records its epochs, and keeps the memory format and mode of the model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import secateur as sc
from secateur.errors import UsageError
from secateur.training.epochs import Diverged
from secateur.training.learner import half_precision
from secateur.training.loop import Epoch, Training, distributed, evaluate, learning_rate, train
from support.training_cases import Epochs, in_two_processes, network, same, weights

PLAIN = Training(epochs=3, lr=0.05, weight_decay=1e-3, milestones=(2,), memory_format="contiguous")


def bare_loop(model: nn.Module, settings: Training, optimizer: torch.optim.Optimizer) -> list[float]:
    """Train with nothing but forward, backward and step: the oracle."""
    losses = []
    for epoch in range(settings.epochs):
        total = samples = 0.0
        for number, (x, y) in enumerate(Epochs().epoch(epoch)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(settings, epoch, (number + 1) / 4)
            loss = cross_entropy(model(x), y, label_smoothing=settings.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            total, samples = total + loss.item() * len(x), samples + len(x)
        losses.append(total / samples)
    return losses


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nesterov": True, "clip_norm": 0.3, "label_smoothing": 0.1},
        {"warmup_epochs": 2, "momentum": 0.0},
        {"optimizer": "adam", "lr": 1e-3},
    ],
)
def test_training_equals_a_bare_loop(changes: dict[str, Any]) -> None:
    settings = Training(**{**PLAIN.__dict__, **changes})
    model, other = network(dropout=0.0), network(dropout=0.0)
    result = train(model, Epochs(), settings)
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "adam":
        optimizer = torch.optim.Adam(other.parameters(), weight_decay=1e-3)
    else:
        optimizer = torch.optim.SGD(
            other.parameters(), 1.0, settings.momentum, weight_decay=1e-3, nesterov=settings.nesterov
        )
    assert [epoch.loss for epoch in result.epochs] == pytest.approx(bare_loop(other, settings, optimizer), rel=1e-6)
    assert same(weights(model), weights(other))


def test_numpy_arrays_train_like_tensors() -> None:
    model, other = network(dropout=0.0), network(dropout=0.0)
    batches = list(Epochs().epoch(0))
    train(model, batches, PLAIN)
    train(other, [(x.numpy(), y.numpy()) for x, y in batches], PLAIN)
    assert same(weights(model), weights(other))


def test_a_data_set_is_shuffled_by_the_seed_into_batches() -> None:
    x, y = (torch.cat(parts) for parts in zip(*Epochs(count=20).epoch(0), strict=True))  # 160 samples
    seen: list[tuple[int, float]] = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        seen.append((len(batch[0]), float(batch[0].sum())))
        return cross_entropy(model(batch[0]), batch[1])

    train(network(), TensorDataset(x, y), PLAIN, step=step)
    first, again = seen[: len(seen) // PLAIN.epochs], list(seen)
    assert [size for size, _ in first] == [64, 64, 32] and seen[:3] != seen[3:6]  # another order in each epoch
    seen.clear()
    train(network(), TensorDataset(x, y), PLAIN, step=step)
    assert seen == again


def test_the_record_of_an_epoch() -> None:
    seen: list[Epoch] = []
    model = network()
    held_out = list(Epochs().epoch(99))
    result = train(model, Epochs(), PLAIN, validation=held_out, on_epoch=seen.append)
    assert tuple(seen) == result.epochs and result.last == seen[-1] and result.resumed == 0
    assert [epoch.epoch for epoch in seen] == [1, 2, 3]
    assert [epoch.lr for epoch in seen] == pytest.approx([0.05, 0.05, 0.005])
    assert seen[-1].validation == evaluate(model, held_out)
    assert all(epoch.top1 is not None and 0 <= epoch.top1 <= 1 for epoch in seen)
    assert all(epoch.images_per_second == pytest.approx(32 / epoch.seconds) for epoch in seen)
    assert result.seconds == pytest.approx(sum(epoch.seconds for epoch in seen))


def test_the_network_learns() -> None:
    result = train(network(dropout=0.0), Epochs(16), Training(epochs=12, lr=0.05))
    assert result.last and result.last.top1 and result.last.top1 > 0.8 and result.last.loss < result.epochs[0].loss / 2


def test_mode_and_gradients_are_restored() -> None:
    model = network().eval()
    model[0].train()
    train(model, Epochs(), PLAIN)
    assert [module.training for module in model] == [True, False, False, False, False, False]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_same_seed_gives_the_same_network() -> None:
    found = []
    for seed in (0, 0, 1):
        model = network()
        train(model, Epochs(), Training(epochs=2, seed=seed))
        found.append(weights(model))
        torch.rand(len(found))
    assert same(found[0], found[1]) and not same(found[0], found[2])


def test_frozen_parameters_are_not_changed() -> None:
    model = network()
    before = weights(model)
    model[0].requires_grad_(False)
    train(model, Epochs(), PLAIN)
    after = weights(model)
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["5.weight"], after["5.weight"])
    with pytest.raises(UsageError, match="all parameters are frozen"):
        train(model.requires_grad_(False), Epochs(), PLAIN)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(2, 3, 1)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"out": self.layer(a, b)}


def test_a_step_of_the_user() -> None:
    data = [{"a": torch.randn(8, 2), "b": torch.randn(8, 3), "target": torch.ones(8, 1)} for _ in range(5)]

    def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return mse_loss(model(batch["a"], batch["b"])["out"], batch["target"])

    result = train(TwoInputs(), data, Training(epochs=20, optimizer="adam", lr=0.01), step=step, validation=data)
    assert result.last and result.last.loss < result.epochs[0].loss and result.last.top1 is None
    assert result.last.validation and result.last.validation.samples == 40
    with pytest.raises(UsageError, match="does not depend"):
        train(TwoInputs(), data, PLAIN, step=lambda model, batch: step(model, batch).detach())


def test_regression() -> None:
    x = torch.randn(64, 3)
    model = nn.Linear(3, 1)
    train(model, [(x, x.sum(1))], Training(epochs=200, lr=0.1, loss="mse"))
    torch.testing.assert_close(model.weight.detach(), torch.ones(1, 3), atol=1e-3, rtol=0)


def test_no_epochs_do_not_change_the_network() -> None:
    model = network()
    before = weights(model)
    result = train(model, Epochs(), Training(epochs=0))
    assert result.epochs == () and result.last is None and same(weights(model), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_is_shuffled_reproducibly_in_each_epoch(workers: int) -> None:
    x = torch.arange(12.0).view(12, 1)

    def orders(generator: torch.Generator | None) -> list[list[float]]:
        seen: list[list[float]] = []

        def step(model: nn.Module, batch: list[Tensor]) -> Tensor:
            seen.append(batch[0].flatten().tolist())
            return model(batch[0]).mean()

        loader = DataLoader(TensorDataset(x), 12, shuffle=True, generator=generator, num_workers=workers)
        train(nn.Linear(1, 1), loader, Training(epochs=2, lr=1e-9), step=step)
        return seen

    plain = orders(None)
    assert plain[0] != plain[1] and plain == orders(None)
    if not workers:
        assert orders(torch.Generator().manual_seed(1)) == orders(torch.Generator().manual_seed(2))


def test_samplers_get_the_epoch() -> None:
    data = TensorDataset(torch.randn(8, 3), torch.zeros(8).long())
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    train(nn.Linear(3, 2), DataLoader(data, 2, sampler=sampler), Training(epochs=3))
    assert sampler.epoch == 2


def diverging(after: int) -> Iterator[tuple[Tensor, Tensor]]:
    for number in range(after + 3):
        yield torch.full((2, 3), math.inf if number == after else 1.0), torch.zeros(2).long()


@pytest.mark.parametrize("after", [0, 5, 70])
def test_an_infinite_loss_is_reported_and_nothing_is_changed(tmp_path: Path, after: int) -> None:
    model = nn.Linear(3, 2)
    before = weights(model)
    with pytest.raises(sc.SecateurError, match=f"epoch 1, batch {after + 1}, .*0.05.*before.*\n.*lr.*clip_norm"):
        train(model, diverging(after), PLAIN, state_path=tmp_path / "state", log=tmp_path / "log")
    assert list(tmp_path.iterdir()) == [] and same(weights(model), before)


def test_a_nan_loss_leaves_the_state_of_the_last_epoch(tmp_path: Path) -> None:
    class Breaking(Epochs):
        def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
            yield from ((x * math.nan if number == 1 else x, y) for x, y in super().epoch(number))

    model, good = network(), network()
    with pytest.raises(Diverged, match=r"epoch 2, batch 1, .* after epoch 1 again"):
        train(model, Breaking(), PLAIN, state_path=tmp_path / "state", log=tmp_path / "log")
    train(good, Epochs(), replace(PLAIN, epochs=1))
    assert same(weights(model), weights(good))
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert train(network(), Epochs(), PLAIN, state_path=tmp_path / "state").resumed == 1


def test_a_learning_rate_that_diverges_is_reported_with_its_value() -> None:
    model, x = nn.Linear(3, 1), torch.randn(64, 3)
    before = weights(model)
    with pytest.raises(
        sc.SecateurError, match=r"NaN or infinite in epoch .*, at a learning rate of 50; the weights are"
    ):
        train(
            model,
            [(x, x.sum(1))] * 50,
            Training(epochs=9, lr=50.0, schedule="steps", loss="mse", memory_format="contiguous"),
        )
    assert all(tensor.isfinite().all() for tensor in weights(model).values()) and same(weights(model), before)


def test_a_loss_that_grows_is_reported_before_it_is_infinite() -> None:
    model, x = nn.Linear(3, 1), torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    settings = Training(epochs=60, lr=1.5, momentum=0.0, schedule="steps", loss="mse")
    with pytest.raises(Diverged, match=r"has grown from .* to .* in epoch \d+, at a learning rate of 1.5; .* again"):
        train(model, [(x, x.sum(1))], settings)
    assert mse_loss(model(x)[:, 0], x.sum(1)) < 1e4


def test_invalid_data_and_settings_are_refused() -> None:
    with pytest.raises(sc.SecateurError, match="not one batch"):
        train(network(), [], PLAIN)
    with pytest.raises(sc.SecateurError, match="a generator is exhausted"):
        train(network(), Epochs().epoch(0), PLAIN)
    with pytest.raises(sc.SecateurError, match="a batch is empty"):
        train(nn.Linear(3, 2), [(torch.zeros(0, 3), torch.zeros(0).long())], PLAIN)
    with pytest.raises(UsageError, match="expected an iterable of batches, got a tuple"):
        train(network(), next(Epochs().epoch(0)), PLAIN)
    with pytest.raises(UsageError, match="warmup_epochs"):
        train(network(), Epochs().epoch(0), Training(epochs=1, warmup_epochs=1))
    with pytest.raises(UsageError, match="sync_batchnorm works on GPUs"):
        train(network(), Epochs(), Training(epochs=1, sync_batchnorm=True))


def test_half_precision_is_used_on_gpus_or_on_request() -> None:
    cpu = torch.device("cpu")
    assert half_precision(Training(epochs=1), cpu) is None
    assert half_precision(Training(epochs=1, amp="bf16"), cpu) == torch.bfloat16
    types = []

    class Noting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            types.append(out.dtype)
            return out

    for amp in ("auto", "off", "bf16", "fp16"):
        train(Noting(3, 2), [(torch.randn(4, 3), torch.zeros(4).long())], Training(epochs=1, lr=0.1, amp=amp))
    assert types == [torch.float32, torch.float32, torch.bfloat16, torch.float16]


def test_compilation_is_used_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    model = network()
    train(model, Epochs(), Training(epochs=1))
    assert compiled == []
    train(model, Epochs(), Training(epochs=1, compile=True))
    assert compiled == [model]


def test_images_are_channels_last_during_training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 8))
    seen = []
    model[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].stride()))
    before = {name: tensor.stride() for name, tensor in weights(model).items()}
    train(model, Epochs(1, shape=(3, 6, 6)), Training(epochs=1))
    train(model, Epochs(1, shape=(3, 6, 6)), PLAIN)
    assert seen[-4][1] == 1 and seen[-1][1] == 36
    assert {name: tensor.stride() for name, tensor in weights(model).items()} == before


def test_the_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    train(network(), Epochs(), PLAIN, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "epoch 3/3" in err and "images/s" in err
    train(network(), Epochs(), PLAIN)
    assert capsys.readouterr() == ("", "")


def test_the_log_has_a_line_per_epoch(tmp_path: Path) -> None:
    result = train(network(), Epochs(), PLAIN, validation=list(Epochs().epoch(9)), log=tmp_path / "log.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [Epoch.of(line) for line in lines] == list(result.epochs)


def _train_part(state: Path | None, epochs: tuple[int, ...]) -> dict[str, Any]:
    """Train the same network on the part of this process, and return the results."""
    with distributed() as process:
        data = Epochs(rank=process.rank, world=process.world)
        for count in epochs:
            model = network(norm=False, dropout=0.0)
            settings = Training(epochs=count, lr=0.05, schedule="steps")
            result = train(
                model, data, settings, validation=data, state_path=state, log=state and state.with_suffix(".l")
            )
    validation = result.epochs[-1].validation
    return {
        "losses": [epoch.loss for epoch in result.epochs],
        "top1": [epoch.top1 for epoch in result.epochs],
        "validation": validation and validation.__dict__,
        "resumed": result.resumed,
        "weights": weights(model),
    }


def test_two_processes_equal_one(tmp_path: Path) -> None:
    first, second = in_two_processes(_train_part, tmp_path, tmp_path / "state", (2, 4))
    alone = _train_part(None, (4,))
    assert same(first["weights"], second["weights"]) and first["resumed"] == 2
    assert first["losses"] == second["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert first["top1"] == alone["top1"]
    assert first["validation"] == pytest.approx(alone["validation"], abs=1e-5)
    for name, tensor in alone["weights"].items():
        torch.testing.assert_close(first["weights"][name], tensor, atol=1e-5, rtol=1e-4)
    assert len((tmp_path / "state.l").read_text().splitlines()) == 4


def _train_norms() -> dict[str, Tensor]:
    model = network()
    with distributed() as process:
        train(model, Epochs(rank=process.rank, world=process.world), PLAIN)
    return weights(model)


def test_processes_end_with_the_same_batch_norm_statistics(tmp_path: Path) -> None:
    assert same(*in_two_processes(_train_norms, tmp_path))


def _uneven() -> str:
    with distributed() as process:
        try:
            train(network(), Epochs(3 + process.rank), PLAIN)
        except sc.SecateurError as error:
            return str(error)
    return "no error"


def test_processes_with_different_numbers_of_batches_are_refused(tmp_path: Path) -> None:
    assert all("differ in batches per epoch: [3, 4]" in text for text in in_two_processes(_uneven, tmp_path))


def test_training_stops_when_on_epoch_returns_true(tmp_path: Path) -> None:
    """Only True stops it: a callback may return anything else. Started again, the run continues bit for bit."""
    settings, state = Training(epochs=5, lr=0.1), tmp_path / "state"
    model, whole = network(), network()
    seen: list[int] = []

    def stop(epoch: Epoch) -> object:
        seen.append(epoch.epoch)
        return epoch.epoch == 2 or "not True"

    result = train(model, Epochs(), settings, state_path=state, on_epoch=stop)
    assert seen == [1, 2] and [epoch.epoch for epoch in result.epochs] == [1, 2]
    assert train(model, Epochs(), settings, state_path=state).resumed == 2
    train(whole, Epochs(), settings)
    assert same(weights(model), weights(whole))


def _stop_in_first() -> int:
    with distributed() as process:
        batches = Epochs(rank=process.rank, world=process.world)
        result = train(network(norm=False), batches, Training(epochs=4), on_epoch=lambda _: process.first)
    return len(result.epochs)


def test_the_first_process_stops_all(tmp_path: Path) -> None:
    assert in_two_processes(_stop_in_first, tmp_path) == [1, 1]


@pytest.mark.parametrize("classes", [True, False])
def test_patience_stops_after_epochs_without_a_better_validation(tmp_path: Path, classes: bool) -> None:
    settings = Training(epochs=40, lr=0.3, patience=3, loss="cross-entropy" if classes else "mse")
    x = torch.randn(16, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    y = (x.flatten(1)[:, 0] > 0).long() if classes else torch.zeros(16, 8)
    held_out, model, state = [(x, y)], network(), tmp_path / "state"
    batches: Any = Epochs() if classes else [(x, torch.ones(16, 8))]
    result = train(model, batches, settings, validation=held_out, state_path=state)
    values = [one.validation.top1 if classes else -one.validation.loss for one in result.epochs if one.validation]
    # the slow and obvious way: after which epoch have three in a row not been better than all before?
    best, since, expected = -math.inf, 0, 0
    for value in values:
        best, since = (value, 0) if value > best else (best, since + 1)
        expected += 1
        if since == 3:
            break
    assert len(values) == expected < 40
    before = weights(model)
    again = train(network(), batches, settings, validation=held_out, state_path=state)
    assert again.resumed == len(again.epochs) == len(values)  # it has stopped for good
    one_by_one = network()
    for epochs in range(1, len(values) + 1):  # killed after every epoch
        train(
            one_by_one,
            batches,
            settings,
            validation=held_out,
            state_path=tmp_path / "other",
            on_epoch=lambda epoch, last=epochs: epoch.epoch == last,
        )
    assert same(weights(one_by_one), before)


def test_patience_without_validation_is_refused() -> None:
    with pytest.raises(UsageError, match="patience needs validation"):
        train(network(), Epochs(), Training(epochs=3, patience=2))
    with pytest.raises(UsageError, match="patience is 0"):
        Training(epochs=3, patience=0)
