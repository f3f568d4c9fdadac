"""Two networks in lockstep: they compute the same as plain runs, go on with changed weights, and leave no thread."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from secateur.network.batches import Call, eval_outputs
from secateur.network.layer_calls import FunctionCall, LayerCall
from secateur.network.observer import LayerObserver
from secateur.refit.lockstep import _Run, in_lockstep
from secateur.refit.tape import RefitLayer, record
from support.cases import Net
from support.residual_blocks import ADDS, block

BATCHES: list[Call] = [
    ((torch.randn(n, 3, 6, 6, generator=torch.Generator().manual_seed(n)).double(),), {}) for n in (5, 1, 3)
]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def randomised(network: nn.Module) -> nn.Module:
    network = network.double()
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.2, 1)
    return network


def layers_of(network: nn.Module) -> list[RefitLayer]:
    return list(record(network, BATCHES[0]).refit_layers())


@torch.no_grad()
def plain_run(network: nn.Module, batch: Call) -> tuple[dict[str, tuple[Tensor, Tensor]], Any]:
    """The input and output of each layer in a plain run, and the output of the network."""
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def act(layer: LayerCall, call: FunctionCall) -> Tensor:
        output: Tensor = call.run()
        found[layer.name] = layer.input.clone(), layer.by_position(output).clone()
        return output

    network = copy.deepcopy(network).eval()
    with LayerObserver(network, act):
        given = network(*batch[0], **batch[1])
    return found, given


NETWORKS: dict[str, Any] = {
    "in a row": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, 2)
    ),
    "by keyword": lambda: Net(
        lambda m, x: F.batch_norm(input=F.conv2d(input=x, weight=m.w), running_mean=m.mean, running_var=m.var) + x,
        w=nn.Parameter(torch.randn(3, 3, 1, 1)), mean=torch.zeros(3), var=torch.ones(3),
    ),
    "spread other": lambda: Net(
        lambda m, x: m.b(m.a(x) + x.mean((2, 3), keepdim=True)), a=nn.Conv2d(3, 3, 1), b=nn.Conv2d(3, 2, 1)
    ),
    "tokens": lambda: Net(
        lambda m, x: m.b((t := x.flatten(2).transpose(1, 2)) + m.a(t)), a=nn.Linear(3, 3), b=nn.Linear(3, 2)
    ),
    **{
        f"block {number} {first}": lambda add=add, first=first: block(lambda m, x: m.down(x), add, first)
        for number, add in enumerate(ADDS)
        for first in (True, False)
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("changed", [False, True])
def test_both_networks_compute_the_same_as_plain_runs(kind: str, changed: bool) -> None:
    original = randomised(NETWORKS[kind]())
    small = copy.deepcopy(original)
    tensors = dict(small.named_parameters())
    inputs: dict[str, list[Tensor]] = {}
    outputs: dict[str, list[Tensor]] = {}
    layers = layers_of(small)
    assert layers
    for layer, pauses in in_lockstep(original, small, BATCHES, layers):
        for ours, theirs in pauses:
            assert theirs.output is None and ours.output is not None
            assert (ours.other is None) == (theirs.other is None) == (layer.sum is None)
            inputs.setdefault(layer.weight, []).append(theirs.call.input.clone())
            outputs.setdefault(layer.weight, []).append(ours.output.clone())
        if changed:
            with torch.no_grad():
                tensors[layer.weight] *= 1.5
                if layer.norm is not None and "bias" in layer.norm.tensors:
                    tensors[layer.norm.tensors["bias"]] += 0.25
    assert inputs.keys() == {layer.weight for layer in layers}
    for number, batch in enumerate(BATCHES):
        wanted, _ = plain_run(original, batch)
        now, _ = plain_run(small, batch)  # with all changes: each layer must have had the input after those before it
        for name in inputs:
            torch.testing.assert_close(inputs[name][number], now[name][0], rtol=1e-12, atol=0)
            torch.testing.assert_close(outputs[name][number], wanted[name][1], rtol=1e-12, atol=0)
    if changed and len(layers) > 1:
        assert not torch.equal(now[layers[-1].weight][0], wanted[layers[-1].weight][0])


@pytest.mark.parametrize("first", [True, False])
def test_the_other_operand_of_a_sum_is_what_is_missing_from_it(first: bool) -> None:
    network = randomised(block(lambda m, x: m.down(x), torch.add, first))
    sums = {layer.sum: layer for layer in layers_of(network) if layer.sum is not None}
    (layer,) = sums.values()
    for found, pauses in in_lockstep(network, copy.deepcopy(network), BATCHES, layers_of(network)):
        for (ours, theirs), batch in zip(pauses, BATCHES, strict=True):
            if found == layer:
                x = batch[0][0]
                with torch.no_grad():
                    network.eval()
                    other = network.down(x) if first else network.n2(network.b(F.relu(network.n1(network.a(x)))))
                torch.testing.assert_close(ours.other, other.flatten(2))
                torch.testing.assert_close(theirs.other, other.flatten(2))


def test_pauses_come_in_the_order_in_which_layers_can_be_refitted() -> None:
    network = block(lambda m, x: m.down(x), torch.add, True).double()
    order = []
    for layer, pauses in in_lockstep(network, copy.deepcopy(network), BATCHES, layers_of(network)):
        assert len(list(pauses)) == len(BATCHES)
        order.append(layer.weight)
    assert order == ["down.0.weight", "a.weight", "b.weight", "head.weight"]


def test_some_batches_run_to_the_end_with_the_new_weights() -> None:
    original = randomised(block(lambda m, x: m.down(x), torch.add, True))
    small = copy.deepcopy(original)
    tensors, ends = dict(small.named_parameters()), dict[int, Any]()
    for layer, pauses in in_lockstep(original, small, BATCHES, layers_of(small), judged={2: slice(1, 3)}, ends=ends):
        list(pauses)
        with torch.no_grad():
            tensors[layer.weight] *= 1.5
    assert ends.keys() == {2}
    for network, found in zip((original, small), ends[2], strict=True):
        (wanted,) = eval_outputs(network, BATCHES[2])
        torch.testing.assert_close(found, [wanted[1:3]], rtol=1e-12, atol=0)


def test_outputs_without_a_row_for_each_sample_are_left_out() -> None:
    original = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(0, 2)).double()
    small, ends = copy.deepcopy(original), dict[int, Any]()
    for _, pauses in in_lockstep(original, small, BATCHES, layers_of(small), judged={2: slice(1, 3)}, ends=ends):
        list(pauses)
    assert ends == {}


@pytest.mark.parametrize("after", [0, 1, 2])
def test_giving_up_midway_leaves_no_thread_and_no_mode(after: int) -> None:
    network = block(lambda m, x: x, torch.add, True).double().train()
    small = copy.deepcopy(network)
    for number, (_, pauses) in enumerate(in_lockstep(network, small, BATCHES, layers_of(network))):
        assert not network.training and not small.training
        if number == after:
            break
        next(pauses)
        if number + 1 < after:
            list(pauses)
    assert all(module.training for one in (network, small) for module in one.modules())


def test_giving_up_by_an_error_is_as_good() -> None:
    network, before = block(lambda m, x: x, torch.add, True).double().train(), set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):  # the traceback holds the generator, so it must be closed
        with closing(in_lockstep(network, copy.deepcopy(network), BATCHES, layers_of(network))) as found:
            for _, pauses in found:
                next(pauses)
                raise ZeroDivisionError
    assert network.training and set(threading.enumerate()) == before


class Fragile(nn.Module):
    """Fails behind its first layer if it has an error."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.a, self.b, self.error = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), error

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        if self.error is not None:
            raise self.error
        return self.b(x)


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), ValueError("out of luck"), IndexError("out of luck")])
@pytest.mark.parametrize("which", [0, 1])
def test_what_fails_in_forward_reaches_the_caller(error: Exception, which: int) -> None:
    pair = [Fragile().double(), Fragile().double()]
    layers = layers_of(pair[0])
    pair[which].error = error
    with pytest.raises(sc.SecateurError, match=rf"Fragile.*{type(error).__name__}: out of luck"):
        with closing(in_lockstep(pair[0], pair[1], BATCHES, layers)) as found:
            for _, pauses in found:
                list(pauses)


