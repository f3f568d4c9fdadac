"""Surgery: a plan and a model give a smaller model, or the same model with those channels silenced."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur import rewrite
from secateur.attributes import follow_tensors
from secateur.batches import Call, calls
from secateur.errors import SecateurError
from secateur.plan import Plan
from secateur.program import check_finite, duplicate, mode, named_tensors, revive, unwrap
from secateur.slices import silence, smaller
from secateur.ties import Slot

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}


def cut(model: nn.Module, plan: Plan) -> nn.Module:
    """A new, smaller module of the same class; the original is untouched.

    >>> small = sc.cut(model, plan)

    A plan made with `output="graph"` gives the rewritten program as a module with the same parameter names.
    """
    inner = unwrap(model)
    check_plan(inner, plan)
    check_finite(inner)
    if plan.output == "graph":
        return rewrite.cut_programs(rewrite.programs_of(inner, example_for(inner, plan)), plan)
    return wrap_like(model, cut_module(inner, plan))


def cut_module(model: nn.Module, plan: Plan) -> nn.Module:
    """Copy the model with its tensors already replaced by their smaller selves: ties come out right by themselves."""
    memo: dict[int, Any] = {}
    tensors = named_tensors(model)
    for name in plan.shapes:
        if name in tensors:
            memo[id(tensors[name])] = smaller(tensors[name], name, plan)
    small = duplicate(model, memo)
    follow_tensors(model, small, plan)
    return small


def mask(model: nn.Module, plan: Plan) -> nn.Module:
    """The same function as `cut`, at full size: the layers that read a removed channel have zeros there."""
    inner = unwrap(model)
    check_plan(inner, plan)
    if plan.output == "graph":
        return rewrite.mask_programs(rewrite.programs_of(inner, example_for(inner, plan)), plan)
    masked = duplicate(inner)
    silence(named_tensors(masked), plan)
    return wrap_like(model, masked)


def verify(model: nn.Module, plan: Plan, data: Any, *, tolerance: float | None = None) -> float:
    """The largest relative difference between the cut and the masked network on real inputs.

    >>> sc.verify(model, plan, images)
    3.1e-07

    data: a tensor or tuple of arguments (one batch), or an iterable of batches; labels beside them are ignored.
    tolerance: a difference above it is an error. In single precision it is measured again in double precision
        first, since a deep network can amplify rounding; there 1e-9 is demanded.
    """
    inner = unwrap(model)
    batches = list(calls(data, example=revive(plan.example)))
    if not batches:
        raise SecateurError("there is no data to verify on", remedy="give at least one batch of inputs")
    worst = _difference(inner, plan, batches)
    if tolerance is None or worst <= tolerance:
        return worst
    if all(p.dtype == torch.float32 for p in inner.parameters() if p.is_floating_point()):
        exact = _difference(duplicate(inner).double(), plan, pytree.tree_map(_double, batches))
        if exact <= TOLERANCE[torch.float64]:
            return worst
    raise SecateurError(
        f"the cut network differs from the masked one by {worst:.1e} (relative), more than {tolerance:.0e}",
        layer=type(inner).__name__,
        remedy="this is a defect of secateur: please report the network; keep=[...] can exclude the layer",
    )


def tolerance_for(model: nn.Module) -> float:
    """The tolerance that belongs to the model's precision."""
    kinds = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return max([TOLERANCE.get(kind, 1e-4) for kind in kinds], default=1e-4)


def _difference(model: nn.Module, plan: Plan, batches: list[Call]) -> float:
    pairs: list[tuple[nn.Module, nn.Module]]
    if plan.output == "graph":
        check_plan(model, plan)
        programs = rewrite.programs_of(model, example_for(model, plan))
        pairs = [(rewrite.cut_programs(programs, plan), rewrite.mask_programs(programs, plan))]
        pairs.append((rewrite.build(programs), model))  # the program itself must be the model
    else:
        pairs = [(cut(model, plan), mask(model, plan))]
    worst = 0.0
    for one, other in pairs:
        with mode(one, False), mode(other, False), torch.no_grad():
            for args, kwargs in batches:
                worst = max(worst, relative_difference(one(*args, **kwargs), other(*args, **kwargs)))
    return worst


def relative_difference(found: Any, wanted: Any) -> float:
    """The largest difference over the largest value, for each output tensor; the worst of them."""
    worst = 0.0
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        if not isinstance(b, Tensor):
            continue
        if a.shape != b.shape:
            raise SecateurError(f"the cut network gives shape {tuple(a.shape)}, the masked one {tuple(b.shape)}")
        if not torch.isfinite(b).all():
            raise SecateurError("the network's output is NaN or infinite", remedy="check the weights and the inputs")
        if b.numel():
            scale = b.abs().max().item()
            gap = (a - b).abs().max().item()
            if math.isnan(gap):
                return math.inf  # one of the two is NaN where the other is not
            worst = max(worst, gap / scale if scale else gap)
    return worst


