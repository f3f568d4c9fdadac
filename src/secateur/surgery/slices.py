"""What a plan does to a single tensor: it cuts rows and columns, or sets them to zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.surgery.plan import Plan


def cut_tensor(tensor: Tensor, name: str, plan: Plan) -> Tensor:
    """Return the rows and columns of a tensor that the plan keeps; a parameter stays a parameter."""
    kept = tensor.detach()
    for slot, indices in plan.kept.items():
        if slot.parameter == name:
            kept = kept.index_select(slot.axis, torch.tensor(indices, device=tensor.device))
            if slot in plan.scales:
                kept = kept * _factors(plan.scales[slot], slot.axis, kept)
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
        kept = kept.contiguous(memory_format=torch.channels_last)
    if not isinstance(tensor, nn.Parameter):
        return kept
    parameter = nn.Parameter(kept, requires_grad=tensor.requires_grad)
    parameter.__dict__.update(tensor.__dict__)  # marks such as "no weight decay"
    return parameter


@torch.no_grad()
def mask_tensors(tensors: dict[str, Tensor], plan: Plan) -> None:
    """Zero the slices that consume removed channels, and scale those that consume kept ones as the plan says."""
    for slot in plan.consumes:
        tensor = tensors[slot.parameter]
        removed = sorted(set(range(tensor.shape[slot.axis])) - set(plan.kept[slot]))
        tensor.index_fill_(slot.axis, torch.tensor(removed, dtype=torch.int64, device=tensor.device), 0)
        if slot in plan.scales:
            kept = torch.tensor(plan.kept[slot], device=tensor.device)
            slices = tensor.index_select(slot.axis, kept)
            tensor.index_copy_(slot.axis, kept, slices * _factors(plan.scales[slot], slot.axis, slices))


def _factors(scales: tuple[float, ...], axis: int, like: Tensor) -> Tensor:
    """Return one factor for each index of an axis, in a shape that multiplies along it."""
    factors = torch.tensor(scales, dtype=like.dtype, device=like.device)
    return factors.view([-1 if d == axis else 1 for d in range(like.dim())])
