"""A model as a flat program of ATen calls, which tracing follows and graph output rewrites."""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx, nn

from secateur._torch import (
    AUTOCAST_BLOCK,
    NO_GRAD_BLOCK,
    enter_autocast,
    exit_autocast,
    is_data_dependent,
    pytree,
    set_grad_enabled,
)
from secateur.errors import SecateurError, first_line, users_line
from secateur.network.examples import Example, call_arguments, clone, doubled, free_batch, named_arguments
from secateur.network.modules import exclusive, named_tensors, stand_in
from secateur.network.operations import op_name


class ExportError(SecateurError):
    """The model cannot be exported as a whole."""


@dataclass
class Program:
    """One mode (evaluation or training) of a model: `get_attr` nodes are its tensors, `placeholder` nodes its inputs.

    Attributes:
        graph: the calls.
        tensors: the parameters, buffers and constants that the graph uses.
        registered: the names of the model's parameters and buffers; other tensors are constants.
        modules: the modules of the model by name.
        in_spec, out_spec: how inputs and outputs are nested.
        dynamic: whether the batch size is dynamic.
    """

    graph: fx.Graph
    tensors: dict[str, Tensor]
    registered: frozenset[str]
    modules: dict[str, nn.Module]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    dynamic: bool

    @property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all tensors that it returns, in order."""
        (results,) = next(node for node in self.graph.nodes if node.op == "output").args
        values = [node.meta.get("val") for node in pytree.tree_leaves(results) if isinstance(node, fx.Node)]
        return [tuple(map(int, value.shape)) for value in values if isinstance(value, Tensor)]


def export_modes(model: nn.Module, example: Example, *, dynamic: bool = False) -> tuple[list[Program], list[str]]:
    """Return the evaluation program and, if it can be exported, the training program; and notes on what is missing.

    Args:
        model: the network.
        example: its inputs.
        dynamic: try a dynamic batch size first.
    """
    programs, notes = [export(model, example, dynamic=dynamic)], []
    if dynamic and not programs[0].dynamic:
        notes.append("the batch size could not be made dynamic: it is that of the example")
    try:
        programs.append(export(model, example, train=True, dynamic=dynamic))
    except SecateurError as error:
        notes.append(f"training mode could not be exported, so only evaluation is covered: {error.cause}")
    return programs, notes


def export(model: nn.Module, example: Example, *, train: bool = False, dynamic: bool = False) -> Program:
    """Return the program of one mode; `dynamic` tries a dynamic batch size before that of the example."""
    args, kwargs = call_arguments(doubled(example) if train else example)
    with suppress_output():
        if dynamic:
            several = pytree.tree_map(clone, call_arguments(doubled(example)))  # the export leaves marks on them
            shapes = free_batch(*several)
            with contextlib.suppress(Exception):
                copy = named_arguments(stand_in(model).train(train), several[1])
                exported = torch.export.export(copy, *several, dynamic_shapes=shapes, strict=False)
                return _program(model, exported, dynamic=True)
        try:
            exported = torch.export.export(stand_in(model).train(train), args, kwargs, strict=False)
        except Exception as error:
            raise _export_error(error, model) from error
        return _program(model, exported, dynamic=False)


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Silence the long report that torch.export prints on a failure; our own error names the line.

    One thread at a time: torch.export patches torch while it runs.
    """
    with exclusive():
        before = logging.root.manager.disable
        logging.disable(logging.ERROR)
        try:
            with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(before)


def _program(model: nn.Module, exported: torch.export.ExportedProgram, *, dynamic: bool) -> Program:
    """Return a copy of the exported graph in which lifted parameters are attributes again."""
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
            continue  # a block is inlined where it is called; checks of the example's sizes are dropped
        elif node.target in (NO_GRAD_BLOCK, AUTOCAST_BLOCK):
            copied[node] = _inline_block(graph, exported.graph_module, node, copied)
        elif node.target is operator.getitem and isinstance(copied[node.args[0]], tuple):
            copied[node] = copied[node.args[0]][node.args[1]]
        elif node.op == "output":
            graph.output(pytree.tree_map(lambda a: copied.get(a, a) if isinstance(a, fx.Node) else a, node.args[0]))
        elif any(arg not in copied for arg in node.all_input_nodes):
            raise SecateurError(
                f"its program has a block ({node.target}) that secateur cannot follow",
                layer=type(model).__name__,
                remedy="trace the parts of the network around it, or write it without torch.cond and similar blocks",
            )
        else:
            copied[node] = graph.node_copy(node, copied.__getitem__)
    return Program(
        graph=graph,
        tensors=tensors,
        registered=frozenset(named_tensors(model)),
        modules=dict(model.named_modules(remove_duplicate=False)),
        in_spec=exported.call_spec.in_spec,
        out_spec=exported.call_spec.out_spec,
        dynamic=dynamic,
    )


def _inline_block(graph: fx.Graph, home: fx.GraphModule, call: fx.Node, copied: dict[Any, Any]) -> Any:
    """Copy a block that runs without gradients or under autocast into the program, between calls that switch these."""
    at = next(i for i, arg in enumerate(call.args) if isinstance(arg, fx.Node) and arg.op == "get_attr")
    settings, block, args = call.args[:at], list[Any](call.args)[at], call.args[at + 1 :]
    inner: fx.Graph = getattr(home, str(block.target)).graph
    autocast = call.target is AUTOCAST_BLOCK
    state = graph.call_function(enter_autocast if autocast else set_grad_enabled, settings)
    inputs = [node for node in inner.nodes if node.op == "placeholder"]
    mapping = {node: copied[arg] for node, arg in zip(inputs, args, strict=True)}
    for node in inner.nodes:
        if node.op not in ("placeholder", "output") and not op_name(node).startswith("assert"):
            mapping[node] = graph.node_copy(node, mapping.__getitem__)
    graph.call_function(exit_autocast if autocast else set_grad_enabled, (state,))
    (results,) = next(node for node in inner.nodes if node.op == "output").args
    return tuple(mapping[node] for node in results)


def _attribute(model: nn.Module, name: str) -> Tensor | None:
    try:
        found = reduce(getattr, name.split("."), model)
    except AttributeError:
        return None
    return found if isinstance(found, Tensor) else None


def _export_error(error: Exception, model: nn.Module) -> ExportError:
    """Return an error that names the line of the user's own code at which the export stopped."""
    where, line = users_line(error)
    branches = is_data_dependent(error)
    cause = "its forward branches on the values of a tensor" if branches else "torch.export cannot follow it"
    return ExportError(
        f"{cause}{where and f' at {where}: {line}'} ({first_line(error)})",
        layer=type(model).__name__,
        remedy="let branches depend on shapes or attributes only (torch.where selects by values), or check that "
        "the example has the shape and type that forward expects",
    )
