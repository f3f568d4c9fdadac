"""Settings: one set of names and defaults everywhere, wrong combinations refused with what to write instead."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.errors import UsageError
from secateur.methods import METHODS
from secateur.methods.base import Method
from secateur.pruning.pool import Pool
from secateur.pruning.settings import PruneSettings

DEFAULTS = {field.name: field.default for field in fields(PruneSettings)}
NOT_OF_COMPARE = {
    "method",
    "select",
    "allocation",
    "repair",
    "sensitivity",
    "certificate_delta",
    "steps",
    "latency_table",
    "engine",
}


@pytest.mark.parametrize("function", [sc.prune, sc.plan, sc.compare])
def test_every_setting_is_a_parameter_with_the_same_default(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    wanted = {
        name: value for name, value in DEFAULTS.items() if function is not sc.compare or name not in NOT_OF_COMPARE
    }
    assert {name: parameters[name].default for name in wanted} == wanted
    assert not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def test_the_help_explains_every_setting() -> None:
    text = inspect.getdoc(sc.prune) or ""
    for name in inspect.signature(sc.prune).parameters:
        assert f"    {name}: " in text, name


def test_a_graph_that_is_passed_is_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = lenet5(), digits("calibration")[0]
    graph = sc.trace(model, (images[:1],), keep=["fc1"])
    wanted = sc.prune(model, images, {"params": "50%"}, keep=["fc1"])
    monkeypatch.setattr("secateur.pruning.job.trace", None)
    assert sc.prune(model, images, {"params": "50%"}, graph=graph).plan == wanted.plan
    assert sc.plan(model, images, {"params": "50%"}, graph=graph) == wanted.plan
    assert sc.compare(model, images, {"params": ["50%"]}, ["ft"], samples=64, graph=graph).finished


def test_a_graph_that_does_not_fit_is_refused() -> None:
    model, images = lenet5(), digits("calibration")[0]
    graph = sc.trace(model, images[:1])
    with pytest.raises(sc.UsageError, match="graph is of another network"):
        sc.prune(sc.cut(model, sc.random_plan(graph)), images, {"params": "50%"}, graph=graph)
    for settings in ({"keep": ["fc1"]}, {"output": "graph"}):
        with pytest.raises(sc.UsageError, match=r"pass them to sc\.trace"):
            sc.prune(model, images, {"params": "50%"}, graph=graph, **settings)


@pytest.mark.parametrize(
    ("settings", "cause", "remedy"),
    [
        ({"select": "pivotal"}, "belongs to the method pfp, and the method is residual", 'method="pfp", select='),
        ({"method": "ft", "select": "derand"}, "belongs to the method pfp", 'method="pfp"'),
        ({"method": "pfp", "select": "best"}, "select is 'best'", "derand"),
        ({"method": "magic"}, "no method 'magic'", "residual"),
        ({"steps": 0}, "steps is 0", "1 up"),
        ({"samples": 0}, "samples is 0", "1 up"),
        ({"delta": 1.0}, "delta is 1.0", "between 0 and 1"),
        ({"certificate_delta": 0.0}, "certificate_delta is 0.0", "1e-3"),
        ({"C": 0.9}, "C is 0.9", "1 up"),
        ({"allocation": "equal"}, "allocation is 'equal'", "uniform"),
        ({"sensitivity": "median"}, "'median'", "max"),
        ({"keep": "fc"}, "keep is 'fc'", "\\['fc'\\]"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], cause: str, remedy: str) -> None:
    with pytest.raises(sc.UsageError, match=cause) as caught:
        PruneSettings(**settings)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(sc.UsageError, match=remedy):
        sc.prune(lenet5(), digits("calibration"), {"params": "50%"}, **settings)


class Undecorated(Method):
    """A method that is not a dataclass."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor

    def scores(self, evidence: Any) -> dict[str, torch.Tensor]:
        return {group.name: self.factor * torch.arange(group.size) for group in evidence.graph.prunable}


