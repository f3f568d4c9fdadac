"""The comparison: the same figures as pruning one by one, one trace, shared measurements, honest failures."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.cli.demo import accuracy
from secateur.embedded import digits, lenet5
from secateur.errors import SecateurError, UsageError
from secateur.methods.base import Evidence, Method
from secateur.network.batches import with_labels
from secateur.pruning.compare import TimedEvidence
from secateur.pruning.pool import Pool
from secateur.zoo import LeNet5Classic

MODEL = lenet5()
IMAGES, LABELS = (part[:48] for part in digits("calibration"))
TEST = tuple(part[:300] for part in digits("test"))
QUICK = ["ft", "pfp"]


class Broken(Method):
    """Fails as torch does."""

    def scores(self, evidence: Evidence) -> dict[str, Any]:
        raise RuntimeError("matrix is singular\nand more")


def test_the_figures_are_those_of_pruning_one_by_one() -> None:
    methods = {
        "ft": {"method": "ft"},
        "pfp:rand~mean@uniform": {"method": "pfp", "select": "rand", "sensitivity": "mean", "allocation": "uniform"},
        "thinet@residual": {"method": "thinet", "allocation": "residual"},
        "thinet@residual+repair": {"method": "thinet", "allocation": "residual", "repair": True},
        "taylor": {"method": "taylor"},
        "residual+repair": {},
    }
    data = [(IMAGES[:24], LABELS[:24]), (IMAGES[24:], LABELS[24:])]
    found = sc.compare(MODEL, data, {"params": "8%"}, list(methods), on=TEST, seed=3)
    assert found.methods == tuple(methods) and found.finished
    assert (found.original, found.evaluated, found.samples) == (accuracy(MODEL, *TEST), 300, 48)
    for row in found.rows:
        res = sc.prune(MODEL, data, {"params": row.budget}, seed=3, **methods[row.method])
        assert (row.params, row.macs) == (res.after.params, res.after.macs)
        assert row.value == row.low == row.high == pytest.approx(accuracy(res.model, *TEST), abs=1e-12)
        assert row.seconds is not None and row.seconds > 0


def test_without_labelled_data_the_divergence_on_samples_that_no_method_saw() -> None:
    found = sc.compare(MODEL, IMAGES, {"macs": "30%"}, ["ft", "pfp+repair"], samples=20, seed=5)
    assert (found.measure, found.original, found.evaluated, found.samples) == ("divergence", None, 12, 20)
    held, (part,) = Pool(list(with_labels(IMAGES))).parts(20, 1, 256, seed=5)
    for row, settings in zip(found.rows, ({"method": "ft"}, {"method": "pfp", "repair": True}), strict=True):
        small = sc.prune(MODEL, IMAGES[part], {"macs": "30%"}, seed=5, **settings).model
        assert row.value == pytest.approx(divergence(MODEL, small, IMAGES[held]), rel=1e-4)


def divergence(model: nn.Module, small: nn.Module, images: Tensor) -> float:
    """Sample by sample and class by class."""
    total = 0.0
    with torch.no_grad():
        for image in images:
            p, q = (network(image[None])[0].double().softmax(0).tolist() for network in (model, small))
            total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
    return total / len(images)


def test_traced_once_and_measured_once_per_calibration_set(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(module: str, name: str) -> None:
        real: Callable[..., Any] = getattr(sys.modules[module], name)

        def spy(*args: Any, **kwargs: Any) -> Any:
            calls[name if name != "measure" else f"measure {kwargs['kind']}"] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(sys.modules[module], name, spy)

    counted("secateur.pruning.job", "trace")
    counted("secateur.methods.base", "measure")
    counted("secateur.methods.base", "curves")
    counted("secateur.methods.thinet", "removal_ranks")
    methods = ["pfp", "pfp:pivotal", "ft@pfp", "pfp~mean", "ft@residual", "thinet@residual", "residual"]
    methods += ["thinet", "thinet+repair"]  # of which the second cuts what the first one found
    model = LeNet5Classic().eval()
    found = sc.compare(model, IMAGES, {"params": ["40%", "20%"]}, methods, on=TEST, samples=16, repeats=2)
    assert len(found.cells) == 2 * 2 * len(methods) and not any(cell.error for cell in found.cells)
    groups = len(sc.trace(model, IMAGES[:1]).prunable)
    places = 2 * 2 * groups  # of each draw, for thinet and for thinet@residual
    assert calls == {"trace": 1, "measure max": 2, "measure mean": 2, "curves": 2, "removal_ranks": places}


def test_seconds_count_what_was_measured_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work(seconds: float) -> str:
        nonlocal now
        now += seconds
        return "done"

    monkeypatch.setattr("time.perf_counter", lambda: now)
    seen = TimedEvidence.of(Evidence(nn.Identity(), sc.ChannelGraph((), {}, None), [], None, {}))

    def inner() -> Any:
        return seen.once("inner", lambda: work(2))

    def outer() -> Any:
        return seen.once("outer", lambda: (inner(), work(3)))

    assert seen.timed(lambda: (outer(), work(1))) == ((("done", "done"), "done"), 6)
    assert seen.timed(lambda: (outer(), work(1)))[1] == 6  # nothing is measured again, and yet it rests on both
    assert seen.timed(inner)[1] == 2
    assert seen.timed(lambda: (outer(), inner()))[1] == 5  # once each
    with pytest.raises(ZeroDivisionError):
        seen.timed(lambda: seen.once("fails", lambda: 1 / 0))
    assert seen.timed(lambda: work(1))[1] == 1
    assert now == 8  # what was really spent


def test_what_cannot_be_done_says_why_and_the_others_go_on() -> None:
    found = sc.compare(MODEL, IMAGES, {"params": ["30%", "0.1%"]}, ["taylor", "ft", Broken()], on=TEST, at_least=4)
    why = {(row.method, row.budget): row.error for row in found.rows}
    assert why["ft", "30%"] is None
    assert "needs labels" in str(why["taylor", "30%"])
    assert "the budget cannot be met" in str(why["ft", "0.1%"]) and "remedy" not in str(why["ft", "0.1%"])
    assert why["broken", "30%"] == "RuntimeError: matrix is singular"
    assert [row.method for row in found.best_first("30%")] == ["ft", "taylor", "broken"]
    assert all(row.value is row.seconds is row.params is None for row in found.rows if row.error)
    assert "broken at 30%: RuntimeError: matrix is singular" in str(found)


def test_a_network_that_cannot_be_repaired_has_no_repaired_row() -> None:
    found = sc.compare(MODEL, IMAGES[:3], {"params": "30%"}, ["ft", "ft+repair"], on=TEST)
    plain, repaired = found.rows
    assert plain.value is not None and plain.error is None
    assert repaired.value is None and "not repaired" in str(repaired.error) and "too few" in str(repaired.error)
    assert sc.compare(MODEL, IMAGES[:3], {"params": "100%"}, ["ft+repair"], on=TEST).rows[0].value == found.original


def test_all_methods_that_the_data_allows() -> None:
    model = LeNet5Classic().eval()
    without = sc.compare(model, IMAGES[:8], {"params": "50%"}, on=TEST)
    assert without.methods == ("residual+repair", "pfp", "ft", "softnet", "thinet", "fpgm", "random")
    assert not any(row.error for row in without.rows)
    labelled = sc.compare(model, (IMAGES[:8], LABELS[:8]), {"params": "50%"}, on=TEST)
    assert set(labelled.methods) - set(without.methods) == {"taylor"}


def test_means_over_repeats_and_their_spread() -> None:
    found = sc.compare(MODEL, IMAGES, {"params": "5%"}, ["random", "pfp"], on=TEST, repeats=3, samples=12)
    assert [cell.repeat for cell in found.cells] == [0, 0, 1, 1, 2, 2]
    for row in found.rows:
        cells = [cell for cell in found.cells if cell.method == row.method]
        figures = [cell.value for cell in cells]
        assert (row.value, row.low, row.high) == (statistics.fmean(figures), min(figures), max(figures))
        assert row.params == statistics.fmean(cell.params for cell in cells) and row.repeats == 3
        assert min(figures) < max(figures)  # other samples, other seeds
    pool = Pool.of(IMAGES, 36, seed=0)
    for repeat, part in enumerate(pool.parts(12, 3, 0, seed=0)[1]):
        data = [args[0] for (args, _), _ in pool.some(part)]
        res = sc.prune(MODEL, data, {"params": "5%"}, method="pfp", seed=repeat)
        assert found.cells[2 * repeat + 1].value == pytest.approx(accuracy(res.model, *TEST), abs=1e-12)


def test_what_is_said_of_the_samples() -> None:
    few = sc.compare(MODEL, IMAGES, {"params": "50%"}, QUICK, on=TEST)
    assert few.notes == ("48 calibration samples instead of 256: the data has no more",)
    shared = sc.compare(MODEL, IMAGES, {"params": "50%"}, ["ft"], on=TEST, samples=30, repeats=2)
    assert "the repeats share samples: each has 30 of 48" in shared.notes[0]
    used = sc.compare(MODEL, IMAGES, {"params": "50%"}, ["ft"], on=(IMAGES[:10], LABELS[:10]), samples=48)
    assert "10 of the 10 evaluation samples are calibration samples too" in used.notes[0]


def test_what_is_known_is_told_after_each_network() -> None:
    told: list[sc.Comparison] = []
    found = sc.compare(MODEL, IMAGES, {"params": ["50%", "30%"]}, QUICK, on=TEST, after_each=told.append)
    assert [len(one.cells) for one in told] == [1, 2, 3, 4]
    assert not any(one.finished for one in told) and found == replace(told[-1], finished=True)
    assert [row.method for row in told[1].rows] == ["ft", "ft"]

    def stop(so_far: sc.Comparison) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sc.compare(MODEL, IMAGES, {"params": "50%"}, QUICK, on=TEST, after_each=stop)


def test_it_is_plain_data_and_text() -> None:
    found = sc.compare(MODEL, IMAGES, {"params": "0.01%"}, QUICK, on=TEST)
    record = json.loads(json.dumps(found.info, allow_nan=False))
    assert record["before"] == {"params": found.before.params, "macs": found.before.macs}
    assert [row["cells"][0]["error"] for row in record["rows"]] == [row.error for row in found.rows]
    found = sc.compare(MODEL, IMAGES, {"params": 100_000}, QUICK, on=TEST)
    assert found.budgets == ("100,000",)
    for row in found.rows:
        assert f"{row.value:.2%}" in str(found) and row.method in str(found)
    assert f"accuracy {found.original:.2%}." in str(found)


def test_the_network_and_its_mode_are_untouched() -> None:
    model = lenet5().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sc.compare(model, IMAGES, {"params": "50%"}, ["ft+repair"], on=TEST)
    assert model.training and all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_iterator_to_judge_by_and_the_exported_program() -> None:
    batches = [(TEST[0][:100], TEST[1][:100]), (TEST[0][100:], TEST[1][100:])]
    one = sc.compare(MODEL, IMAGES, {"params": "30%"}, QUICK, on=iter(batches), output="graph")
    two = sc.compare(MODEL, IMAGES, {"params": "30%"}, QUICK, on=TEST)
    assert [row.value for row in one.rows] == [row.value for row in two.rows]


def test_a_network_that_is_no_classifier_and_takes_two_inputs() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.last = nn.Linear(3, 16), nn.Linear(5, 16), nn.Linear(16, 1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.last(torch.relu(self.left(x) + self.right(y)))

    data = [(torch.randn(8, 3), torch.randn(8, 5)) for _ in range(4)]
    example = (torch.zeros(1, 3), torch.zeros(1, 5))
    found = sc.compare(Pair().eval(), data, {"params": "60%"}, QUICK, example=example)
    assert found.evaluated == 8 and all(row.value is not None and row.value > 0 for row in found.rows)


@pytest.mark.parametrize(
    ("on", "message"),
    [
        (TEST[0], "has no labels"),
        ((TEST[0], TEST[1] + 1), "from 1 to 10"),
        ((TEST[0], TEST[1] - 1), "from -1 to 8"),
        ((TEST[0], TEST[1].float()), "float32"),
        ((TEST[0], torch.zeros(300, 10)), "float32 of shape"),
    ],
)
def test_labels_that_are_none(on: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sc.compare(MODEL, IMAGES, {"params": "50%"}, ["ft"], on=on)


@pytest.mark.parametrize(
    ("budgets", "settings", "message"),
    [
        ({}, {}, "the budgets are"),
        ({"params": "50%", "macs": "50%"}, {}, "the budgets are"),
        ({"latency": "50%"}, {}, "the budgets are"),
        ("50%", {}, "the budgets are"),
        ({"params": []}, {}, "no budget for params"),
        ({"params": ["50%", "much"]}, {}, "'much'"),
        ({"params": "50%"}, {"repeats": 0}, "repeats is 0"),
        ({"params": "50%"}, {"samples": 0}, "samples is 0"),
        ({"params": "50%"}, {"repeats": 2}, "every repeat with 256"),
        ({"params": "50%"}, {"methods": ["ft", "l1"]}, "'l1'"),
    ],
)
def test_wrong_calls(budgets: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sc.compare(MODEL, IMAGES, budgets, **{"methods": ["ft"], "on": TEST, **settings})


def test_data_that_cannot_be_used() -> None:
    with pytest.raises(SecateurError, match="too few samples to hold some out"):
        sc.compare(MODEL, IMAGES[:3], {"params": "50%"}, ["ft"])
    with pytest.raises(SecateurError, match="the evaluation data is empty"):
        sc.compare(MODEL, IMAGES, {"params": "50%"}, ["ft"], on=[])
    broken = lenet5()
    with torch.no_grad():
        next(broken.parameters()).fill_(math.nan)
    with pytest.raises(SecateurError, match="NaN or infinite"):
        sc.compare(broken, IMAGES, {"params": "50%"}, ["ft"], on=TEST)
