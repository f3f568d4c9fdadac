"""A model as a flat program of ATen calls: the text that tracing reads and graph output rewrites."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import operator
import os
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from secateur.errors import SecateurError
from secateur.ops import op_name

NO_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
AUTOCAST = torch.ops.higher_order.wrap_with_autocast
TORCH = str(Path(torch.__file__).parent) + os.sep
Example = Any  # a tensor, a tuple of arguments, or a dict of keyword arguments


@dataclass
class Program:
    """One mode (eval or train) of a model: `get_attr` nodes are its tensors, `placeholder` nodes its inputs."""

    graph: fx.Graph
    tensors: dict[str, Tensor]
    registered: frozenset[str]  # the tensors that are parameters or buffers; the others are plain constants
    modules: dict[str, nn.Module]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    dynamic: bool  # the batch size is free


def call_arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that an example stands for."""
    if isinstance(example, dict):
        return (), example
    if isinstance(example, tuple | list):
        return tuple(example), {}
    return (example,), {}


def unwrap(model: nn.Module) -> nn.Module:
    """The user's network inside `torch.compile` or `DataParallel` wrappers."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(model, torch._dynamo.OptimizedModule):
            model = model._orig_mod
        else:
            return model


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer under its first name; a tied tensor stands once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def owner(name: str) -> str:
    """The module that a tensor belongs to: `conv1` for `conv1.weight` and for its parametrized parts."""
    return name.split(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]


def check_finite(model: nn.Module) -> None:
    """Refuse NaN and infinite weights: no cut of such a network can be verified."""
    for name, tensor in named_tensors(model).items():
        if tensor.is_floating_point() and not tensor.is_meta and not torch.isfinite(tensor.detach()).all():
            bad = int((~torch.isfinite(tensor.detach())).sum())
            raise SecateurError(
                f"{bad} of {tensor.numel()} values of {name} are NaN or infinite",
                layer=owner(name) or type(model).__name__,
                remedy="load sound weights; a diverged training run leaves such values behind",
            )


def doubled(example: Example) -> Example:
    """The example with two points at least, which norms in training mode and a free batch size need."""

    def double(leaf: Any) -> Any:
        single = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == 1
        return torch.cat([leaf, leaf]) if single else leaf

    return pytree.tree_map(double, example)


def export(model: nn.Module, example: Example, *, train: bool = False, dynamic: bool = False) -> Program:
    """Export one mode of the model; with `dynamic`, first with a free batch size, else with the example's."""
    args, kwargs = call_arguments(doubled(example) if train else example)
    with mode(model, train), silence():
        if dynamic:
            several = pytree.tree_map(clone, call_arguments(doubled(example)))  # the export leaves marks on them
            with contextlib.suppress(Exception):
                exported = torch.export.export(model, *several, dynamic_shapes=free_batch(*several), strict=False)
                return _program(model, exported, dynamic=True)
        try:
            exported = torch.export.export(model, args, kwargs, strict=False)
        except Exception as error:
            raise _refusal(error, model) from error
        return _program(model, exported, dynamic=False)


def free_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first axis of every input tensor may have any size."""
    shapes = torch.export.ShapesCollection()
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and leaf.dim():
            shapes[leaf] = {0: torch.export.Dim.DYNAMIC}
    return shapes


def clone(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """torch.export prints its own long account of a failure; ours names the line."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def mode(model: nn.Module, train: bool) -> Iterator[None]:
    """Put every module into one mode for a while."""
    before = {module: module.training for module in model.modules()}
    model.train(train)
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def describe(example: Example) -> Any:
    """An example without its values, as plain data."""
    if isinstance(example, Tensor):
        return {"shape": list(example.shape), "dtype": str(example.dtype).removeprefix("torch.")}
    if isinstance(example, tuple | list):
        return [describe(part) for part in example]
    if isinstance(example, dict):
        return {"arguments": {name: describe(part) for name, part in example.items()}}
    return example


def revive(description: Any) -> Example:
    """An example of zeros from its description."""
    if isinstance(description, dict) and "shape" in description:
        return torch.zeros(description["shape"], dtype=getattr(torch, description["dtype"]))
    if isinstance(description, dict):
        return {name: revive(part) for name, part in description["arguments"].items()}
    if isinstance(description, list):
        return tuple(revive(part) for part in description)
    return description


