"""Checks of a cut network, for the property tests and for the long benchmark."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import secateur as sc
from secateur._torch import Convolution, NormWithStatistics, pytree
from support.networks.architectures import Spec, build

TOLERANCE = 1e-9
DROPOUTS = nn.modules.dropout._DropoutNd
COMPUTED = ("weight_norm", "standardised")  # blocks whose weights a graph plan replaces by their values
CHANGED = 1e-9  # if the masked network is this close to the original, the comparison proves nothing


@dataclass(frozen=True)
class Checked:
    """The result for one network: whether it could be cut, the worst difference, the share of removed parameters."""

    cut: bool
    difference: float = 0.0
    removed: float = 0.0


def check(spec: Spec) -> Checked:
    """Trace, cut and verify the network of a spec; an AssertionError names the check that failed."""
    network, example = build(spec)
    before = copy.deepcopy(network.state_dict())
    graph = sc.trace(network, example, output=spec["output"])
    for group in graph.groups:
        assert group.prunable or all(str(reason) for reason in group.reasons), f"{group.name} is kept without a reason"
    if not graph.prunable:
        return Checked(cut=False)
    plan = sc.random_plan(graph, kept=spec["kept"], seed=spec["seed"])
    small = sc.cut(network, plan)
    baked = spec["output"] == "graph" and any(kind in COMPUTED for kind, *_ in spec["blocks"])
    often = spec["output"] == "module" or baked or spec["seed"] % 4 == 0  # a graph plan exports the network each time
    masked = sc.mask(network, plan) if baked else zeroed(network, plan)
    found = compare(small, masked, example)
    assert found <= TOLERANCE, f"the cut network differs from the masked one by {found:.1e}"
    if often:
        difference = compare(sc.mask(network, plan), masked, example)
        assert difference <= TOLERANCE, f"mask is off by {difference:.1e}"
        difference = sc.verify(network, plan, example)
        assert difference <= TOLERANCE, f"verify reports {difference:.1e}, the outputs differ by {found:.1e}"
    assert all(torch.equal(a, b) for a, b in zip(before.values(), network.state_dict().values(), strict=True))
    removed = 1 - count(small) / count(network)
    assert removed > 0, "nothing was removed"
    in_training = math.inf if spec["auxiliary"] else 0.0
    if spec["output"] == "module" or not any(isinstance(m, DROPOUTS) for m in network.modules()):
        in_training = compare(training(masked), training(network), example)
        difference = compare(training(small), training(masked), example)
        assert difference <= TOLERANCE, f"in training the cut network differs from the masked one by {difference:.1e}"
    if any(group.consumers for group in graph.prunable):
        inputs = (
            example,
            *(tuple(3 * torch.randn_like(x) for x in example) for _ in range(3)),
        )  # one input may leave a ReLU inactive
        changed = in_training > CHANGED or any(compare(masked, network, x) > CHANGED for x in inputs)
        assert changed, "the masked network equals the original"
    for model in (small, training(small)):
        check_gradients(model, example)
    if spec["output"] == "module":
        check_structure(network, small)
    check_attributes(small)
    return Checked(cut=True, difference=found, removed=removed)


def run(network: nn.Module, example: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the tensors of the output, however nested, with the same random dropout every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [leaf for leaf in pytree.tree_leaves(network(*example)) if isinstance(leaf, Tensor)]


@torch.no_grad()
def compare(left: nn.Module, right: nn.Module, example: tuple[Tensor, ...]) -> float:
    """Return the largest difference relative to the largest value, over all outputs, in the present modes."""
    worst = 0.0
    for a, b in zip(run(left, example), run(right, example), strict=True):
        assert a.shape == b.shape, f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
        assert bool(torch.isfinite(b).all()), "the network itself is not finite"
        found = float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))
        worst = max(worst, found if not math.isnan(found) else math.inf)
    return worst


@torch.no_grad()
def zeroed(network: nn.Module, plan: sc.Plan) -> nn.Module:
    """Return a copy with zeros where a layer consumes a removed channel, written independently of the package."""
    masked = copy.deepcopy(network)
    tensors = {**dict(masked.named_parameters(remove_duplicate=False)), **dict(masked.named_buffers())}
    for slot in plan.consumes:
        tensor = tensors[slot.parameter]
        for index in set(range(tensor.shape[slot.axis])) - set(plan.kept[slot]):
            tensor.select(slot.axis, index).zero_()
    return masked


def training(network: nn.Module) -> nn.Module:
    """Return a copy in training mode without dropout, whose rate is hard-coded in a graph cut."""
    model = copy.deepcopy(network).train()
    for module in model.modules():
        if isinstance(module, DROPOUTS):
            module.p = 0.0
    return model


def check_gradients(model: nn.Module, example: tuple[Tensor, ...]) -> None:
    """Check that forward and backward run and give gradients of the right shape."""
    learning = [p for p in model.parameters() if p.requires_grad]
    outputs = [t for t in run(model, example) if t.requires_grad]
    assert bool(outputs) == bool(learning)
    torch.stack([t.square().sum() for t in outputs]).sum().backward()
    gradients = [p for p in learning if p.grad is not None]
    assert gradients
    assert all(p.grad is not None and p.grad.shape == p.shape for p in gradients)
    model.zero_grad()


def check_structure(network: nn.Module, small: nn.Module) -> None:
    """Check that classes, names, modes, frozen and tied parameters are those of the original."""
    old, new = dict(network.named_modules()), dict(small.named_modules())
    assert list(old) == list(new)
    assert all(type(old[name]) is type(new[name]) and old[name].training == new[name].training for name in old)
    before = dict(network.named_parameters(remove_duplicate=False))
    after = dict(small.named_parameters(remove_duplicate=False))
    assert list(before) == list(after)
    assert all(before[name].requires_grad == after[name].requires_grad for name in before)
    assert ties(before) == ties(after)
    assert list(network.state_dict()) == list(small.state_dict())


def ties(parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """Return the names that share a parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    return sorted(group for group in names.values() if len(group) > 1)