def test_what_a_user_stops_is_not_dressed_up() -> None:
    network = Fragile().double()
    layers, network.error = layers_of(network), KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        with closing(in_lockstep(network, Fragile().double(), BATCHES, layers)) as found:
            for _, pauses in found:
                list(pauses)


def test_networks_of_different_length_are_refused() -> None:
    network, shorter = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)).double(), nn.Conv2d(3, 3, 1).double()
    with pytest.raises(sc.SecateurError, match="one of them ends before the other"):
        with closing(in_lockstep(network, shorter, BATCHES, layers_of(network))) as found:
            for _, pauses in found:
                list(pauses)


def test_an_input_that_is_overwritten_before_the_sum_is_refused() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        x = x * 1
        y = m.a(x)
        return y + x.mul_(2)

    network = Net(run, a=nn.Conv2d(3, 3, 1)).double()
    with pytest.raises(sc.SecateurError, match=r"a: its input is overwritten"):
        with closing(in_lockstep(network, copy.deepcopy(network), BATCHES, layers_of(network))) as found:
            for _, pauses in found:
                list(pauses)


def test_nothing_is_held_that_no_sum_needs() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).double()
    run = _Run(network.eval(), BATCHES[0], layers_of(network), original=True)
    pauses = 0
    while True:
        run.start()
        run.wait()
        if run.result() is None:
            break
        pauses += 1
        assert not run.kept
    assert pauses == 2
    run.abandon()
