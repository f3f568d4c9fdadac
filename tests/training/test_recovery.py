"""Recovery on a few samples: nearer to the original on fresh samples, never worse on held-out ones, nothing lost."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.errors import UsageError
from secateur.network.divergence import output_divergence
from secateur.training import recovery
from support.training_cases import same, weights

LENGTH = 24


def original() -> nn.Sequential:
    """Return a small network with norms, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 16, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 5),
        )
        for _ in range(3):
            model(torch.randn(32, 1, 16, 16))
        model[7].weight.data.mul_(20)
    return model.eval()


def images(count: int = 96, seed: int = 0) -> Tensor:
    return torch.randn(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


def pruned() -> tuple[nn.Module, nn.Module, sc.Plan]:
    model = original()
    plan = sc.random_plan(sc.trace(model, images(1)), kept=0.6, seed=1)
    return sc.cut(model, plan), model, plan


def divergence(small: nn.Module, model: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return output_divergence([small.eval()(x)], [model(x)])


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, nn.Module, sc.Plan]:
    return pruned()


def test_it_comes_nearer_on_fresh_samples(case: Any) -> None:
    small, model, plan = case
    before, theirs, random = weights(small), weights(model), torch.get_rng_state()
    small.train()
    found = sc.recover(small, model, list(images().split(20)), plan=plan, steps=60, lr=3e-3)
    assert all(module.training for module in small.modules()) and not model.training
    assert same(weights(small), before) and same(weights(model), theirs) and torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in found.model.modules()] == [True] * 9
    fresh = images(64, seed=9)
    assert divergence(found.model, model, fresh) < 0.8 * divergence(small, model, fresh)
    assert found.after < found.before and 0 < found.steps <= 60 and (found.samples, found.held_out) == (72, 24)
    assert found.losses == (
        "KL divergence from the teacher, temperature 4",
        "relative squared error of the features that enter 7.weight",
    )
    assert f"{found.steps} steps on 72 samples without labels" in found.summary() and found.notes == ()
    assert torch.equal(weights(found.model)["1.running_var"], before["1.running_var"])


def test_the_result_is_reproducible(case: Any) -> None:
    small, model, plan = case
    found = [sc.recover(small, model, images(), plan=plan, steps=8, seed=seed) for seed in (0, 0, 1)]
    assert same(weights(found[0].model), weights(found[1].model))
    assert not same(weights(found[0].model), weights(found[2].model))


def test_learning_rates_follow_the_size_of_the_weights(case: Any) -> None:
    """The same network written with smaller filters and larger later weights is recovered to the same outputs."""
    _, model, plan = case
    scaled = copy.deepcopy(model)
    for part, factor in ((scaled[3], 1 / 16), (scaled[7], 16)):  # powers of two: without rounding
        part.weight.data.mul_(factor)
    scaled[3].bias.data.mul_(1 / 16)
    found = [
        sc.recover(sc.cut(one, plan), one, list(images().split(24)), plan=plan, steps=30).model.eval()
        for one in (model, scaled)
    ]
    outputs = [network(images(64, seed=9)).detach() for network in found]
    assert torch.allclose(*outputs, rtol=1e-3, atol=1e-3 * float(outputs[0].abs().max()))
    assert not torch.allclose(outputs[0], sc.cut(model, plan).eval()(images(64, seed=9)), rtol=1e-2)


def test_it_is_never_worse_by_its_measure(case: Any) -> None:
    small, model, plan = case
    before = weights(small)
    found = sc.recover(small, model, images(), plan=plan, steps=10, lr=5.0)
    assert found.steps == 0 and found.after == found.before and same(weights(found.model), before)
    assert found.notes == (
        "no step brought the output nearer to the original's on held-out samples: the network is as before",
    )


def test_samples_that_pruning_has_not_used_are_held_out() -> None:
    """As many as a quarter of all; the others take part in the steps."""
    model, x = original(), images(200)
    res = sc.prune(model, x[:100], budget={"macs": "60%"})
    found = sc.recover(res.model, model, x, plan=res.plan, steps=5, augment="none")
    assert (found.samples, found.held_out) == (150, 50) and recovery.SEEN not in found.notes
    assert found.before == pytest.approx(divergence(res.model, model, x[100:150]), rel=1e-5)


@pytest.mark.parametrize(("samples", "note"), [(100, True), (131, True), (132, False)])
def test_too_few_unused_samples_are_noted(samples: int, note: bool) -> None:
    model, x = original(), images(samples)
    res = sc.prune(model, x[:100], budget={"macs": "60%"})
    found = sc.recover(res.model, model, x, plan=res.plan, steps=2, augment="none")
    assert (recovery.SEEN in found.notes) == note and found.held_out == (samples // 4 if note else 32)
    other = sc.recover(res.model, model, images(64, seed=9), plan=res.plan, steps=2, augment="none")
    assert recovery.SEEN not in other.notes and other.held_out == 16


def test_the_measure_is_the_divergence_on_held_out_samples(case: Any) -> None:
    small, model, plan = case
    x = images()
    found = sc.recover(small, model, x, plan=plan, steps=20, augment="none", lr=3e-3)
    held = x[3::4]
    assert found.before == pytest.approx(divergence(small, model, held), rel=1e-4)
    assert found.after == pytest.approx(divergence(found.model, model, held), rel=1e-4)
    assert found.augmentation == "none, as asked"


def test_steps_are_taken_in_bfloat16_and_judged_in_full_precision() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(64, 3)
    plan = sc.random_plan(sc.trace(model, x[:1]), kept=0.5, seed=0)
    small = sc.cut(model, plan)
    seen: list[tuple[bool, bool]] = []
    small.register_forward_pre_hook(lambda *_: seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))))
    sc.recover(small, model, x, plan=plan, steps=4, amp="bf16")
    assert {half for step, half in seen if step} == {True} and {half for step, half in seen if not step} == {False}


