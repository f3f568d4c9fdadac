"""Apply a plan: cut a model to a smaller one, or mask it at full size."""

from __future__ import annotations

import functools

import torch
from torch import nn

from secateur._torch import uncompiled
from secateur.checks import known_keywords
from secateur.errors import SecateurError
from secateur.network.examples import revive
from secateur.network.modules import Slot, check_finite, duplicate, named_tensors, owner, unwrap
from secateur.network.outputs import without_outputs
from secateur.surgery import rewrite
from secateur.surgery.attributes import update_attributes
from secateur.surgery.plan import Plan
from secateur.surgery.selected import can_select, select_inputs
from secateur.surgery.slices import cut_tensor, mask_tensors

HISTORY = "_secateur_cuts"  # attribute of a cut network: its plans as JSON texts, which any pickle can hold


@known_keywords
def cut(model: nn.Module, plan: Plan) -> nn.Module:
    """Return a new, smaller network without the channels that the plan removes.

    >>> small = sc.cut(model, plan)

    Args:
        model: the network that the plan was made for; it is not changed.
        plan: the channels to keep. With `output="module"` the result has the class of the model, with
            `output="graph"` it is the rewritten program as a module with the same parameter names.
    """
    inner = unwrap(model)
    check_plan(inner, plan)
    check_finite(inner)
    small: nn.Module
    if plan.output == "graph":
        small = rewrite.cut_programs(_programs(inner, plan), plan)
    else:
        small = cut_module(inner, plan)
    setattr(small, HISTORY, (*getattr(inner, HISTORY, ()), plan.to_json()))
    return small if plan.output == "graph" else wrap_like(model, small)


def plan_from_original(model: nn.Module, plan: Plan) -> Plan:
    """Return the plan from the original network to this one, which was cut by `plan` last and maybe by others before.

    >>> res = sc.prune(model, images, budget={"params": "50%"})
    >>> again = sc.prune(res.model, images, budget={"params": "50%"})
    >>> sc.cut(model, plan_from_original(again.model, again.plan))  # of the sizes of again.model

    Args:
        model: a network that `cut` returned, or a copy of it.
        plan: its last plan; or one that removes nothing; or any other plan, which is returned as it is.
    """
    cuts = [Plan.from_json(text) for text in getattr(unwrap(model), HISTORY, ())]
    if not cuts or (plan.kept and plan != cuts[-1]):
        return plan
    try:
        return functools.reduce(Plan.then, cuts)
    except SecateurError as error:
        raise SecateurError(
            f"the network was cut {len(cuts)} times, and its plans cannot be combined: {error.cause}",
            layer=error.layer,
            remedy="prune the original once, down to the last size, or store this network with torch.save",
        ) from error


@known_keywords
def mask(model: nn.Module, plan: Plan) -> nn.Module:
    """Return a copy at full size that computes the same function as `cut`: removed channels are multiplied by zero.

    >>> masked = sc.mask(model, plan)

    Args:
        model: the network that the plan was made for; it is not changed.
        plan: the channels to keep.
    """
    inner = unwrap(model)
    check_plan(inner, plan)
    if plan.output == "graph":
        return rewrite.mask_programs(_programs(inner, plan), plan)
    masked = duplicate(inner)
    mask_tensors(named_tensors(masked), plan)
    return wrap_like(model, masked)


def _programs(model: nn.Module, plan: Plan) -> rewrite.Programs:
    return rewrite.programs_of(without_outputs(model, plan.free_outputs), revive(plan.example, like=model))


def free_outputs_of(network: nn.Module) -> tuple[str, ...]:
    """Return the outputs that need not equal the original's, by the plans that a network was cut with.

    >>> without_outputs(small, free_outputs_of(small))(images)
    """
    plans = [Plan.from_json(text) for text in getattr(unwrap(network), HISTORY, ())]
    return tuple(dict.fromkeys(one for plan in plans for one in plan.free_outputs))


def cut_module(model: nn.Module, plan: Plan) -> nn.Module:
    """Return a deep copy of the model in which tensors are replaced by their cut versions, shared ones once."""
    tensors = named_tensors(model)
    memo = {id(tensors[name]): cut_tensor(tensors[name], name, plan) for name in plan.shapes if name in tensors}
    small = duplicate(model, memo)
    update_attributes(model, small, plan)
    select_inputs(small, plan)
    return small


def check_plan(model: nn.Module, plan: Plan) -> None:
    """Raise an error for a plan that removes nothing, is for another network, or would empty a layer."""
    if not plan.kept:
        raise SecateurError("the plan is empty: it removes nothing", remedy="plan the removal of at least one channel")
    tensors = named_tensors(model)
    for name in plan.shapes:
        if name in tensors:
            plan.check_shape(name, tuple(tensors[name].shape))
        elif plan.output == "module":  # a computed weight of a graph plan is checked in the rewritten program
            plan.check_shape(name, _width_attribute(model, name))
    for slot, indices in plan.kept.items():
        _check_indices(slot, indices, plan.shapes.get(slot.parameter, ()))
    for slot in plan.selects:
        if slot not in plan.kept or not can_select(model.get_submodule(owner(slot.parameter))):
            raise SecateurError(
                "the plan selects inputs of a layer that is no plain linear layer or convolution",
                layer=slot.parameter,
                remedy="make the plan again, with the network that it is for",
            )


def _check_indices(slot: Slot, indices: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if slot.axis >= len(shape):
        cause, remedy = f"the plan has axis {slot.axis} of a tensor of shape {shape}", "make the plan again"
    elif not indices:
        cause, remedy = f"the plan would empty axis {slot.axis}", "keep at least one channel"
    elif min(indices) < 0 or max(indices) >= shape[slot.axis] or len(set(indices)) != len(indices):
        cause = f"index {max(indices)} is out of range or repeated along axis {slot.axis}"
        remedy = f"use each index from 0 to {shape[slot.axis] - 1} at most once"
    else:
        return
    raise SecateurError(cause, layer=slot.parameter, remedy=remedy)


def _width_attribute(model: nn.Module, name: str) -> tuple[int, ...] | None:
    """Return the width of a norm without tensors, whose name is `norm.num_features`."""
    path, _, attribute = name.rpartition(".")
    try:
        width = getattr(model.get_submodule(path), attribute, None)
    except AttributeError:
        return None
    return (width,) if isinstance(width, int) else None


def wrap_like(model: nn.Module, inner: nn.Module) -> nn.Module:
    """Return a module in the same wrappers (`DataParallel`, `torch.compile`) as a model."""
    if isinstance(model, nn.DataParallel):
        return nn.DataParallel(wrap_like(model.module, inner), model.device_ids or None)
    if (compiled := uncompiled(model)) is not None:
        return torch.compile(wrap_like(compiled, inner))  # type: ignore[return-value]
    return inner
