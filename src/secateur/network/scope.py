"""Parts of a larger model: the submodules of a scope as a network of their own, and the inputs that they get."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.errors import SecateurError, UsageError
from secateur.network.batches import Call, as_batches, batch_size, forward, take, whole_calls
from secateur.network.modules import mode, named_tensors

SCOPE_REMEDY = "give the names of submodules as in model.named_modules(), such as scope='backbone'"


class ScopeNetwork(nn.Module):
    """Submodules of a model under their own names, so that their parameters are named as in the model.

    One submodule takes its own arguments. Several take one pair (args, kwargs) each, and return a tuple.
    """

    def __init__(self, model: nn.Module, paths: Sequence[str]) -> None:
        super().__init__()
        self._paths = tuple(paths)
        for path in paths:
            *parents, last = path.split(".")
            place: nn.Module = self
            for name in parents:
                if name not in dict(place.named_children()):
                    place.add_module(name, nn.Module())
                place = place.get_submodule(name)
            place.add_module(last, model.get_submodule(path))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(self._paths) == 1:
            return self.get_submodule(self._paths[0])(*args, **kwargs)
        calls = zip(self._paths, args, strict=True)
        return tuple(self.get_submodule(path)(*given[0], **given[1]) for path, given in calls)


def scope_paths(model: nn.Module, scope: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the submodules that a scope means: names or patterns; parts of another one are left out.

    >>> scope_paths(detector, ["backbone", "rpn.head"])
    ('backbone', 'rpn.head')
    """
    patterns = [scope] if isinstance(scope, str) else list(scope)
    names = [name for name, _ in model.named_modules() if name]
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4) or names[:3]
            raise UsageError(
                f"the scope {pattern!r} matches no submodule",
                layer=type(model).__name__,
                remedy=f"{SCOPE_REMEDY}; nearest: {', '.join(close)}",
            )
        chosen |= dict.fromkeys(found)
    if not chosen:
        raise UsageError("the scope is empty", layer=type(model).__name__, remedy=SCOPE_REMEDY)
    paths = tuple(one for one in names if one in chosen and not any(one.startswith(f"{two}.") for two in chosen))
    _check_tensors(model, paths)
    return paths


def _check_tensors(model: nn.Module, paths: Sequence[str]) -> None:
    """Refuse a scope without parameters, and one that shares a parameter with the rest of the model."""
    inside = {id(tensor): name for path in paths for name, tensor in named_tensors(model.get_submodule(path)).items()}
    if not any(True for path in paths for _ in model.get_submodule(path).parameters()):
        raise UsageError("the scope has no parameters", layer=", ".join(paths), remedy=SCOPE_REMEDY)
    for name, module in model.named_modules():
        if not any(name == path or name.startswith(f"{path}.") for path in paths):
            for own, tensor in module.named_parameters(name, recurse=False):
                if id(tensor) in inside:
                    raise UsageError(
                        f"the scope shares {inside[id(tensor)]} with {own}, which is outside of it",
                        layer=", ".join(paths),
                        remedy="choose a scope that contains both",
                    )


def capture(model: nn.Module, paths: Sequence[str], calls: Sequence[Call], most: int | None = None) -> list[Call]:
    """Run the whole model in evaluation mode, and return the arguments that the submodules get, as calls of the scope.

    >>> capture(detector, ["backbone"], [(([image, other],), {})])

    A submodule that runs several times in a call has to get inputs of one kind; each run counts as a batch.

    Args:
        paths: the names of the submodules.
        calls: arguments of the whole model.
        most: where a call gives a submodule more samples than this, a random part of them.
    """
    found, generator = list[Call](), torch.Generator().manual_seed(0)
    for call in calls:
        seen: dict[str, list[Call]] = {path: [] for path in paths}
        with _recording(model, paths, seen), mode(model, False), torch.no_grad():
            forward(model, call)
        for path, own in seen.items():
            _check_runs(path, own)
        for together in zip(*_same_number(seen), strict=True):
            one: Call = together[0] if len(paths) == 1 else (tuple(together), {})
            if most is not None and (size := batch_size(one)) > most:
                one = take(one, torch.randperm(size, generator=generator)[:most])
            found.append(one)
    return found


