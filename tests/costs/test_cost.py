"""Parameters and MACs against a slow count by hooks; latency leaves the model unchanged."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from secateur._torch import Convolution
from secateur.channels.graph import ChannelGraph, Group
from secateur.costs.cost import Cost, LayerCost, Share, cost, magnitude, shares
from secateur.costs.timing import Latency, latency
from secateur.errors import SecateurError
from secateur.network.modules import Slot
from secateur.tracing.trace import trace


def counted_by_hand(model: nn.Module, *args: Any) -> dict[str, int]:
    """The oracle: for each call of a conv or linear layer, one MAC per output element and weight that enters it."""
    macs: dict[str, int] = {}

    def hook(name: str) -> Any:
        def count(module: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            if isinstance(module, nn.Linear):
                work = output.numel() * module.in_features
            elif isinstance(module, Convolution) and module.transposed:
                # Each input element is multiplied by every weight of its channel.
                work = inputs[0].numel() * module.weight[0].numel()
            else:
                work = output.numel() * module.weight[0].numel()
            macs[name] = macs.get(name, 0) + work

        return count

    model = copy.deepcopy(model).eval()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Convolution):
            module.register_forward_hook(hook(name))
    with torch.no_grad():
        model(*args)
    return macs


class Doubled(nn.Conv2d):
    """A user-defined layer."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


LAYERS = {
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2), (2, 4, 17)),
    "conv2d": (nn.Conv2d(4, 6, 3, padding=1), (2, 4, 9, 8)),
    "conv3d": (nn.Conv3d(2, 3, (1, 2, 3)), (1, 2, 4, 5, 6)),
    "grouped": (nn.Conv2d(8, 12, 3, groups=4), (2, 8, 9, 9)),
    "depthwise": (nn.Conv2d(8, 16, 3, groups=8, dilation=2), (2, 8, 9, 9)),
    "reflect padding": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (1, 4, 9, 9)),
    "one image, no batch": (nn.Conv2d(4, 6, 3), (4, 9, 9)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
    "transposed, grouped": (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (2, 4, 5, 5)),
    "linear": (nn.Linear(7, 5), (3, 7)),
    "linear without bias": (nn.Linear(7, 5, bias=False), (3, 7)),
    "linear on tokens": (nn.Linear(7, 5), (2, 3, 4, 7)),
    "linear on one vector": (nn.Linear(7, 5), (7,)),
    "custom subclass": (Doubled(4, 6, 3), (2, 4, 9, 9)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_single_layers(name: str) -> None:
    layer, shape = LAYERS[name]
    model, example = nn.Sequential(nn.Identity(), layer), torch.zeros(shape)
    counted = cost(model, example)
    params = sum(parameter.numel() for parameter in layer.parameters())
    macs = counted_by_hand(model, example)["1"]
    assert counted.layers == {"1": LayerCost(params, macs)}
    assert (counted.params, counted.macs) == (params, macs)
    assert counted.parameters["1.weight"] == LayerCost(layer.weight.numel(), macs)


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "mobilenet_v3_small", "googlenet", "shufflenet_v2_x0_5"])
def test_complete_networks(name: str) -> None:
    options = {"init_weights": False} if name == "googlenet" else {}
    model, example = torchvision.models.get_model(name, weights=None, **options), torch.zeros(1, 3, 64, 64)
    counted, expected = cost(model, example), counted_by_hand(model, example)
    assert {name: layer.macs for name, layer in counted.layers.items() if layer.macs} == expected
    assert counted.macs == sum(expected.values())
    assert counted.params == sum(parameter.numel() for parameter in model.parameters())
    assert counted.params == sum(layer.params for layer in counted.layers.values())


def test_the_published_cost_of_resnet18() -> None:
    counted = cost(torchvision.models.resnet18(), torch.zeros(1, 3, 224, 224))
    assert (counted.params, counted.macs) == (11_689_512, 1_814_073_344)
    assert str(counted) == "11.69 M parameters, 1.814 G MACs"


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.conv(x))


def test_a_layer_called_twice_counts_twice() -> None:
    counted = cost(Twice(), torch.zeros(1, 4, 5, 5))
    assert counted.layers == {"conv": LayerCost(148, 2 * 25 * 4 * 4 * 9)}


def test_a_tied_weight_has_its_parameters_once_and_its_macs_twice() -> None:
    model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.ReLU(), nn.Linear(5, 5, bias=False))
    model[2].weight = model[0].weight
    counted = cost(model, torch.zeros(1, 5))
    assert counted.params == 25
    assert counted.layers == {"0": LayerCost(25, 25), "2": LayerCost(0, 25)}
    assert counted.parameters == {"0.weight": LayerCost(25, 50)}


class Borrowing(nn.Module):
    """Uses the weight of a child in its own forward, and a bare parameter in a batched product."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(6, 4)
        self.mix = nn.Parameter(torch.zeros(2, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(F.linear(x, self.child.weight, self.child.bias), self.mix)


def test_macs_count_for_the_running_module_and_for_the_weight() -> None:
    counted = cost(Borrowing(), torch.zeros(2, 5, 6))
    assert counted.layers == {"": LayerCost(24, 2 * 5 * 6 * 4 + 2 * 5 * 4 * 3), "child": LayerCost(28, 0)}
    assert counted.parameters["child.weight"].macs == 2 * 5 * 6 * 4
    assert counted.parameters["mix"].macs == 2 * 5 * 4 * 3


def test_attention_products_are_left_out() -> None:
    model = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    tokens, projections = 2 * 5, 8 * 24 + 8 * 8 + 8 * 16 + 16 * 8
    assert cost(model, torch.zeros(2, 5, 8)).macs == tokens * projections


class Choosing(nn.Module):
    """Depends on the values of its input, so that it must be run on the example itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum().item() == 0 else x


