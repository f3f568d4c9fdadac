"""A teacher: its losses equal slow formulas, it is left alone, and wrong teachers are refused."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import secateur as sc
from secateur.errors import UsageError
from secateur.training.distillation import relative_squared_error, softened_kl
from secateur.training.loop import Training, distributed, train
from support.training_cases import Epochs, in_two_processes, network, same, weights

SETTINGS = Training(epochs=2, lr=0.05, memory_format="contiguous", weight_decay=0.0, momentum=0.0)


def student(seed: int = 1) -> nn.Sequential:
    """Return a network with other weights than the teacher."""
    model = network(dropout=0.0)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def pruned() -> tuple[nn.Module, nn.Module, sc.Plan]:
    """Return a network, a smaller one cut from it, and the plan; the channels before the last layer are cut."""
    model = network(dropout=0.0).eval()
    plan = sc.Plan.keeping(sc.trace(model, torch.zeros(1, 1, 6, 6)), {"0": [0, 2]})
    return sc.cut(model, plan), model, plan


def slow_kl(new: Tensor, old: Tensor, temperature: float) -> float:
    total = 0.0
    for mine, theirs in zip(new.tolist(), old.tolist(), strict=True):
        ours, wanted = ([math.exp(v / temperature) for v in row] for row in (mine, theirs))
        for p, q in zip(ours, wanted, strict=True):
            p, q = p / sum(ours), q / sum(wanted)
            total += q * math.log(q / p)
    return total / len(new) * temperature**2


def test_losses_equal_slow_formulas() -> None:
    new, old = torch.randn(5, 4), torch.randn(5, 4)
    for temperature in (1.0, 4.0):
        assert float(softened_kl(new, old, temperature)) == pytest.approx(slow_kl(new, old, temperature), rel=1e-4)
    squares = sum((a - b) ** 2 for a, b in zip(new.flatten().tolist(), old.flatten().tolist(), strict=True))
    wanted = squares / sum(b * b for b in old.flatten().tolist())
    assert float(relative_squared_error(new, old)) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("labelled", [True, False])
def test_training_equals_a_bare_loop(labelled: bool) -> None:
    settings = replace(SETTINGS, schedule="steps", temperature=2.0, teacher_weight=0.7, feature_weight=0.3)
    model, other, teacher = student(), student(), network().eval()
    batches = [list(Epochs().epoch(0)), [x for x, _ in Epochs().epoch(0)]][not labelled]
    result = train(model, batches, settings, teacher=teacher)
    optimizer, losses = torch.optim.SGD(other.parameters(), 0.05), []
    for _ in range(2):
        total = 0.0
        for x, y in Epochs().epoch(0):
            with torch.no_grad():
                wanted = teacher(x)
                features = teacher[:5](x)
            mine = other[:5](x)
            scores = other[5](mine)
            kl = softened_kl(scores, wanted, 2.0)
            loss = (0.7 * kl + 0.3 * cross_entropy(scores, y)) if labelled else kl
            loss = loss + 0.3 * relative_squared_error(mine, features)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / 4)
    assert [epoch.loss for epoch in result.epochs] == pytest.approx(losses, rel=1e-5)
    for name, tensor in weights(other).items():
        torch.testing.assert_close(weights(model)[name], tensor, rtol=1e-5, atol=1e-6)
    names = (
        "KL divergence from the teacher, temperature 2",
        "relative squared error of the features that enter 5.weight",
    )
    assert result.losses == (("cross-entropy", *names) if labelled else names) and result.notes == ()


class Watched(nn.Module):
    """A network that counts its calls, and notes its mode and whether gradients are on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.calls: list[tuple[int, bool, bool]] = []

    def forward(self, *args: Any) -> Any:
        self.calls.append((len(args[0]), self.training, torch.is_grad_enabled()))
        return self.model(*args)


def test_the_teacher_runs_once_per_batch_and_is_left_alone() -> None:
    teacher = Watched(network()).train()
    teacher.model[1].eval()
    before, modes = weights(teacher), [module.training for module in teacher.modules()]
    train(student(), Epochs(), SETTINGS, teacher=teacher)
    assert teacher.calls == [(8, False, False)] * 8
    assert same(weights(teacher), before) and [module.training for module in teacher.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in teacher.parameters())


def test_the_teacher_is_left_alone_after_an_error() -> None:
    teacher = network().train()
    with pytest.raises(sc.SecateurError, match="NaN or infinite"):
        train(student(), [torch.full((2, 1, 6, 6), 1e38)], SETTINGS, teacher=teacher)
    assert all(module.training for module in teacher.modules())