def inputs_of(model: nn.Module, paths: Sequence[str], data: Any) -> list[Any]:
    """Return the inputs that the submodules get from data of the whole model, batch by batch, as examples.

    >>> inputs_of(detector, ["backbone"], [([image, other], targets)])
    """
    captured = capture(model, paths, list(whole_calls(as_batches(data))))
    return [args or kwargs for args, kwargs in captured]


def put_back(whole: nn.Module, part: nn.Module) -> None:
    """Copy the values of all tensors of a part into the tensors of the same names in the whole model."""
    own = named_tensors(whole)
    with torch.no_grad():
        for name, tensor in named_tensors(part).items():
            own[name].copy_(tensor)


@contextmanager
def _recording(model: nn.Module, paths: Sequence[str], seen: dict[str, list[Call]]) -> Iterator[None]:
    """Note the arguments of each run of the submodules; their own parts must not run outside of them."""
    depth = 0

    def before(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal depth
            depth += 1
            if depth == 1:
                seen[path].append(_copied(_uniform(module, args, kwargs)))

        return hook

    def after(path: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal depth
            depth -= 1
            if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(output)):
                raise SecateurError(
                    f"it returns {'None' if output is None else 'no tensor'}, so a cut of it cannot be compared",
                    layer=path,
                    remedy="choose a submodule that returns tensors, such as the one around it",
                )

        return hook

    def outside(name: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            if not depth:
                raise SecateurError(
                    "it also runs outside of the scope, so a cut of the scope could change it",
                    layer=name,
                    remedy="choose a larger scope, or this submodule itself",
                )

        return hook

    with ExitStack() as stack:
        for path in paths:
            part = model.get_submodule(path)
            for name, module in part.named_modules(prefix=path):
                if module is not part:
                    stack.enter_context(_removed(module.register_forward_pre_hook(outside(name))))
            stack.enter_context(_removed(part.register_forward_pre_hook(before(path), with_kwargs=True)))
            stack.enter_context(_removed(part.register_forward_hook(after(path))))
        yield


@contextmanager
def _removed(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def _uniform(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return the arguments all by position or all by keyword."""
    if not args or not kwargs:
        return args, kwargs
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    if not bound.kwargs:
        return bound.args, {}
    kinds = {name: one.kind for name, one in inspect.signature(module.forward).parameters.items()}
    named = {name: value for name, value in bound.arguments.items() if kinds[name] is not inspect.Parameter.VAR_KEYWORD}
    return (), named | kwargs


def _copied(call: Call) -> Call:
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, call)


def _check_runs(path: str, runs: Sequence[Call]) -> None:
    if not runs:
        raise SecateurError(
            "it never runs on this data in evaluation mode",
            layer=path,
            remedy="choose a submodule that the model calls, not a container whose parts it calls",
        )
    kinds = {(str(pytree.tree_structure(one)), tuple(_kinds(one))): None for one in runs}
    if len(kinds) > 1:
        shapes = " and ".join(", ".join("x".join(map(str, shape)) for shape, _ in found) for _, found in kinds)
        raise SecateurError(
            f"it runs {len(runs)} times in one forward pass, with inputs of different shapes: {shapes}",
            layer=path,
            remedy="choose the submodule around it, which runs once",
        )


def _kinds(call: Call) -> Iterator[tuple[tuple[int | str, ...], torch.dtype]]:
    """Yield shape and type of each tensor, without the number of samples, which may differ."""
    for leaf in pytree.tree_leaves(call):
        if isinstance(leaf, Tensor):
            yield (*("n" for _ in leaf.shape[:1]), *leaf.shape[1:]), leaf.dtype


def _same_number(seen: dict[str, list[Call]]) -> list[list[Call]]:
    """Return the runs of several submodules, which have to go together: as often, and on as many samples."""
    runs = list(seen.values())
    sizes = {path: [batch_size(one) for one in own] for path, own in seen.items()}
    if len({tuple(own) for own in sizes.values()}) > 1:
        found = ", ".join(f"{path} on {' and '.join(map(str, own))}" for path, own in sizes.items())
        raise SecateurError(
            f"the submodules of the scope run on different numbers of samples: {found}",
            layer=", ".join(seen),
            remedy="prune them one after the other, each in a scope of its own",
        )
    return runs
