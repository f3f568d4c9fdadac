"""Keep what modules say of themselves (`out_channels`, `groups`, ...) true to their tensors after a cut."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from secateur.plan import Plan
from secateur.program import named_tensors
from secateur.ties import Slot


def follow_tensors(model: nn.Module, small: nn.Module, plan: Plan) -> None:
    """Set the size attributes of every module of the cut copy."""
    names = {id(tensor): name for name, tensor in named_tensors(model).items()}
    for (path, before), after in zip(model.named_modules(), small.modules(), strict=True):
        if isinstance(after, _ConvNd):
            _convolution(before, after, _kept_rows(before, names, plan, least_axes=2))
        elif isinstance(after, nn.Linear):
            after.out_features, after.in_features = after.weight.shape
        elif isinstance(after, nn.Embedding):
            after.embedding_dim = after.weight.shape[1]
        elif isinstance(after, nn.PReLU):
            after.num_parameters = after.weight.shape[0]
        elif isinstance(after, nn.GroupNorm):
            rows = _kept_rows(before, names, plan, least_axes=1) or plan.kept.get(Slot(f"{path}.num_channels", 0))
            if rows:
                after.num_groups = _groups_left(before.num_groups, before.num_channels, rows)
                after.num_channels = len(rows)
        elif isinstance(after, _NormBase):
            _norm(path, after, plan)


def _convolution(before: nn.Module, after: _ConvNd, rows: Sequence[int] | None) -> None:
    assert isinstance(before, _ConvNd)
    if rows:
        size = before.in_channels if before.transposed else before.out_channels
        after.groups = _groups_left(before.groups, size, rows)
    wide, narrow = after.weight.shape[0], after.weight.shape[1] * after.groups
    after.in_channels, after.out_channels = (wide, narrow) if after.transposed else (narrow, wide)


def _norm(path: str, after: _NormBase, plan: Plan) -> None:
    tensors = [t for t in (after.weight, after.bias, after.running_mean, after.running_var) if isinstance(t, Tensor)]
    if tensors:
        after.num_features = tensors[0].shape[0]
    else:
        after.num_features = len(plan.kept.get(Slot(f"{path}.num_features", 0), range(after.num_features)))


def _kept_rows(module: nn.Module, names: dict[int, str], plan: Plan, least_axes: int) -> Sequence[int] | None:
    """The kept indices along the first axis of the module's weight, parametrized or not, tied or not.

    least_axes: tells a convolution's weight from its bias, which counts other channels if the layer is transposed.
    """
    for tensor in [*module.parameters(recurse=False), *module.parameters()]:
        rows = plan.kept.get(Slot(names.get(id(tensor), ""), 0))
        if rows is not None and tensor.dim() >= least_axes and tensor.shape[0] > 1:
            return rows
    return None


def _groups_left(groups: int, size: int, rows: Sequence[int]) -> int:
    """How many groups still have a member: whole groups go, or every group keeps the same pattern."""
    return len({row // (size // groups) for row in rows})