def test_a_registered_method_need_not_be_a_dataclass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", Undecorated)
    res = sc.prune(lenet5(), digits("calibration")[0][:16], {"params": "50%"}, method="mine")
    assert res.method.name == "undecorated" and res.repair is None
    assert res.plan == sc.plan(lenet5(), digits("calibration")[0][:16], {"params": "50%"}, method=Undecorated())


@pytest.mark.parametrize(
    ("kind", "cause", "remedy"),
    [
        (object, "makes an object of type object", "derive it from secateur.methods.Method"),
        (lambda *, factor: Undecorated(factor), "cannot be built: .*factor", "parameters all have defaults"),
        (Undecorated(), "cannot be built: .*not callable", "pass an instance: method=Mine"),
    ],
    ids=["another class", "without defaults", "an instance"],
)
def test_what_is_no_method_is_refused(kind: Any, cause: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", kind)
    with pytest.raises(UsageError, match=rf"METHODS\['mine'\] {cause}") as caught:
        PruneSettings(method="mine")
    assert remedy in str(caught.value.remedy)


def test_settings_are_frozen_and_comparable() -> None:
    assert PruneSettings(keep=["fc"]) == PruneSettings(keep=("fc",)) != PruneSettings()
    with pytest.raises(AttributeError):
        PruneSettings().seed = 3  # type: ignore[misc]


X = torch.arange(40.0)[:, None]


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return X[index], index


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter((x, int(x)) for x in X)


def chosen(data: Any, count: int | None, seed: int = 0) -> list[int]:
    pool = Pool.of(data, count, seed=seed)
    return [int(x) for call in pool.calls for x in call[0][0]]


@pytest.mark.parametrize(
    "data",
    [
        X,
        (X, X.long()),
        {"x": X},
        list(X.split(7)),
        DataLoader(Numbers(), batch_size=8),
        DataLoader(Numbers(), batch_size=8, shuffle=True),
        DataLoader(TensorDataset(X), batch_size=3),
    ],
    ids=["tensor", "pair", "dict", "list", "loader", "shuffled", "tensors"],
)
def test_samples_are_chosen_at_random_by_the_seed(data: Any) -> None:
    if isinstance(data, dict):
        found = [int(x) for call in Pool.of(data, 10, seed=0).calls for x in call[1]["x"]]
    else:
        found = chosen(data, 10)
        assert found == chosen(data, 10) != chosen(data, 10, seed=1)
        assert sorted(chosen(data, 40)) == sorted(chosen(data, None)) == list(range(40))
    assert len(set(found)) == 10 and sorted(found) != list(range(10))
    assert Pool.of(data, 10, seed=0).notes == ()


def test_labels_stay_with_their_samples() -> None:
    for data in ((X, X[:, 0].long()), DataLoader(Numbers(), batch_size=8)):
        pool = Pool.of(data, 10, seed=3)
        assert pool.labels is not None
        assert [int(y) for part in pool.labels for y in part] == [int(x) for call in pool.calls for x in call[0][0]]


@pytest.mark.parametrize(
    "data",
    [
        lambda: iter(X.split(4)),
        lambda: DataLoader(Stream(), batch_size=4),
        lambda: DataLoader(Numbers(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 40, 40)),
    ],
    ids=["iterator", "stream", "weighted"],
)
def test_an_order_that_cannot_be_changed_is_reported(data: Any) -> None:
    pool = Pool.of(data(), 10, seed=0)
    assert len(pool) == 10 and "the first 10 samples of the data were used, in their order" in pool.notes[0]
    if not isinstance(data(), DataLoader):
        assert chosen(data(), 10) == list(range(10))


def test_the_note_reaches_the_summary() -> None:
    images, _ = digits("calibration")
    res = sc.prune(lenet5(), iter(images.split(8)), {"params": "50%"}, samples=16, method="ft")
    assert res.samples == 16 and "the first 16 samples of the data were used" in " ".join(res.summary().split())
