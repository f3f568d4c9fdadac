"""What a plan does to a single tensor: fewer rows and columns, or zeros in their place."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.plan import Plan


def smaller(tensor: Tensor, name: str, plan: Plan) -> Tensor:
    """The rows and columns of a tensor that stay, of the same kind as the tensor."""
    kept = tensor.detach()
    for slot, indices in plan.kept.items():
        if slot.parameter == name:
            kept = kept.index_select(slot.axis, torch.tensor(indices, device=tensor.device))
            if slot in plan.scales:
                kept = kept * _factors(plan.scales[slot], slot.axis, kept)
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
        kept = kept.contiguous(memory_format=torch.channels_last)
    if isinstance(tensor, nn.Parameter):
        parameter = nn.Parameter(kept, requires_grad=tensor.requires_grad)
        parameter.__dict__.update(tensor.__dict__)  # marks such as "no weight decay"
        return parameter
    return kept


def silence(tensors: dict[str, Tensor], plan: Plan) -> None:
    """Set the input slices of removed channels to zero, and scale those that stay as the plan says."""
    with torch.no_grad():
        for slot in plan.reads:
            tensor = tensors[slot.parameter]
            gone = sorted(set(range(tensor.shape[slot.axis])) - set(plan.kept[slot]))
            tensor.index_fill_(slot.axis, torch.tensor(gone, dtype=torch.int64, device=tensor.device), 0)
            if slot in plan.scales:
                stays = torch.tensor(plan.kept[slot], device=tensor.device)
                scaled = tensor.index_select(slot.axis, stays)
                tensor.index_copy_(slot.axis, stays, scaled * _factors(plan.scales[slot], slot.axis, scaled))


def _factors(scales: tuple[float, ...], axis: int, like: Tensor) -> Tensor:
    """One factor for each index of the axis, shaped so that it multiplies along it."""
    return torch.tensor(scales, dtype=like.dtype, device=like.device).view(
        [-1 if d == axis else 1 for d in range(like.dim())]
    )