def test_a_time_limit(case: Any) -> None:
    small, model, plan = case
    found = sc.recover(small, model, images(), plan=plan, steps=10**6, minutes=0.02)
    assert found.seconds < 10 and found.notes[0].startswith("the time was over after ")
    assert found.after <= found.before


def test_the_original_runs_once_for_each_changed_sample(case: Any) -> None:
    small, model, plan = case
    model, counts = copy.deepcopy(model), []
    model.register_forward_hook(lambda module, args, output: counts.append(len(args[0])))
    sc.recover(small, model, images(), plan=plan, steps=40, batch=36, augment="none")
    assert sum(counts) == 96  # 72 for the steps, 24 held out
    counts.clear()
    sc.recover(small, model, images(), plan=plan, steps=40, batch=36, augment="none", memory=0)
    assert sum(counts) == 24 + 40 * 36


def test_a_function_changes_the_inputs_of_every_step(case: Any) -> None:
    small, model, plan = case
    seen: list[int] = []

    def noisy(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x + 0.1 * torch.randn_like(x)

    found = sc.recover(small, model, images(), plan=plan, steps=6, augment=noisy)
    assert len(seen) == 6 and found.augmentation == "a function of the user"


def test_without_a_plan_outputs_alone_are_matched(case: Any) -> None:
    small, model, _ = case
    found = sc.recover(small, model, images(), steps=4)
    cut_before_the_last = sc.Plan.keeping(sc.trace(model, images(1)), {"3": list(range(8))})
    other = sc.recover(sc.cut(model, cut_before_the_last), model, images(), steps=4)
    assert any("no plan says which" in note for note in (*found.notes, *other.notes))


class Dense(nn.Module):
    """A regression with a dense map and a keyword argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        return self.last(self.first(x).relu()) * scale[:, None, None, None]


def test_dense_outputs_and_keywords() -> None:
    model = Dense().eval()
    data = [{"x": images(40, seed), "scale": torch.ones(40)} for seed in range(2)]
    plan = sc.random_plan(sc.trace(model, data[0]), kept=0.5, seed=0)
    small = sc.cut(model, plan)
    found = sc.recover(small, model, data, plan=plan, steps=40, lr=1e-2)
    assert found.after < found.before and found.losses[0] == "relative squared error from the teacher"
    assert found.augmentation == "none: the inputs are not images"


def test_samples_of_different_shapes(case: Any) -> None:
    small, model, plan = case
    data = [images(40), torch.randn(40, 1, 20, 20)]
    assert sc.recover(small, model, data, plan=plan, steps=4).samples == 60


def test_a_frozen_parameter_stays(case: Any) -> None:
    small, model, plan = copy.deepcopy(case)
    small[0].requires_grad_(False)
    found = sc.recover(small, model, images(), plan=plan, steps=20, lr=3e-3)
    assert torch.equal(found.model[0].weight, small[0].weight) and not found.model[0].weight.requires_grad
    with pytest.raises(UsageError, match="all parameters are frozen"):
        sc.recover(small.requires_grad_(False), model, images(), plan=plan)


def test_nan_is_an_error_unless_the_network_is_better_already(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small, model, plan = case
    with pytest.raises(sc.SecateurError, match=r"infinite in step 1, at a learning rate of .*\n.*unchanged"):
        sc.recover(small, model, images(), plan=plan, steps=5, augment=lambda x: x * 1e30)
    calls: list[int] = []

    def late(x: Tensor) -> Tensor:
        calls.append(1)
        return x * (math.inf if len(calls) > 40 else 1)

    monkeypatch.setattr(recovery, "LOOKS", 50)
    found = sc.recover(small, model, images(), plan=plan, steps=50, lr=3e-3, augment=late)
    assert "infinite in step 41" in found.notes[-1] and found.after < found.before and 0 < found.steps <= 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"batch": 2.5}, "batch is 2.5"),
        ({"minutes": 0}, "minutes is 0"),
        ({"minutes": math.nan}, "minutes is nan"),
        ({"lr": -1}, "lr is -1"),
        ({"augment": "all"}, "augment is 'all'"),
        ({"amp": "fp16"}, "amp is 'fp16'"),
        ({"samples": 20}, "20 samples are too few"),
    ],
)
def test_invalid_arguments_are_refused(case: Any, options: dict[str, Any], message: str) -> None:
    small, model, plan = case
    with pytest.raises(sc.SecateurError, match=message):
        sc.recover(small, model, images(), plan=plan, **options)


def test_invalid_data_and_networks_are_refused(case: Any) -> None:
    small, model, plan = case
    with pytest.raises(sc.SecateurError, match="too few"):
        sc.recover(small, model, [], plan=plan)
    with pytest.raises(sc.SecateurError, match="NaN or infinite values in sample"):
        sc.recover(small, model, images() * math.nan, plan=plan)
    with pytest.raises(sc.SecateurError, match="the teacher returns"):
        sc.recover(small, nn.Sequential(nn.Flatten(), nn.Linear(256, 3)), images())
    with pytest.raises(sc.SecateurError, match=r"expected a torch.nn.Module"):
        sc.recover(small, "model", images())  # type: ignore[arg-type]


def test_the_progress_bar(case: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    small, model, plan = case
    sc.recover(small, model, images(), plan=plan, steps=2, progress=True)
    assert "recovering" in capsys.readouterr().err
