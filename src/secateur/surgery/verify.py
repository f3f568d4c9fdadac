"""Verify a cut: the smaller network against the masked original."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.checks import known_keywords
from secateur.errors import SecateurError
from secateur.network.batches import Call, calls
from secateur.network.examples import revive
from secateur.network.footprint import split_to_fit
from secateur.network.modules import duplicate, mode, unwrap
from secateur.network.outputs import without_outputs
from secateur.network.scope import ScopeNetwork, inputs_of
from secateur.surgery import rewrite
from secateur.surgery.cut import check_plan, cut, mask
from secateur.surgery.plan import Plan

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}


@known_keywords
def verify(model: nn.Module, plan: Plan, data: Any, *, tolerance: float | None = None) -> float:
    """Return the largest relative difference between the cut and the masked network on real inputs.

    >>> sc.verify(model, plan, images)
    3.1e-07

    Args:
        model: the original network.
        plan: the plan to verify.
        data: a tensor or a tuple of arguments (one batch), or an iterable of batches; labels are ignored.
        tolerance: raise an error above this difference. In single precision it is first measured again in double
            precision, where it must be at most 1e-9, since a deep network can amplify rounding.
    """
    if plan.scope:
        whole = unwrap(model)
        inputs = inputs_of(whole, plan.scope, data)
        return verify(ScopeNetwork(whole, plan.scope), replace(plan, scope=()), inputs, tolerance=tolerance)
    inner = without_outputs(unwrap(model), plan.free_outputs)
    batches = list(calls(data, example=revive(plan.example)))
    if not batches:
        raise SecateurError("there is no data to verify on", remedy="pass at least one batch of inputs")
    worst = _difference(inner, plan, batches)
    if tolerance is None or worst <= tolerance:
        return worst
    if all(p.dtype == torch.float32 for p in inner.parameters() if p.is_floating_point()):
        doubled = pytree.tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, batches)
        if _difference(duplicate(inner).double(), plan, doubled) <= TOLERANCE[torch.float64]:
            return worst
    if (own := _own_difference(inner, batches)) > 0:
        raise SecateurError(
            f"forward is random: two evaluations of the original on the same batch differ by {own:.1e} (relative), so "
            "no cut can be verified",
            layer=type(inner).__name__,
            remedy="make forward deterministic in evaluation mode: F.dropout(x, training=self.training), no random "
            "numbers",
        )
    raise SecateurError(
        f"the cut network differs from the masked one by {worst:.1e} (relative), more than {tolerance:.0e}",
        layer=type(inner).__name__,
        remedy="this is a bug in secateur: please report the network; keep=[...] can exclude the layer",
    )


def tolerance_for(model: nn.Module) -> float:
    """Return the tolerance for the precision of a model's parameters."""
    dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return max([TOLERANCE.get(dtype, 1e-4) for dtype in dtypes], default=1e-4)


def _difference(model: nn.Module, plan: Plan, batches: list[Call]) -> float:
    pairs: list[tuple[nn.Module, nn.Module]]
    if plan.output == "graph":
        check_plan(model, plan)
        programs = rewrite.programs_of(model, revive(plan.example, like=model))
        pairs = [(rewrite.cut_programs(programs, plan), rewrite.mask_programs(programs, plan))]
        pairs.append((rewrite.build(programs), model))  # the program itself must equal the model
    else:
        pairs = [(cut(model, plan), mask(model, plan))]
    worst = 0.0
    for one, other in pairs:
        with mode(one, False), mode(other, False), torch.no_grad():
            for args, kwargs in split_to_fit(other, batches):
                worst = max(worst, relative_difference(one(*args, **kwargs), other(*args, **kwargs)))
    return worst


def _own_difference(model: nn.Module, batches: list[Call]) -> float:
    """Return how far two evaluations of a model on the same batches differ: 0 unless forward is random."""
    with mode(model, False), torch.no_grad():
        return max(relative_difference(model(*args, **kwargs), model(*args, **kwargs)) for args, kwargs in batches)


def relative_difference(found: Any, expected: Any) -> float:
    """Return the largest difference over the largest expected value, the worst of all output tensors."""
    worst = 0.0
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        if not isinstance(b, Tensor):
            continue
        if a.shape != b.shape:
            raise SecateurError(f"the cut network returns shape {tuple(a.shape)}, the masked one {tuple(b.shape)}")
        if not a.is_floating_point() and not a.is_complex():  # masks and indices
            a, b = a.double(), b.double()
        if not torch.isfinite(b).all():
            raise SecateurError("the network's output is NaN or infinite", remedy="check the weights and the inputs")
        if b.numel():
            scale = b.abs().max().item()
            gap = (a - b).abs().max().item()
            if math.isnan(gap):
                return math.inf  # one of the two is NaN where the other is not
            worst = max(worst, gap / scale if scale else gap)
    return worst
