"""The parts of a model that can be exported where the whole cannot."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from secateur.channels.program import export
from secateur.errors import SecateurError
from secateur.network.batches import Call
from secateur.network.modules import duplicate, mode

LEAST = 0.05  # share of the parameters from which a part is worth naming
TRIES = 12  # exports, at most
NAMED = 3  # parts, at most


def exportable_parts(model: nn.Module, call: Call) -> dict[str, float]:
    """Return the largest submodules that can be exported, with their shares of the parameters, the largest first.

    >>> exportable_parts(detector, (([image],), {}))
    {'backbone': 0.65, 'roi_heads.box_head': 0.31}

    None of them is part of another one. They are found by running the whole model once.
    """
    total = sum(p.numel() for p in model.parameters()) or 1
    sizes = {name: sum(p.numel() for p in module.parameters()) / total for name, module in model.named_modules()}
    seen = _arguments(model, {name for name, size in sizes.items() if name and size >= LEAST}, call)
    found: dict[str, float] = {}
    tries = 0
    for name in sorted(seen, key=lambda name: (-sizes[name], name.count("."))):
        inside = any(name.startswith(f"{other}.") or other.startswith(f"{name}.") for other in found)
        if inside or tries == TRIES or len(found) == NAMED:
            continue
        tries += 1
        args, kwargs = seen[name]
        if not (args and kwargs) and _can_be_exported(model.get_submodule(name), args or kwargs):
            found[name] = sizes[name]
    return found


def in_parts(error: SecateurError, model: nn.Module, call: Call, cause: str | None = None) -> SecateurError:
    """Return an error that also names the parts of the model that can be pruned; the same error if there are none.

    Args:
        cause: what to say instead of the cause of the error.
    """
    parts = exportable_parts(model, call)
    if not parts:
        return error
    named = " or ".join(f"scope={name!r} ({share:.0%} of the parameters)" for name, share in parts.items())
    remedy = f"prune a part that can be exported: {named}"
    if cause is None and error.remedy:
        remedy += f"; or {error.remedy}"
    return SecateurError(cause or error.cause, layer=type(model).__name__, remedy=remedy)


def _arguments(model: nn.Module, names: set[str], call: Call) -> dict[str, Call]:
    """Return the arguments of the first run of each of these submodules; nothing if the model does not run."""
    copy, seen = duplicate(model), dict[str, Call]()

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.setdefault(name, (args, kwargs))

        return hook

    with ExitStack() as stack, mode(copy, False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            handle = copy.get_submodule(name).register_forward_pre_hook(note(name), with_kwargs=True)
            stack.callback(handle.remove)
        try:
            copy(*call[0], **call[1])
        except Exception:  # the caller reports why the model does not run
            return {}
    return seen


def _can_be_exported(module: nn.Module, example: Any) -> bool:
    try:
        export(module, example)
    except SecateurError:
        return False
    return True