def test_images_are_channels_last_for_both_if_both_take_them() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(2, 4, 3), nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.conv(x).view(-1, 64))

    data = Epochs(shape=(2, 6, 6))
    body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 8))
    for teacher, last in ((copy.deepcopy(body), True), (Viewing(), False)):
        strides: list[int] = []
        teacher.register_forward_pre_hook(lambda module, args, s=strides: s.append(args[0].stride()[1]))
        before = [tensor.stride() for tensor in weights(teacher).values()]
        train(copy.deepcopy(body), data, Training(epochs=1), teacher=teacher)
        assert {stride == 1 for stride in strides[1:]} == {last}
        assert [tensor.stride() for tensor in weights(teacher).values()] == before


def test_features_leave_out_channels_that_were_cut() -> None:
    """A network that is a masked original has no loss at all: its features are those of the kept channels."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    with torch.no_grad():
        model[3].weight.view(3, 4, 16)[:, 1::2] = 0.0  # the channels that go have no effect
    plan = sc.Plan.keeping(sc.trace(model, torch.zeros(1, 1, 6, 6)), {"0": [0, 2]})
    small = sc.cut(model, plan)
    data = [torch.randn(8, 1, 6, 6)]
    result = train(small, data, replace(SETTINGS, epochs=1), teacher=model, plan=plan)
    assert result.last and result.last.loss == pytest.approx(0, abs=1e-6)
    assert result.losses[-1].endswith("3.weight") and result.notes == ()
    result = train(small, data, replace(SETTINGS, epochs=1), teacher=model)
    assert result.notes == (
        "features are not compared with the teacher's: channels were cut before 3.weight, and no plan says which "
        "(pass plan=)",
    )


def test_a_pruned_network_learns_from_its_original_without_labels() -> None:
    small, model, plan = pruned()
    data = [x for x, _ in Epochs(16).epoch(0)]
    fresh = torch.cat([x for x, _ in Epochs().epoch(5)])
    before = mse_loss(small.eval()(fresh), model(fresh))
    settings = Training(epochs=20, temperature=1.0)
    result = train(small, data, settings, teacher=model, plan=plan)
    assert result.last and result.last.top1 is None
    assert result.last.loss < result.epochs[0].loss and mse_loss(small.eval()(fresh), model(fresh)) < before


class Several(nn.Module):
    """Two inputs, and a dict of class scores, a dense map and an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scores = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3, 4)

    def forward(self, a: Tensor, *, b: Tensor) -> dict[str, Tensor]:
        dense = self.conv(a + b)
        return {"scores": self.scores(dense.mean((2, 3))), "map": dense, "count": torch.tensor(3)}


def test_several_outputs_and_the_step_of_the_user() -> None:
    data = [{"a": torch.randn(4, 1, 5, 5), "b": torch.randn(4, 1, 5, 5), "y": torch.arange(4)} for _ in range(3)]
    calls = []

    def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        calls.append(len(batch["a"]))
        return cross_entropy(model(batch["a"], b=batch["b"])["scores"], batch["y"])

    result = train(Several(), data, SETTINGS, step=step, teacher=Several(), validation=data)
    assert result.losses == (
        "the loss of the step",
        "KL divergence from the teacher, temperature 4",
        "relative squared error from the teacher",
        "relative squared error of the features that enter conv.weight, scores.weight",
    )
    assert len(calls) == 12  # of which the half are validation
    with pytest.raises(UsageError, match="has not called the network"):
        train(Several(), data, SETTINGS, step=lambda model, batch: model.conv(batch["a"]).mean(), teacher=Several())


@pytest.mark.parametrize("labelled", [True, False])
def test_a_regression_is_compared_by_squared_errors(labelled: bool) -> None:
    """With labels in their units; two values per sample are not mistaken for class scores."""
    x = torch.randn(32, 3)
    teacher, model = nn.Linear(3, 2), nn.Linear(3, 2)
    data: Any = [(x, torch.zeros(32, 2))] if labelled else [(x,)]
    settings = Training(epochs=300, lr=0.1, loss="mse", teacher_weight=1.0, weight_decay=0.0)
    result = train(model, data, settings, teacher=teacher)
    torch.testing.assert_close(model.weight, teacher.weight, atol=1e-2, rtol=0)
    assert result.losses[:-1] == (
        ("mean squared error", "mean squared error from the teacher")
        if labelled
        else ("relative squared error from the teacher",)
    )


