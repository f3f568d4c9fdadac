"""The recording of a forward pass: which layers can be refitted, with which norm and sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import secateur as sc
from secateur.network.modules import named_tensors
from secateur.refit.tape import Norm, RefitLayer, Step, Tape, record
from secateur.surgery.rewrite import runnable
from support.cases import Net
from support.residual_blocks import ADDS, block, in_place

Conv = nn.Conv2d
X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def tape_of(network: nn.Module, *inputs: Tensor) -> Tape:
    return record(network, (inputs or (X,), {}))


def layers(network: nn.Module, *inputs: Tensor) -> dict[str, RefitLayer]:
    return {layer.weight.removesuffix(".weight"): layer for layer in tape_of(network, *inputs).refit_layers()}


def described(network: nn.Module, *inputs: Tensor) -> dict[str, tuple[bool, bool, str]]:
    """For each layer: whether it has a bias, whether a norm follows it, and the name of the addition it goes into."""
    tape = tape_of(network, *inputs)
    return {
        layer.weight.removesuffix(".weight"): (
            layer.bias is not None,
            layer.norm is not None,
            "" if layer.sum is None else tape.names[layer.sum],
        )
        for layer in tape.refit_layers()
    }


def test_layers_norms_and_activations_in_a_row() -> None:
    network = nn.Sequential(
        Conv(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), Conv(4, 5, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(20, 6), nn.BatchNorm1d(6), nn.Linear(6, 2, bias=False),
    )  # fmt: skip
    assert described(network) == {
        "0": (False, True, ""), "3": (True, False, ""), "6": (True, True, ""), "8": (False, False, ""),
    }  # fmt: skip
    found = layers(network)
    assert found["0"].norm is not None and found["0"].norm.tensors == {
        key: f"1.{key}" for key in ("running_mean", "running_var", "weight", "bias")
    }
    assert [layer.takes_constant for layer in found.values()] == [True, True, True, False]
    assert all(layer.end == layer.step for layer in found.values())


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("add", ADDS)
def test_of_two_layers_that_are_added_up_the_later_compensates_for_both(add: Any, first: bool) -> None:
    found = layers(block(lambda m, x: m.down(x), add, first))
    last, other = ("b", "down.0") if first else ("down.0", "b")
    assert found.keys() == {"a", "b", "down.0", "head"}
    assert found[last].sum is not None and found[other].sum is None
    assert found[last].end == found[last].sum > max(found[last].step, found[other].step)
    assert all(layer.norm is not None for name, layer in found.items() if name != "head")


@pytest.mark.parametrize("add", ADDS)
@pytest.mark.parametrize("shortcut", [lambda m, x: x * 1, lambda m, x: F.pad(x[:, :2], (0, 0, 0, 0, 0, 1))])
def test_a_layer_before_a_shortcut_without_layers(shortcut: Any, add: Any) -> None:
    found = layers(block(shortcut, add, True))
    assert found["b"].sum is not None and found["a"].sum is None and found["head"].sum is None
    tape = tape_of(block(shortcut, add, True))
    assert tape.steps[found["b"].sum].inputs[found["b"].operand] == found["b"].norm.step


def test_the_input_itself_may_be_the_shortcut() -> None:
    found = layers(block(lambda m, x: x, torch.add, True))
    assert found["b"].sum is not None and found["b"].operand == 0


@pytest.mark.parametrize(
    "add",
    [
        lambda y, s: torch.add(y, s, alpha=2),
        lambda y, s: torch.add(y, other=s),
        lambda y, s: y - s,
        lambda y, s: y + y,
        lambda y, s: y + 1,
        lambda y, s: torch.stack([y, s]).sum(0),
        lambda y, s: torch.cat([y, y + s]),  # it is used beside the sum
        lambda y, s: torch.cat([*y.split(1), y + s]),  # the same, by a call that gives several tensors
        lambda y, s: y[:1] + s,
    ],
)
def test_what_is_no_plain_sum_of_two_is_not_taken_for_one(add: Any) -> None:
    assert layers(block(lambda m, x: x * 1, add, True))["b"].sum is None


def test_a_result_that_is_written_to_is_not_fitted_beyond_that() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        y = m.a(x)
        y[:, 0] = 0
        return m.n(y) + x

    assert described(Net(run, a=Conv(3, 3, 1), n=nn.BatchNorm2d(3))) == {"a": (True, False, "")}


def test_a_result_that_is_spread_over_the_sum_is_fitted_by_itself() -> None:
    network = Net(lambda m, x: x + m.a(x.mean((2, 3), keepdim=True)), a=Conv(3, 3, 1))
    assert described(network) == {"a": (True, False, "")}
    narrow_other = Net(lambda m, x: m.a(x) + x.mean((2, 3), keepdim=True), a=Conv(3, 3, 1))
    assert described(narrow_other) == {"a": (True, False, "add")}


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: (m.a(x), m.n(m.b(x))),
        lambda m, x: (y := m.a(x), y + x),
        lambda m, x: {"sum": (y := m.a(x)) + x, "more": [y, m.b(x)]},
    ],
)
def test_a_result_that_is_an_output_stays_as_it_is(run: Any) -> None:
    layer = layers(Net(run, a=Conv(3, 3, 1), b=Conv(3, 3, 1), n=nn.BatchNorm2d(3)))["a"]
    assert layer.norm is None and layer.sum is None


def test_a_result_that_is_used_twice_has_no_norm_of_its_own() -> None:
    network = Net(lambda m, x: m.n(y := m.a(x)) * y, a=Conv(3, 3, 1), n=nn.BatchNorm2d(3))
    assert described(network) == {"a": (True, False, "")}


def test_shared_tensors_and_layers_called_twice_are_left_alone() -> None:
    tied = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 2))
    tied[2].weight = tied[0].weight
    assert layers(tied, X).keys() == {"3"}
    tied[2].weight, tied[2].bias = nn.Parameter(torch.randn(6, 6)), tied[0].bias
    assert layers(tied, X).keys() == {"3"}
    twice = Net(lambda m, x: m.b(m.a(m.a(x))), a=Conv(3, 3, 1), b=Conv(3, 2, 1))
    assert layers(twice).keys() == {"b"}
    weighed = Net(lambda m, x: m.a(x) * m.a.weight.norm(), a=Conv(3, 3, 1))
    assert not layers(weighed)


def test_a_norm_that_is_shared_is_nobodys() -> None:
    network = Net(lambda m, x: m.n(m.b(m.n(m.a(x)))), a=Conv(3, 3, 1), b=Conv(3, 3, 1, bias=False), n=nn.BatchNorm2d(3))
    assert described(network) == {"a": (True, False, ""), "b": (False, False, "")}
    assert not layers(network)["b"].takes_constant


@pytest.mark.parametrize(
    ("norm", "tensors"),
    [
        (nn.BatchNorm2d(4), {"running_mean", "running_var", "weight", "bias"}),
        (nn.BatchNorm2d(4, affine=False), {"running_mean", "running_var"}),
        (nn.BatchNorm2d(4, track_running_stats=False), None),
        (nn.BatchNorm2d(4, affine=False, track_running_stats=False), None),
        (nn.InstanceNorm2d(4, affine=True), None),
        (nn.GroupNorm(2, 4), None),
    ],
)
def test_only_norms_with_fixed_statistics_count(norm: nn.Module, tensors: set[str] | None) -> None:
    network = nn.Sequential(Conv(3, 4, 1), norm, Conv(4, 2, 1)).train()
    found = layers(network)["0"].norm
    assert (None if found is None else found.tensors.keys()) == tensors
    assert all(module.training for module in network.modules())


def test_a_functional_norm_counts_unless_it_is_training() -> None:
    def network(training: bool) -> Net:
        def run(m: Net, x: Tensor) -> Tensor:
            return F.batch_norm(m.a(x), m.mean, m.var, bias=m.b, weight=m.w, training=training, eps=0.5)

        w, b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        return Net(run, a=Conv(3, 4, 1), mean=torch.zeros(4), var=torch.ones(4), w=w, b=b)

    norm = layers(network(False))["a"].norm
    assert norm is not None and norm.eps == 0.5
    assert norm.tensors == {"running_mean": "mean", "running_var": "var", "weight": "w", "bias": "b"}
    assert layers(network(True))["a"].norm is None


@pytest.mark.parametrize("affine", [True, False])
def test_a_norm_as_scale_and_shift_and_a_constant_added_before_it(affine: bool) -> None:
    network = nn.Sequential(Conv(3, 4, 1), nn.BatchNorm2d(4, affine=affine)).double().eval()
    with torch.no_grad():
        for tensor in named_tensors(network).values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2)
    norm = layers(network, X.double())["0"].norm
    assert isinstance(norm, Norm)
    x, constant = torch.randn(5, 4, 2, 2).double(), torch.randn(4).double()
    scale, shift = (value[:, None, None] for value in norm.affine(named_tensors(network)))
    torch.testing.assert_close(scale * x + shift, network[1](x))
    wanted = network[1](x + constant[:, None, None])
    norm.add(constant, named_tensors(network))
    torch.testing.assert_close(network[1](x), wanted)


def test_weights_by_keyword_and_weights_that_are_computed() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        x = F.conv2d(x, weight=m.w, bias=m.b)
        x = F.conv2d(input=x, weight=m.v)
        x = F.conv2d(x, m.v * 2 + m.w.mean())
        return F.conv2d(x, m.u, m.b * 1)

    w, v, u = (nn.Parameter(torch.randn(3, 3, 1, 1)) for _ in range(3))
    network = Net(run, w=w, v=v, u=u, b=nn.Parameter(torch.randn(3)))
    assert not layers(network)  # w and v serve twice, u has a bias that is computed

    def plainly(m: Net, x: Tensor) -> Tensor:
        return F.conv2d(input=F.conv2d(x, weight=m.w, bias=m.b), weight=m.v)

    network = Net(plainly, w=w, v=v, b=nn.Parameter(torch.randn(3)))
    assert described(network) == {"w": (True, False, ""), "v": (False, False, "")}


def test_keywords_are_passed_on() -> None:
    network = Net(lambda m, x: m.a(x), a=Conv(3, 3, 1))
    assert [layer.weight for layer in record(network, ((), {"x": X})).refit_layers()] == ["a.weight"]


@pytest.mark.parametrize("first", [True, False])
def test_a_program_has_the_same_layers_as_its_network(first: bool) -> None:
    network = block(lambda m, x: m.down(x), in_place, first).double()
    graph = sc.trace(network, X.double(), output="graph")
    program = runnable(network, graph)
    assert described(program, X.double()) == described(network, X.double())
    for name, layer in layers(program, X.double()).items():
        own = layers(network, X.double())[name]
        assert (layer.weight, layer.bias) == (own.weight, own.bias)
        assert (layer.norm and (layer.norm.tensors, layer.norm.eps)) == (own.norm and (own.norm.tensors, own.norm.eps))


def test_nothing_changes_by_recording() -> None:
    network = nn.Sequential(Conv(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout()).train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    tape = tape_of(network)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert network.training and network[1].training and all(p.grad is None for p in network.parameters())
    assert tape == tape_of(network) and tape.outputs == {len(tape.steps) - 1}


def slow_bytes(tape: Tape, layer: RefitLayer) -> int:
    """Ask of every result whether it exists at the layer, and whether somebody still needs it there."""
    size = 0
    for number, step in enumerate(tape.steps[: layer.end + 1]):
        needed = any(number in later.inputs for later in tape.steps[layer.end :])
        size += step.bytes * (needed or number == layer.end or number in tape.outputs)
    return size


@given(data=st.data(), count=st.integers(1, 12))
def test_the_memory_at_a_layer_is_that_of_a_slow_count(data: st.DataObject, count: int) -> None:
    steps = []
    for number in range(count):
        inputs = data.draw(st.lists(st.integers(-1, number - 1), max_size=3))
        steps.append(Step("relu", tuple(inputs), {}, bytes=data.draw(st.integers(0, 9))))
    tape = Tape(tuple(steps), frozenset(data.draw(st.sets(st.integers(0, count - 1)))))
    first = data.draw(st.integers(0, count - 1))
    layer = RefitLayer(first, "w", None, sum=data.draw(st.none() | st.integers(first, count - 1)))
    assert tape.bytes_at(layer) == slow_bytes(tape, layer)


def test_the_memory_at_a_layer_of_a_network() -> None:
    network = nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, 50), nn.Linear(50, 1))
    tape = tape_of(network, torch.randn(3, 10))
    assert [tape.bytes_at(layer) for layer in tape.refit_layers()] == [4 * 3 * n for n in (100, 100 + 50, 50 + 1)]