def check_attributes(small: nn.Module) -> None:
    """Check that the size attributes of modules match their tensors."""
    for name, module in small.named_modules():
        for attribute, value, expected in sizes(module):
            assert value == expected, f"{name}.{attribute} is {value}, the tensors have {expected}"


def sizes(module: nn.Module) -> list[tuple[str, Any, Any]]:
    """Return each size attribute, its value, and the value that matches the tensors."""
    if isinstance(module, Convolution) and module.transposed:
        first, second = module.weight.shape[:2]
        return [*widths(module, second, first), ("groups", module.in_channels % module.groups, 0)]
    if isinstance(module, Convolution):
        first, second = module.weight.shape[:2]
        return [*widths(module, first // module.groups, second * module.groups), ("groups", first % module.groups, 0)]
    if isinstance(module, nn.Linear):
        features = (module.out_features, module.in_features)
        return [("out_features, in_features", features, tuple(module.weight.shape)), *bias(module, module.out_features)]
    if isinstance(module, NormWithStatistics):
        tensors = [t for t in (module.weight, module.bias, module.running_mean, module.running_var) if t is not None]
        return [("num_features", module.num_features, len(t)) for t in tensors]
    if isinstance(module, nn.GroupNorm):
        found = [("num_groups", module.num_channels % module.num_groups, 0)]
        return found + ([("num_channels", module.num_channels, len(module.weight))] if module.affine else [])
    if isinstance(module, nn.LayerNorm) and module.elementwise_affine:
        return [("normalized_shape", tuple(module.normalized_shape), tuple(module.weight.shape))]
    if isinstance(module, nn.PReLU):
        return [("num_parameters", module.num_parameters, len(module.weight))]
    return []


def widths(module: Any, out_each: int, inputs: int) -> list[tuple[str, Any, Any]]:
    outputs = out_each * module.groups
    found = [("in_channels", module.in_channels, inputs), ("out_channels", module.out_channels, outputs)]
    return [*found, *bias(module, outputs)]


def bias(module: Any, width: int) -> list[tuple[str, Any, Any]]:
    return [] if module.bias is None else [("bias", width, len(module.bias))]


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())
