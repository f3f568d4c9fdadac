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
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
        kept = kept.contiguous(memory_format=torch.channels_last)
    if isinstance(tensor, nn.Parameter):
        parameter = nn.Parameter(kept, requires_grad=tensor.requires_grad)
        parameter.__dict__.update(tensor.__dict__)  # marks such as "no weight decay"
        return parameter
    return kept


def silence(tensors: dict[str, Tensor], plan: Plan) -> None:
    """Set the input slices of removed channels to zero."""
    with torch.no_grad():
        for slot in plan.reads:
            tensor = tensors[slot.parameter]
            gone = sorted(set(range(tensor.shape[slot.axis])) - set(plan.kept[slot]))
            tensor.index_fill_(slot.axis, torch.tensor(gone, device=tensor.device), 0)
