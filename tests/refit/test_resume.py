"""Runs that are resumed from a layer on, against plain runs with the same change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.network.batches import Call, float_outputs
from secateur.network.layer_calls import FunctionCall, LayerCall
from secateur.network.observer import LayerObserver, Observer
from secateur.refit.fisher import Act, Run
from secateur.refit.resume import Recording, Resumed
from support.cases import Net

Forward = Callable[[Any, Tensor], Tensor]


def plain(m: Any, x: Tensor) -> Tensor:
    x = F.relu(m.a(x), inplace=True)
    return m.d(F.relu(m.c(x + m.b(x))).mean((2, 3)))


def in_place_without_assignment(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    F.relu_(y)
    y[:, 0].mul_(2)
    z = m.b(y)
    z += y
    F.relu(z, inplace=True)
    return m.d(m.c(z).mean((2, 3)))


def views(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    flat = y.view(len(y), -1)
    y = F.relu(m.b(y))
    z = m.c(y + flat.view(y.shape) * flat.shape[1])
    return m.d(F.adaptive_avg_pool2d(z, 1).flatten(1))


def split(m: Any, x: Tensor) -> Tensor:
    one, two = m.a(x).chunk(2, 1)
    y = m.b(torch.cat([two, one], 1))
    return m.d(m.c(F.relu(y)).amax((2, 3)))


def by_value(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y = m.b(y) if bool(y.mean() > -1e9) else y
    return m.d(m.c(y).mean((2, 3)))


def written_to_out(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    z = torch.empty_like(y)
    torch.mul(y, 2, out=z)
    return m.d(m.c(m.b(z)).mean((2, 3)))


FORWARDS = {one.__name__: one for one in (plain, in_place_without_assignment, views, split, by_value, written_to_out)}


def made(forward: Forward) -> Net:
    torch.manual_seed(0)
    layers = {"a": nn.Conv2d(2, 6, 3), "b": nn.Conv2d(6, 6, 1), "c": nn.Conv2d(6, 5, 3), "d": nn.Linear(5, 3)}
    return Net(forward, **layers).double().eval()


def run_of(network: nn.Module) -> Run:
    def run(batch: Call, act: Act) -> list[Tensor]:
        with LayerObserver(network, act):
            return float_outputs(network, batch)

    return run


def doubled(name: str) -> Act:
    """Return the action that doubles the weight of one layer."""

    def act(layer: LayerCall, call: FunctionCall) -> Tensor:
        output: Tensor = call.run(weight=2 * layer.weight) if layer.name == name else call.run()
        return output

    return act


@pytest.mark.parametrize("forward", FORWARDS)
@torch.no_grad()
def test_a_resumed_run_is_a_plain_run(forward: str) -> None:
    network = made(FORWARDS[forward])
    batch: Call = ((torch.randn(5, 2, 8, 8).double(),), {})
    run = run_of(network)
    recording = Recording.of(run, ((batch[0][0][:2],), {}))
    starts = {name: recording.start([name]) for name in ("a.weight", "b.weight", "c.weight", "d.weight")}
    resumed = Resumed(run, batch, recording, list(starts.values()))
    assert torch.equal(resumed.outputs[0], network(batch[0][0]))
    for name, start in [*starts.items(), *reversed(starts.items())]:
        other = copy.deepcopy(network)
        other.get_parameter(name).mul_(2)
        (found,) = resumed.run_from(start, doubled(name))
        torch.testing.assert_close(found, other(batch[0][0]), rtol=1e-12, atol=0)
    can_resume = forward in ("plain", "in_place_without_assignment", "views")
    assert (starts["d.weight"] > 0) == can_resume


@torch.no_grad()
def test_what_comes_before_is_not_computed() -> None:
    network, ran = made(plain), list[str]()
    batch: Call = ((torch.randn(5, 2, 8, 8).double(),), {})
    run = run_of(network)
    recording = Recording.of(run, batch)
    start = recording.start(["c.weight", "d.weight"])
    assert start == recording.start(["c.weight"]) < recording.start(["d.weight"])
    assert len(recording.used_from(start)) == 1  # the sum
    resumed = Resumed(run, batch, recording, [start])

    def counted(call: FunctionCall) -> Any:
        ran.append(call.name)
        return call.run()

    with Observer(counted):
        resumed.run_from(start, doubled("c.weight"))
    assert ran.count("conv2d") == ran.count("relu") == ran.count("linear") == 1 and "add" not in ran
