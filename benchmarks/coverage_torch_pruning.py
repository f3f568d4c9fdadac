"""Torch-Pruning on one network, with the same checks as for secateur."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor, nn

from coverage_checks import CUT_SHARE, agree, difference, macs, parameters, trains
from coverage_networks import build


def prune(full_name: str, record: dict[str, Any]) -> None:
    """Halve every group with Torch-Pruning as in its README, and compare the result with the masked original.

    Fills in the record, `stage` by stage. The `outcome` is "ok"; "wrong" (the output differs from that of the masked
    network); "statistics" (the same, where channels under a norm over channels were removed, which changes its
    statistics); or "too little" (less than 30 % of the parameters were removed).
    """
    import torch_pruning

    model, example = build(full_name)
    original = copy.deepcopy(model)
    before = parameters(model), macs(original, example)
    record |= {"side": example.shape[-1], "params": before[0], "stage": "prune"}
    started = time.perf_counter()
    last = [m for m in model.modules() if getattr(m, "out_features", getattr(m, "out_channels", None)) == 1000]
    pruner = torch_pruning.pruner.BasePruner(
        model,
        example[:1],
        importance=torch_pruning.importance.RandomImportance(),
        pruning_ratio=0.5,
        ignored_layers=last or output_layers(model, example),
    )
    values = {name: tensor.detach().clone() for name, tensor in _floats(model)}
    for _, tensor in _floats(model):  # each entry becomes its own index, so that the rest shows which were removed
        tensor.data = torch.arange(tensor.numel(), dtype=torch.float64).view_as(tensor)
    pruner.step()
    record["seconds"] = round(time.perf_counter() - started, 2)
    kept = {name: tensor.detach().long() for name, tensor in _floats(model)}
    _fill(model, values, kept)
    record["params_removed"] = round(1 - parameters(model) / before[0], 4)
    record["stage"] = "forward"
    record["macs_removed"] = round(1 - macs(model, example) / before[1], 4)
    record["stage"] = "train"
    trains(model, example)
    _fill(model, values, kept)  # training changed the norm statistics
    record["stage"] = "compare"
    masked = mask(original, kept)
    record["mask_changes"] = difference(masked, original, example)
    record["difference"], equal = agree(model, masked, example)
    if record["params_removed"] < CUT_SHARE:
        record["outcome"] = "too little"
    elif equal:
        record["outcome"] = "ok"
    else:
        record["outcome"] = "statistics" if _statistics_changed(original, kept) else "wrong"


def output_layers(model: nn.Module, example: Tensor) -> list[nn.Module]:
    """Return the layers that produce an output of the network, as secateur traces them: they must keep their width."""
    import secateur as sc

    groups = sc.trace(model, example).groups
    kept = [group for group in groups if any("output of the network" in reason.text for reason in group.reasons)]
    return [model.get_submodule(name) for group in kept for name in group.producers]


def mask(original: nn.Module, kept: dict[str, Tensor]) -> nn.Module:
    """Return a copy with every removed entry zeroed; variances stay, since zeroed channels do not depend on them."""
    masked = copy.deepcopy(original)
    for name, tensor in _floats(masked):
        if name.endswith("running_var"):
            continue
        kept_here = torch.zeros(tensor.numel(), dtype=torch.bool)
        kept_here[kept[name].flatten()] = True
        tensor.data = tensor.detach() * kept_here.view_as(tensor)
    return masked


def _floats(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(n, t) for n, t in (*model.named_parameters(), *model.named_buffers()) if t.is_floating_point()]


def _fill(model: nn.Module, values: dict[str, Tensor], kept: dict[str, Tensor]) -> None:
    for name, tensor in _floats(model):
        tensor.data = values[name].flatten()[kept[name]]


def _statistics_changed(original: nn.Module, kept: dict[str, Tensor]) -> bool:
    """Return whether channels under a norm over channels were removed: any norm but those of each channel alone."""
    for name, module in original.named_modules():
        weight = getattr(module, "weight", None)
        kind = type(module).__name__.lower()
        alone = any(word in kind for word in ("batch", "instance", "filterresponse"))
        if "norm" in kind and not alone and weight is not None and kept[f"{name}.weight"].numel() < weight.numel():
            return True
    return False
