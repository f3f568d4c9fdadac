"""Graph output: cut the exported program itself, its written-down sizes rewritten from what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from secateur.errors import SecateurError
from secateur.labels import Value
from secateur.ops import CONVOLUTION, argument_names, op_name
from secateur.plan import Plan
from secateur.program import Example, Program, export
from secateur.rules import follow
from secateur.slices import silence, smaller
from secateur.ties import Ties

aten = torch.ops.aten


@dataclass
class Programs:
    """The evaluation and, where it can be had, the training program of one model."""

    programs: list[Program]
    notes: list[str]
    temporary: frozenset[str]  # buffers that are not saved
    training: bool


@dataclass(frozen=True)
class Compiled:
    """A program as a function; it never changes, so copies of a network share it."""

    run: Callable[..., Any]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return self


class GraphNetwork(nn.Module):
    """An exported program as a module: the model's parameter names, its inputs and outputs, eval and train mode."""

    def __init__(self, programs: Programs, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            _register(self, name, tensor, name in programs.temporary)
        self._programs = {
            train: Compiled(_compile(program.graph), program.in_spec, program.out_spec)
            for train, program in zip((False, True), programs.programs, strict=False)
        }
        self.train(programs.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        program = self._programs.get(self.training, self._programs[False])
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != program.in_spec:
            raise SecateurError(
                "the arguments are not arranged as in the example that the network was traced with",
                layer=type(self).__name__,
                remedy=f"call it with {program.in_spec}",
            )
        return pytree.tree_unflatten(program.run(self, *flat), program.out_spec)


def programs_of(model: nn.Module, example: Example) -> Programs:
    """Export both modes with a free batch size, computed weights replaced by plain ones."""
    if example is None:
        raise SecateurError("a graph cut needs the example that the network was traced with", remedy="trace again")
    evaluation = export(model, example, dynamic=True)
    notes = [] if evaluation.dynamic else ["the batch size could not be left free: it is that of the example"]
    programs = [evaluation]
    try:
        programs.append(export(model, example, train=True, dynamic=True))
    except SecateurError as error:
        notes.append(f"training mode could not be exported, so the cut network only evaluates: {error.cause}")
    baked: dict[str, Tensor] = {}
    for program in programs:
        _bake(program, baked)
    if baked:
        notes.append(f"the weights of {len(baked)} layers were computed in forward; they are now plain parameters")
    saved = set(model.state_dict())
    temporary = frozenset(name for name, _ in model.named_buffers() if name not in saved)
    return Programs(programs, notes, temporary, model.training)


def build(programs: Programs) -> GraphNetwork:
    """The program as it is, uncut."""
    return GraphNetwork(programs, {name: _clone(tensor, tensor) for name, tensor in _tensors(programs).items()})


def mask_programs(programs: Programs, plan: Plan) -> GraphNetwork:
    """The uncut program, removed channels silenced."""
    network = build(programs)
    silence({**dict(network.named_parameters()), **dict(network.named_buffers())}, plan)
    return network


def cut_programs(programs: Programs, plan: Plan) -> GraphNetwork:
    """The program with smaller tensors, and every literal that counted removed channels corrected."""
    tensors = _tensors(programs)
    for name, shape in plan.shapes.items():
        if name not in tensors or tuple(tensors[name].shape) != shape:
            raise SecateurError(
                f"the plan is for another network: it expects {name} of shape {shape}",
                layer=name,
                remedy="use the plan with the network that it was made for, before any cut",
            )
    ties, followers = follow(programs.programs, literal=False)
    stays = _stays(ties, plan)
    rewritten = []
    for follower, program in zip(followers, programs.programs, strict=True):
        graph = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        graph.output(graph.graph_copy(program.graph, copied))
        for node, twin in copied.items():
            _rewrite(node, twin, follower.values, stays)
        rewritten.append(replace(program, graph=graph))
    small = {name: _clone(smaller(tensor, name, plan), tensor) for name, tensor in tensors.items()}
    return GraphNetwork(replace(programs, programs=rewritten), small)


def _stays(ties: Ties, plan: Plan) -> Tensor:
    """For every label, and last for a fixed element, whether it stays."""
    unit_of = torch.from_numpy(ties.components())
    gone = torch.zeros(ties.count, dtype=torch.bool)
    for slot, indices in plan.kept.items():
        atoms = ties.atoms(slot, plan.shapes[slot.parameter][slot.axis])
        left = torch.zeros(len(atoms), dtype=torch.bool)
        left[list(indices)] = True
        gone[unit_of[atoms[~left]]] = True
    return torch.cat([~gone[unit_of], torch.tensor([True])])


def _rewrite(node: fx.Node, twin: fx.Node, values: dict[fx.Node, Any], stays: Tensor) -> None:
    """Correct the sizes that one call has written down."""
    if node.op != "call_function":
        return
    name, args = op_name(node), list[Any](twin.args)
    out: Any = values.get(node)
    source: Any = values.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
    if name in ("view", "reshape", "unsafe_view", "expand"):
        args[1] = _new_sizes(args[1], out, stays)
    elif name == "unflatten":
        dim = args[1] % len(source.shape)
        args[2] = _new_sizes(args[2], replace(out, fields=out.fields[dim : dim + len(args[2])]), stays)
    elif name in ("split", "split_with_sizes", "chunk", "tensor_split"):
        dim = given(node, twin).get("dim", 0) % len(source.shape)
        if source.fields[dim]:
            twin.target, twin.kwargs = aten.split_with_sizes.default, {}
            args = [args[0], [left(part.fields[dim], stays) for part in out], dim]
    elif name == "slice":
        args = _new_slice(args, source, stays)
    elif name == "narrow" and source.fields[args[1]]:
        args[2] = left(tuple(vector[: args[2]] for vector in source.fields[args[1]]), stays)
        args[3] = left(out.fields[args[1]], stays)
    elif name in ("pad", "constant_pad_nd"):
        args[1] = _new_pad(list(args[1]), out, stays)
    elif name == "group_norm" and source.fields[1]:
        args[1] = _groups_left(source.fields[1][0], args[1], stays)
    elif CONVOLUTION.match(name):
        named = given(node, twin)
        weight = values[node.args[1]]  # type: ignore[index]
        if named.get("groups", 1) > 1 and weight.fields[0]:
            named["groups"] = _groups_left(weight.fields[0][0], named["groups"], stays)
            args, twin.kwargs = [], named
    twin.args = tuple(args)


def given(node: fx.Node, twin: fx.Node) -> dict[str, Any]:
    """The arguments of a call by name."""
    return {**dict(zip(argument_names(node), twin.args, strict=False)), **twin.kwargs}


def left(vectors: tuple[Tensor, ...], stays: Tensor) -> int:
    """How many elements of an axis stay."""
    keeps = torch.stack([stays[vector] for vector in vectors])  # FIXED is -1: the last entry, which stays
    return int(keeps.all(0).sum())


def _new_sizes(sizes: Any, out: Value, stays: Tensor) -> list[Any]:
    pairs = zip(sizes, out.fields, strict=True)
    return [left(fields, stays) if fields and isinstance(size, int) and size > 0 else size for size, fields in pairs]


def _new_slice(args: list[Any], source: Value, stays: Tensor) -> list[Any]:
    dim = (args[1] if len(args) > 1 else 0) % len(source.shape)
    size, vectors = source.shape[dim], source.fields[dim]
    if not vectors:
        return args
    bounds = slice(*args[2:4]).indices(size)[:2] if len(args) > 2 else (0, size)
    return [args[0], dim, *(left(tuple(v[:bound] for v in vectors), stays) for bound in bounds), *args[4:]]


def _new_pad(widths: list[int], out: Value, stays: Tensor) -> list[int]:
    for axis, vectors in enumerate(out.fields):
        place = 2 * (len(out.shape) - 1 - axis)
        if vectors and place < len(widths):
            before, after = widths[place], widths[place + 1]
            widths[place] = left(tuple(v[:before] for v in vectors), stays) if before else 0
            widths[place + 1] = left(tuple(v[len(v) - after :] for v in vectors), stays) if after else 0
    return widths


def _groups_left(vector: Tensor, groups: int, stays: Tensor) -> int:
    return int(stays[vector.view(groups, -1)].any(1).sum())


def _bake(program: Program, baked: dict[str, Tensor]) -> None:
    """Replace a layer's computed weight (standardised, weight-normed) by its value, as a plain parameter."""
    fixed: dict[fx.Node, bool] = {}  # the node depends on parameters only
    for node in list(program.graph.nodes):
        inputs = node.all_input_nodes
        fixed[node] = node.op == "get_attr" or (
            node.op == "call_function" and bool(inputs) and all(map(fixed.get, inputs))
        )
        if node.op != "call_function" or not (CONVOLUTION.match(op_name(node)) or op_name(node) == "linear"):
            continue
        weight = node.args[1]
        if not isinstance(weight, fx.Node) or weight.op == "get_attr" or not fixed[weight]:
            continue
        with torch.no_grad():
            value = _evaluate(weight, program)
        name = _baked_name(weight, value, program)
        baked.setdefault(name, nn.Parameter(value.clone()))
        program.tensors[name] = baked[name]
        with program.graph.inserting_before(node):
            plain = program.graph.create_node("get_attr", name)
            plain.meta = dict(weight.meta)
        node.replace_input_with(weight, plain)
        fixed[plain] = True
    program.graph.eliminate_dead_code()
    used = {str(node.target) for node in program.graph.nodes if node.op == "get_attr"}
    program.tensors = {name: tensor for name, tensor in program.tensors.items() if name in used}


def _evaluate(node: fx.Node, program: Program) -> Tensor:
    if node.op == "get_attr":
        return program.tensors[str(node.target)].detach().clone()
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: _evaluate(n, program))
    result = node.target(*args, **kwargs)  # type: ignore[operator]
    return result


def _baked_name(weight: fx.Node, value: Tensor, program: Program) -> str:
    """The name of the parameter that the weight is computed from, if its shape is the same."""
    queue, seen = [weight], set[fx.Node]()
    while queue:
        node = queue.pop(0)
        if node.op == "get_attr" and program.tensors[str(node.target)].shape == value.shape:
            return str(node.target)
        queue += [n for n in node.all_input_nodes if n not in seen]
        seen.update(node.all_input_nodes)
    stack = weight.meta.get("nn_module_stack") or {"": ("",)}
    return f"{list(stack.values())[-1][0]}.baked_weight".lstrip(".")


def _tensors(programs: Programs) -> dict[str, Tensor]:
    return {name: tensor for program in programs.programs for name, tensor in program.tensors.items()}


def _clone(tensor: Tensor, like: Tensor) -> Tensor:
    if isinstance(like, nn.Parameter):
        return nn.Parameter(tensor.detach().clone(), requires_grad=like.requires_grad)
    return tensor.detach().clone()


def _register(root: nn.Module, name: str, tensor: Tensor, temporary: bool) -> None:
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    if isinstance(tensor, nn.Parameter):
        root.register_parameter(last, tensor)
    else:
        root.register_buffer(last, tensor, persistent=not temporary)


def _compile(graph: fx.Graph) -> Any:
    """The program as a Python function of the module and its inputs."""
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(code.src, scope)  # the source is fx's own, made from the graph
    return scope["forward"]
