"""Every private torch API that secateur uses, under a public name: a new torch release can break this file only."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormWithStatistics
from torch.nn.modules.conv import _ConvNd as Convolution
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

__all__ = [
    "AUTOCAST_BLOCK",
    "CONVOLUTION_OPS",
    "NO_GRAD_BLOCK",
    "BatchNorm",
    "Convolution",
    "NormWithStatistics",
    "TorchDispatchMode",
    "clear_forward_hooks",
    "enter_autocast",
    "exit_autocast",
    "flop_registry",
    "forward_hooks",
    "has_unknown_size",
    "is_data_dependent",
    "is_exported",
    "keys_of",
    "op_base_name",
    "op_schema_arguments",
    "overload_of",
    "pytree",
    "recompute_weight",
    "remove_forward_hooks",
    "set_grad_enabled",
    "size_hint",
    "uncompiled",
    "unobserved",
    "version_of",
]

NO_GRAD_BLOCK = torch.ops.higher_order.wrap_with_set_grad_enabled
AUTOCAST_BLOCK = torch.ops.higher_order.wrap_with_autocast
CONVOLUTION_OPS = {
    torch.ops.aten.convolution,
    torch.ops.aten._convolution,
    torch.ops.aten.cudnn_convolution,
    torch.ops.aten._slow_conv2d_forward,
}
enter_autocast = torch.amp.autocast_mode._enter_autocast
exit_autocast = torch.amp.autocast_mode._exit_autocast


@fx.node.has_side_effect
def set_grad_enabled(on: bool) -> bool:
    """Switch the recording of gradients and return the previous state; callable from an fx program."""
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(on)
    return before


def uncompiled(model: nn.Module) -> nn.Module | None:
    """Return the module inside a `torch.compile` wrapper, None if the model is not compiled."""
    return model._orig_mod if isinstance(model, torch._dynamo.OptimizedModule) else None


def is_exported(model: Any) -> bool:
    """Tell whether an object is an exported program, or its module, which has no modes of its own."""
    return isinstance(model, torch.export.ExportedProgram) or (
        isinstance(model, fx.GraphModule) and "eval" in vars(model)
    )


def size_hint(n: Any) -> Any:
    """Return the size in the example behind a symbolic size, 0 if it depends on values; any other value unchanged."""
    return int(n.node.hint or 0) if isinstance(n, torch.SymInt) else n


def has_unknown_size(value: Any) -> bool:
    """Tell whether a tensor has a size that depends on the values of tensors, or a number is such a size."""
    numbers = value.shape if isinstance(value, Tensor) else (value,)
    symbols = (torch.SymInt, torch.SymBool, torch.SymFloat)
    return any(isinstance(number, symbols) and number.node.hint is None for number in numbers)


def op_base_name(target: Any) -> str | None:
    """Return `relu_` for `aten.relu_.default`, `mylib::gate` for an op of another library, None for a function."""
    name = getattr(target, "_opname", None)
    return name if name is None or target.namespace == "aten" else f"{target.namespace}::{name}"


def op_schema_arguments(target: Any) -> list[str]:
    """Return the names of an op's arguments, in order."""
    return [argument.name for argument in target._schema.arguments]


def overload_of(packet: Any, target: Any) -> Any:
    """Return the overload of an op packet that has the same overload name as the target."""
    return getattr(packet, target._overloadname)


def unobserved() -> AbstractContextManager[None]:
    """Return a `with` block whose calls no torch function mode sees."""
    return torch._C.DisableTorchFunction()


def version_of(tensor: Tensor) -> int:
    """Return how often the tensor was written in place; unequal versions mean that it was overwritten."""
    return tensor._version


def clear_forward_hooks(module: nn.Module) -> None:
    """Remove every forward hook of one module."""
    module._forward_hooks.clear()
    module._forward_pre_hooks.clear()


def forward_hooks(module: nn.Module, kind: type) -> list[Any]:
    """Return the forward hooks of one module that are objects of a class."""
    return [hook for hook in module._forward_hooks.values() if isinstance(hook, kind)]


def remove_forward_hooks(module: nn.Module, kind: type) -> None:
    """Remove the forward hooks of one module that are objects of a class."""
    for key in [key for key, hook in module._forward_hooks.items() if isinstance(hook, kind)]:
        del module._forward_hooks[key]


def keys_of(spec: pytree.TreeSpec) -> list[str]:
    """Return the keys of the parts of a nested value: of a dict or named tuple its names, of others the positions."""
    context: Any = getattr(spec.context, "_fields", spec.context)  # a named tuple has its class as context
    known = isinstance(context, list | tuple) and len(context) == spec.num_children
    named = known and all(isinstance(key, str | int) for key in context)
    return [str(key) for key in (context if named else range(spec.num_children))]


def recompute_weight(module: nn.Module) -> None:
    """Compute the weight of a layer under the old `nn.utils.weight_norm`, which else waits for the next forward."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            setattr(module, hook.name, hook.compute_weight(module))


def is_data_dependent(error: Exception) -> bool:
    """Tell from its text whether an error of torch.export is about a branch on the values of a tensor."""
    return any(sign in str(error) for sign in ("data-dependent", "Could not guard", "unbacked"))