def test_a_network_that_depends_on_values_is_run_on_the_example() -> None:
    model = Choosing()
    assert cost(model, torch.zeros(2, 5, 8)).macs == cost(model.layer, torch.zeros(2, 5, 8)).macs
    assert cost(model, torch.ones(2, 5, 8)).macs == 0
    assert model.layer.training


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"sum": self.left(x) + self.right(y)}


@pytest.mark.parametrize("kind", [tuple, list, lambda pair: dict(zip("xy", pair, strict=True))])
def test_several_inputs(kind: Any) -> None:
    example = kind((torch.zeros(2, 3), torch.zeros(2, 5)))
    assert cost(Pair(), example).macs == 2 * (12 + 20)
    assert latency(Pair(), example, runs=2, warmup=0).runs == 2


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_wrappers_are_ignored(wrap: Any) -> None:
    model = Pair()
    assert cost(wrap(model), (torch.zeros(2, 3), torch.zeros(2, 5))) == cost(
        model, (torch.zeros(2, 3), torch.zeros(2, 5))
    )


def test_the_model_is_unchanged() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
    model[1].eval()
    model[0].weight.requires_grad_(False)
    state, seen = copy.deepcopy(model.state_dict()), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    cost(model, torch.zeros(1, 3, 8, 8))
    assert seen == []  # the hook belongs to the user's model, not to our copy
    assert [module.training for module in model] == [True, False, True]
    assert [len(module._forward_hooks) for module in model] == [1, 0, 0]
    assert not model[0].weight.requires_grad
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_counting_needs_no_memory() -> None:
    with torch.device("meta"):
        model = nn.Linear(1_000_000, 1_000_000)
        example = torch.zeros(1000, 1_000_000)
    assert cost(model, example).macs == 10**15


def test_a_wrong_example_is_explained() -> None:
    with pytest.raises(SecateurError, match=r"fails on an example of shape \(1, 4, 8, 8\).*\n  remedy: "):
        cost(nn.Conv2d(3, 4, 3), torch.zeros(1, 4, 8, 8))
    with pytest.raises(SecateurError, match="fails on an example"):
        latency(nn.Conv2d(3, 4, 3), torch.zeros(1, 4, 8, 8))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_lazy_model_is_refused() -> None:
    with pytest.raises(SecateurError, match="no shape yet"):
        cost(nn.LazyConv2d(4, 3), torch.zeros(1, 3, 8, 8))


def test_latency_restores_threads_modes_and_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model[0].eval()
    threads, tracked = torch.get_num_threads(), model[1].num_batches_tracked.clone()
    timed = latency(model, torch.zeros(1, 3, 8, 8), runs=7, warmup=1, threads=2)
    assert 0 < timed.q25_ms <= timed.median_ms <= timed.q75_ms
    assert (timed.runs, timed.threads) == (7, 2)
    assert "7 runs, 2 threads" in str(timed)
    assert torch.get_num_threads() == threads
    assert [module.training for module in model] == [False, True]
    assert model[1].num_batches_tracked == tracked


@pytest.mark.parametrize(
    ("ms", "text"), [(0.01234, "0.0123 ms"), (41.26, "41.3 ms"), (99.96, "100 ms"), (1270.4, "1270 ms")]
)
def test_latency_as_text(ms: float, text: str) -> None:
    assert str(Latency(ms, ms, ms, 30, 1)) == f"{text} ({text[:-3]} to {text[:-3]}, 30 runs, 1 thread)"


@pytest.mark.parametrize("options", [{"runs": 0}, {"warmup": -1}, {"threads": 0}])
def test_invalid_counts_of_latency_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(SecateurError, match="cannot time"):
        latency(nn.Linear(2, 2), torch.zeros(1, 2), **options)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1 k"), (11_689_512, "11.69 M"), (1.8141e9, "1.814 G")]
)
def test_magnitude(number: float, text: str) -> None:
    assert magnitude(number) == text


@dataclass
class Marked:
    """The oracle of `shares`: mark every element of the group, then count the marks."""

    graph: ChannelGraph
    counted: Cost

    def share(self, group: Group) -> Share:
        marks = {name: np.zeros(self.graph.shapes[name], bool) for name in self.counted.parameters}
        for slot, units in zip(group.slots, group.indices, strict=True):
            for unit in units:
                for position in unit:
                    if slot.parameter in marks:
                        np.moveaxis(marks[slot.parameter], slot.axis, 0)[position] = True
        params = sum(int(mark.sum()) for mark in marks.values())
        macs = sum(mark.mean() * self.counted.parameters[name].macs for name, mark in marks.items())
        return Share(params / self.counted.params, macs / self.counted.macs)


def test_shares_of_resnet18() -> None:
    model, example = torchvision.models.resnet18(), torch.zeros(1, 3, 64, 64)
    graph, counted = trace(model, example), cost(model, example)
    found = shares(graph, counted)
    assert set(found) == {group.name for group in graph.groups}
    for group in graph.groups:
        expected = Marked(graph, counted).share(group)
        assert (found[group.name].params, found[group.name].macs) == pytest.approx((expected.params, expected.macs))


def test_shares_of_a_square_weight_that_one_group_holds_on_both_axes() -> None:
    group = Group("0", (Slot("0.weight", 0), Slot("0.weight", 1)), (((0,), (2,)), ((1,), (3,))))
    graph = ChannelGraph((group,), {"0.weight": (4, 4)}, ())
    counted = cost(nn.Sequential(nn.Linear(4, 4, bias=False)), torch.zeros(1, 4))
    assert shares(graph, counted) == {"0": Share(0.75, 0.75)}