def _program(model: nn.Module, exported: torch.export.ExportedProgram, *, dynamic: bool) -> Program:
    """Copy the exported graph, its lifted parameters turned back into attributes."""
    signature = exported.graph_signature
    lifted: dict[str, str] = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    first_name = {id(tensor): name for name, tensor in reversed(named_tensors(model).items())}
    tensors: dict[str, Tensor] = {}
    graph = fx.Graph()
    copied: dict[Any, Any] = {}
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in lifted:
            if not node.users:
                continue
            tensor = _attribute(model, lifted[node.name])
            if tensor is None:
                tensor = exported.constants[lifted[node.name]]
            name = first_name.get(id(tensor), lifted[node.name])
            tensors[name] = tensor
            copied[node] = graph.create_node("get_attr", name, name=node.name)
            copied[node].meta = dict(node.meta)
        elif node.op == "get_attr" or op_name(node).startswith("assert"):
            continue  # a block of the program is copied where it is called; checks of the example's sizes fall away
        elif node.target in (NO_GRADIENTS, AUTOCAST):
            copied[node] = _inline_block(graph, exported.graph_module, node, copied)
        elif node.target is operator.getitem and isinstance(copied[node.args[0]], tuple):
            copied[node] = copied[node.args[0]][node.args[1]]
        elif node.op == "output":
            graph.output(pytree.tree_map(lambda a: copied.get(a, a) if isinstance(a, fx.Node) else a, node.args[0]))
        elif any(arg not in copied for arg in node.all_input_nodes):
            raise SecateurError(
                f"its program has a block ({node.target}) that secateur cannot follow",
                layer=type(model).__name__,
                remedy="trace the parts of the network around it, or write it without torch.cond and its kin",
            )
        else:
            copied[node] = graph.node_copy(node, copied.__getitem__)
    modules = dict(model.named_modules(remove_duplicate=False))
    return Program(
        graph,
        tensors,
        frozenset(named_tensors(model)),
        modules,
        exported.call_spec.in_spec,
        exported.call_spec.out_spec,
        dynamic,
    )


@fx.node.has_side_effect
def switch_gradients(on: bool) -> bool:
    """Record gradients from here on, or not; gives what held before."""
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(on)
    return before


def _inline_block(graph: fx.Graph, home: fx.GraphModule, call: fx.Node, copied: dict[Any, Any]) -> Any:
    """Copy a block that runs without gradients or under autocast into the program itself, its switches around it."""
    place = next(i for i, arg in enumerate(call.args) if isinstance(arg, fx.Node) and arg.op == "get_attr")
    settings, block, args = call.args[:place], list[Any](call.args)[place], call.args[place + 1 :]
    inner: fx.Graph = getattr(home, str(block.target)).graph
    if call.target is AUTOCAST:
        switch = graph.call_function(torch.amp.autocast_mode._enter_autocast, settings)
    else:
        switch = graph.call_function(switch_gradients, settings)
    places = [node for node in inner.nodes if node.op == "placeholder"]
    mapping = {node: copied[arg] for node, arg in zip(places, args, strict=True)}
    for node in inner.nodes:
        if node.op not in ("placeholder", "output") and not op_name(node).startswith("assert"):
            mapping[node] = graph.node_copy(node, mapping.__getitem__)
    if call.target is AUTOCAST:
        graph.call_function(torch.amp.autocast_mode._exit_autocast, (switch,))
    else:
        graph.call_function(switch_gradients, (switch,))
    (results,) = next(node for node in inner.nodes if node.op == "output").args
    return tuple(mapping[node] for node in results)


def _attribute(model: nn.Module, name: str) -> Tensor | None:
    try:
        found = reduce(getattr, name.split("."), model)
    except AttributeError:
        return None
    return found if isinstance(found, Tensor) else None


def users_line(error: Exception) -> tuple[str, str]:
    """Where in the user's own code an error arose, and the line itself."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(TORCH)]
    frames = [f for f in frames if Path(f.filename).parent != Path(__file__).parent]
    return (f"{frames[-1].filename}:{frames[-1].lineno}", frames[-1].line or "") if frames else ("", "")


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def _refusal(error: Exception, model: nn.Module) -> SecateurError:
    """Name the line of the user's own code at which the export stopped."""
    where, line = users_line(error)
    data_dependent = "data-dependent" in str(error) or "Could not guard" in str(error) or "unbacked" in str(error)
    cause = "its forward branches on the values of a tensor" if data_dependent else "torch.export cannot follow it"
    return SecateurError(
        f"{cause}{where and f' at {where}: {line}'} ({first_line(error)})",
        layer=type(model).__name__,
        remedy="make the branch depend on shapes or attributes only (torch.where, torch.cond), check that the example "
        "has the shape and type that forward expects, or trace the part of the network that can be exported",
    )


def meta_copy(model: nn.Module) -> nn.Module:
    """A copy of the model without storage: shapes only, for trials that cost nothing."""
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return duplicate(model, memo)


def duplicate(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy of the model; tensors in the memo are replaced by what it has for them."""
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise SecateurError(
            f"the model cannot be copied: {first_line(error)}",
            layer=type(model).__name__,
            remedy="remove what deepcopy refuses: tensors that are results of a computation (old weight_norm and prune "
            "hooks make such: use torch.nn.utils.parametrizations, or prune.remove), open files, locks",
        ) from error
