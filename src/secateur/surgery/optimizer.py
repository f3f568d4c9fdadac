"""Carry the state of an optimizer over to the smaller network."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from secateur.checks import known_keywords
from secateur.errors import SecateurError
from secateur.network.modules import named_tensors, unwrap
from secateur.surgery.plan import Plan
from secateur.surgery.slices import cut_tensor


@known_keywords
def cut_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, small: nn.Module, plan: Plan
) -> torch.optim.Optimizer:
    """Return the optimizer for the cut network, with its settings, step counts and momentum.

    >>> small = sc.cut(model, plan)
    >>> optimizer = sc.cut_optimizer(optimizer, model, small, plan)

    Args:
        optimizer: the optimizer of the original network; it is not changed.
        model: the original network.
        small: the cut network.
        plan: the plan that it was cut by.
    """
    plan = replace(plan, scales={})  # momentum belongs to the gradient, not to the weight: it is cut, not scaled
    olds, news = named_tensors(unwrap(model)), named_tensors(unwrap(small))
    names = {id(tensor): name for name, tensor in olds.items()}
    memo: dict[int, Any] = {}
    for param in (param for group in optimizer.param_groups for param in group["params"]):
        name = names.get(id(param))
        if name is None or name not in news:
            raise SecateurError(
                f"a parameter of shape {tuple(param.shape)} in the optimizer has no counterpart in the cut network",
                layer=name,
                remedy="pass the optimizer of this model; a graph cut that replaces computed weights needs a new one",
            )
        memo[id(param)] = news[name]
        for key, state in optimizer.state.get(param, {}).items():
            if not isinstance(state, Tensor) or name not in plan.shapes or not state.dim():
                continue
            if state.shape != param.shape:
                raise SecateurError(
                    f"the optimizer's {key} has shape {tuple(state.shape)}, the parameter {tuple(param.shape)}",
                    layer=name,
                    remedy=f"build a new {type(optimizer).__name__} for the cut network",
                )
            memo[id(state)] = cut_tensor(state, name, plan)
    return copy.deepcopy(optimizer, memo)
