"""Update the size attributes of modules (`out_channels`, `groups`, ...) after a cut."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from secateur._torch import Convolution, NormWithStatistics, recompute_weight
from secateur.network.modules import Slot, named_tensors
from secateur.surgery.plan import Plan


def update_attributes(model: nn.Module, small: nn.Module, plan: Plan) -> None:
    """Set the size attributes of every module of a cut network to those of its tensors.

    Args:
        model: the original.
        small: its copy with the tensors already cut.
        plan: the plan of the cut.
    """
    names = {id(tensor): name for name, tensor in named_tensors(model).items()}
    widths: dict[str, dict[str, int]] = {}  # attributes of the user's modules that hold a width
    for slot, indices in plan.kept.items():
        owner, _, name = slot.parameter.rpartition(".")
        widths.setdefault(owner, {})[name] = len(indices)
    for (path, before), after in zip(model.named_modules(), small.modules(), strict=True):
        recompute_weight(after)
        if isinstance(after, Convolution):
            _update_convolution(before, after, _kept_rows(before, names, plan, min_dims=2))
        elif isinstance(after, nn.Linear):
            after.out_features, after.in_features = after.weight.shape
        elif isinstance(after, nn.Embedding):
            after.embedding_dim = after.weight.shape[1]
        elif isinstance(after, nn.PReLU):
            after.num_parameters = after.weight.shape[0]
        elif isinstance(after, nn.GroupNorm):
            rows = _kept_rows(before, names, plan, min_dims=1) or plan.kept.get(Slot(f"{path}.num_channels", 0))
            if rows:
                after.num_groups = _remaining_groups(before.num_groups, before.num_channels, rows)
                after.num_channels = len(rows)
        elif isinstance(after, NormWithStatistics):
            tensors = (after.weight, after.bias, after.running_mean, after.running_var)
            sizes = [tensor.shape[0] for tensor in tensors if isinstance(tensor, Tensor)]
            kept = plan.kept.get(Slot(f"{path}.num_features", 0), range(after.num_features))
            after.num_features = sizes[0] if sizes else len(kept)
        else:
            for name in vars(after).keys() & widths.get(path, {}).keys():
                setattr(after, name, widths[path][name])


def _update_convolution(before: nn.Module, after: Convolution, rows: Sequence[int] | None) -> None:
    assert isinstance(before, Convolution)
    if rows:
        size = before.in_channels if before.transposed else before.out_channels
        after.groups = _remaining_groups(before.groups, size, rows)
    first, second = after.weight.shape[0], after.weight.shape[1] * after.groups
    after.in_channels, after.out_channels = (first, second) if after.transposed else (second, first)


def _kept_rows(module: nn.Module, names: dict[int, str], plan: Plan, min_dims: int) -> Sequence[int] | None:
    """Return the kept indices along the first axis of a module's weight, parametrized or not, tied or not.

    `min_dims` excludes the bias of a transposed convolution, whose first axis counts other channels.
    """
    for tensor in [*module.parameters(recurse=False), *module.parameters()]:
        rows = plan.kept.get(Slot(names.get(id(tensor), ""), 0))
        if rows is not None and tensor.dim() >= min_dims and tensor.shape[0] > 1:
            return rows
    return None


def _remaining_groups(groups: int, size: int, rows: Sequence[int]) -> int:
    """Return how many groups have a kept row: groups are removed as a whole, or all keep the same channels."""
    return len({row // (size // groups) for row in rows})