class Auxiliary(nn.Module):
    """A network with a second output in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        return (self.first(x), self.second(x)) if self.training else self.first(x)


def test_outputs_that_exist_in_training_only_are_not_compared() -> None:
    x = torch.randn(4, 3)
    result = train(Auxiliary(), [x], SETTINGS, teacher=Auxiliary())
    assert result.notes == ("1 more outputs, which the network has only in training, are not compared",)


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 5)), r"returns \(8, 5\) where the network returns \(8, 8\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(35, 8)), "could not run on a batch"),
        (nn.Identity(), r"returns \(8, 1, 6, 6\)"),
        ("zoo:resnet20", "expected a torch.nn.Module"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(teacher: Any, message: str) -> None:
    model = student()
    before = weights(model)
    with pytest.raises(sc.SecateurError, match=message):
        train(model, Epochs(), SETTINGS, teacher=teacher)
    named = {name: value for name, value in weights(model).items() if not name.startswith("1.")}
    assert all(torch.equal(before[name], value) for name, value in named.items())


def test_a_teacher_with_nan_is_refused() -> None:
    teacher = network()
    with torch.no_grad():
        teacher[5].bias[0] = math.nan
    with pytest.raises(sc.SecateurError, match="teacher: 8 of 64 values of its output are NaN"):
        train(student(), Epochs(), SETTINGS, teacher=teacher)


def test_a_teacher_that_would_change_is_refused() -> None:
    model = student()
    with pytest.raises(sc.SecateurError, match=r"shares 0.weight"):
        train(model, Epochs(), SETTINGS, teacher=model)
    with pytest.raises(sc.SecateurError, match=r"shares 1.weight"):
        train(model, Epochs(), SETTINGS, teacher=nn.Sequential(nn.Identity(), model[5]))


def test_labels_are_needed_without_a_teacher() -> None:
    with pytest.raises(UsageError, match=r"expected a batch \(x, y\), got a Tensor without labels"):
        train(student(), [torch.randn(4, 1, 6, 6)], SETTINGS)


def test_a_run_resumes_bit_for_bit_with_all_of_it(tmp_path: Path) -> None:
    settings = Training(epochs=4, ema=0.9, label_smoothing=0.1, clip_norm=1.0, norm_batches=2, nesterov=True)
    teacher, whole, model = network(), student(), student()
    wanted = train(whole, Epochs(), settings, teacher=teacher)
    for last in (1, 3, 4):
        found = train(
            model,
            Epochs(),
            settings,
            teacher=teacher,
            state_path=tmp_path / "state",
            on_epoch=lambda epoch, last=last: epoch.epoch == last,
        )
    assert [epoch.loss for epoch in found.epochs] == [epoch.loss for epoch in wanted.epochs]
    assert same(weights(model), weights(whole))
    again = student()
    assert train(again, Epochs(), settings, teacher=teacher, state_path=tmp_path / "state").resumed == 4
    assert same(weights(again), weights(whole))
    with pytest.raises(sc.SecateurError, match="teacher was"):
        train(student(), Epochs(), settings, teacher=student(5), state_path=tmp_path / "state")
    with pytest.raises(sc.SecateurError, match="epochs was 4 and is 5"):
        train(student(), Epochs(), replace(settings, epochs=5), teacher=teacher, state_path=tmp_path / "state")


def _taught(world: int | None = None) -> dict[str, Any]:
    with distributed() as process:
        model = student()
        model[1] = nn.Identity()
        teacher = copy.deepcopy(model)
        with torch.no_grad():
            teacher[5].weight.mul_(2)
        data = Epochs(rank=process.rank, world=process.world)
        result = train(model, data, Training(epochs=2, ema=0.9), teacher=teacher)
    return {"weights": weights(model), "losses": [epoch.loss for epoch in result.epochs], "names": result.losses}


def test_two_processes_equal_one(tmp_path: Path) -> None:
    """The features' loss is relative to the part of each process, so the two agree to the first order only."""
    first, second = in_two_processes(_taught, tmp_path)
    alone = _taught()
    assert same(first["weights"], second["weights"]) and first["losses"] == second["losses"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=0.05) and first["names"] == alone["names"]


def test_a_teacher_with_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model: model)
    result = train(student(), Epochs(), replace(SETTINGS, compile=True), teacher=network())
    assert result.notes == ("features are not compared with the teacher's: compile is set",)