def cut_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, small: nn.Module, plan: Plan
) -> torch.optim.Optimizer:
    """The same optimizer for the cut network: settings, step counts and momentum carried over.

    >>> small = sc.cut(model, plan)
    >>> optimizer = sc.cut_optimizer(optimizer, model, small, plan)
    """
    plan = replace(plan, scales={})  # momentum is cut, not scaled: it belongs to the gradient, not to the weight
    olds, news = named_tensors(unwrap(model)), named_tensors(unwrap(small))
    names = {id(tensor): name for name, tensor in olds.items()}
    memo: dict[int, Any] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            name = names.get(id(param))
            if name is None or name not in news:
                raise SecateurError(
                    f"a parameter of shape {tuple(param.shape)} in the optimizer has no place in the cut network",
                    layer=name,
                    remedy="give the optimizer of this very model; a graph cut that bakes weights needs a new one",
                )
            memo[id(param)] = news[name]
            for key, state in optimizer.state.get(param, {}).items():
                if isinstance(state, Tensor) and name in plan.shapes and state.dim():
                    if state.shape != param.shape:
                        raise SecateurError(
                            f"the optimizer's {key} has shape {tuple(state.shape)}, the parameter {tuple(param.shape)}",
                            layer=name,
                            remedy=f"build a new {type(optimizer).__name__} for the cut network",
                        )
                    memo[id(state)] = smaller(state, name, plan)
    return copy.deepcopy(optimizer, memo)


def check_plan(model: nn.Module, plan: Plan) -> None:
    """Refuse a plan that does nothing, belongs to another network, or would empty a layer."""
    if not plan.kept:
        raise SecateurError("the plan is empty: it removes nothing", remedy="plan at least one channel to go")
    tensors = named_tensors(model)
    for name, shape in plan.shapes.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found is None and plan.output == "module":
            found = _width_attribute(model, name)
        if found is None and plan.output == "graph":
            continue  # a baked weight: the rewritten program is checked instead
        if found != shape:
            has = f"has {name} of shape {found}" if found else f"has no {name}"
            raise SecateurError(
                f"the plan is for another network: it expects {name} of shape {shape}, this network {has}",
                layer=name,
                remedy="use the plan with the network that it was made for, before any cut",
            )
    for slot, indices in plan.kept.items():
        _check_indices(slot, indices, plan.shapes)


def _check_indices(slot: Slot, indices: tuple[int, ...], shapes: dict[str, tuple[int, ...]]) -> None:
    shape = shapes.get(slot.parameter, ())
    if slot.axis >= len(shape):
        raise SecateurError(
            f"the plan names axis {slot.axis} of shape {shape}", layer=slot.parameter, remedy="plan again"
        )
    size = shape[slot.axis]
    if not indices:
        raise SecateurError(
            f"the plan would empty axis {slot.axis}", layer=slot.parameter, remedy="keep at least one channel"
        )
    if min(indices) < 0 or max(indices) >= size or len(set(indices)) != len(indices):
        raise SecateurError(
            f"index {max(indices)} is out of range or repeated along axis {slot.axis}",
            layer=slot.parameter,
            remedy=f"indices run from 0 to {size - 1}, each once",
        )


def _width_attribute(model: nn.Module, name: str) -> tuple[int, ...] | None:
    """The width of a norm that owns no tensor, written `norm.num_features`."""
    path, _, attribute = name.rpartition(".")
    try:
        width = getattr(model.get_submodule(path), attribute, None)
    except AttributeError:
        return None
    return (width,) if isinstance(width, int) else None


def example_for(model: nn.Module, plan: Plan) -> Any:
    """The example of the plan again, as zeros of the model's own precision and device."""
    own = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return pytree.tree_map(
        lambda leaf: leaf.to(own.device, own.dtype if _is_float(leaf) else None) if isinstance(leaf, Tensor) else leaf,
        revive(plan.example),
    )


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _double(leaf: Any) -> Any:
    return leaf.double() if _is_float(leaf) else leaf


def wrap_like(model: nn.Module, inner: nn.Module) -> nn.Module:
    """Put a module into the wrapper that the user's model came in."""
    if isinstance(model, nn.DataParallel):
        return nn.DataParallel(wrap_like(model.module, inner), model.device_ids or None)
    if isinstance(model, torch._dynamo.OptimizedModule):
        return torch.compile(wrap_like(model._orig_mod, inner))  # type: ignore[return-value]
    return inner
