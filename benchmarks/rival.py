"""Torch-Pruning on one network, and an honest look at what it made."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor, nn

from judge import CUT_SHARE, agree, difference, macs, parameters, trains
from networks import build


def prune(full_name: str, record: dict[str, Any]) -> None:
    """Halve every group with Torch-Pruning as its README does, and compare the result with the masked original.

    Fills in the record, `stage` by stage. The `outcome` is ok; wrong (the output is not that of the masked network);
    statistics (the same, and channels under a norm over channels went, whose statistics change with them); too
    little (under 30 % of the parameters went).
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
        ignored_layers=last,
    )
    values = {name: tensor.detach().clone() for name, tensor in _floats(model)}
    for _, tensor in _floats(model):  # each entry becomes its own position, so that what is left tells what went
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
    _fill(model, values, kept)  # training moved the norm statistics
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


def mask(original: nn.Module, kept: dict[str, Tensor]) -> nn.Module:
    """Zero every entry of a copy of the network that did not survive; variances stay, nothing reads them any more."""
    masked = copy.deepcopy(original)
    for name, tensor in _floats(masked):
        if name.endswith("running_var"):
            continue
        survives = torch.zeros(tensor.numel(), dtype=torch.bool)
        survives[kept[name].flatten()] = True
        tensor.data = tensor.detach() * survives.view_as(tensor)
    return masked


def _floats(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(n, t) for n, t in (*model.named_parameters(), *model.named_buffers()) if t.is_floating_point()]


def _fill(model: nn.Module, values: dict[str, Tensor], kept: dict[str, Tensor]) -> None:
    for name, tensor in _floats(model):
        tensor.data = values[name].flatten()[kept[name]]


def _statistics_changed(original: nn.Module, kept: dict[str, Tensor]) -> bool:
    """Tell whether channels under a norm over channels went: any norm but those that look at each channel alone."""
    for name, module in original.named_modules():
        weight = getattr(module, "weight", None)
        kind = type(module).__name__.lower()
        alone = any(word in kind for word in ("batch", "instance", "filterresponse"))
        if "norm" in kind and not alone and weight is not None and kept[f"{name}.weight"].numel() < weight.numel():
            return True
    return False
