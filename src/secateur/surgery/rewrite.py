"""Graph output: cut the exported program itself and rewrite the sizes that it contains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from secateur._torch import pytree
from secateur.channels.graph import ChannelGraph
from secateur.channels.labels import Value, arguments
from secateur.channels.program import Program, export_modes
from secateur.channels.rules import propagate
from secateur.channels.ties import Ties
from secateur.errors import SecateurError
from secateur.network.examples import Example, revive
from secateur.network.modules import named_tensors, unwrap
from secateur.network.operations import CONVOLUTION, op_name
from secateur.surgery.plan import Plan
from secateur.surgery.slices import cut_tensor, mask_tensors


@dataclass
class Programs:
    """The evaluation program of a model and, if it can be exported, the training program.

    Attributes:
        programs: the programs.
        notes: remarks on what could not be exported.
        temporary: names of the buffers that are not saved.
        training: whether the model was in training mode.
    """

    programs: list[Program]
    notes: list[str]
    temporary: frozenset[str]
    training: bool

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that the programs use."""
        return {name: tensor for program in self.programs for name, tensor in program.tensors.items()}


@dataclass(frozen=True)
class Compiled:
    """A program as a function; it never changes, so copies of a network share it."""

    run: Callable[..., Any]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return self


class GraphNetwork(nn.Module):
    """An exported program as a module with the model's parameter names, inputs, outputs and modes."""

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
                "the arguments are not nested as in the example that the network was traced with",
                layer=type(self).__name__,
                remedy=f"call it with {program.in_spec}",
            )
        return pytree.tree_unflatten(program.run(self, *flat), program.out_spec)


def programs_of(model: nn.Module, example: Example) -> Programs:
    """Return the programs of a model with a dynamic batch size and with computed weights replaced by parameters."""
    if example is None:
        raise SecateurError("a graph cut needs the example that the network was traced with", remedy="trace again")
    programs, notes = export_modes(model, example, dynamic=True)
    baked: dict[str, Tensor] = {}
    for program in programs:
        _bake(program, baked)
    if baked:
        notes.append(f"the weights of {len(baked)} layers were computed in forward; they are now plain parameters")
    saved = set(model.state_dict())
    temporary = frozenset(name for name, _ in model.named_buffers() if name not in saved)
    return Programs(programs, notes, temporary, model.training)


def runnable(model: nn.Module, graph: ChannelGraph) -> nn.Module:
    """Return the network that has the parameters of the groups: the model itself, or the program of a graph cut."""
    model = unwrap(model)
    if graph.output == "module":
        return model
    return build(programs_of(model, revive(graph.example, like=model)))


def build(programs: Programs) -> GraphNetwork:
    """Return the uncut program as a module."""
    return GraphNetwork(programs, {name: _clone(tensor) for name, tensor in programs.tensors.items()})


def mask_programs(programs: Programs, plan: Plan) -> GraphNetwork:
    """Return the uncut program as a module in which the removed channels are masked."""
    network = build(programs)
    mask_tensors(named_tensors(network), plan)
    return network


def cut_programs(programs: Programs, plan: Plan) -> GraphNetwork:
    """Return the program as a module with cut tensors, and with rewritten sizes where these count removed channels."""
    tensors = programs.tensors
    for name in plan.shapes:
        plan.check_shape(name, tuple(tensors[name].shape) if name in tensors else None)
    ties, runs = propagate(programs.programs, hard_coded=False)
    kept = _kept_labels(ties, plan)
    rewritten = []
    for run in runs:
        graph = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        graph.output(graph.graph_copy(run.program.graph, copied))
        for node, twin in copied.items():
            if node.op == "call_function":
                _rewrite(node, twin, run.values, kept)
        rewritten.append(replace(run.program, graph=graph))
    small = {name: _clone(cut_tensor(tensor, name, plan)) for name, tensor in tensors.items()}
    return GraphNetwork(replace(programs, programs=rewritten), small)


def _kept_labels(ties: Ties, plan: Plan) -> Tensor:
    """Return for every label whether it is kept, and as the last element True for FIXED, which is -1."""
    unit_of = torch.from_numpy(ties.components())
    removed = torch.zeros(ties.count, dtype=torch.bool)
    for slot, indices in plan.kept.items():
        gone = torch.ones(plan.shapes[slot.parameter][slot.axis], dtype=torch.bool)
        gone[list(indices)] = False
        removed[unit_of[ties.labels_of(slot, len(gone))[gone]]] = True
    return torch.cat([~removed[unit_of], torch.tensor([True])])


def _rewrite(node: fx.Node, twin: fx.Node, values: dict[fx.Node, Any], kept: Tensor) -> None:
    """Rewrite the sizes among the arguments of a call.

    Args:
        node: the original call.
        twin: its copy, which is changed.
        values: the labels of every original node.
        kept: for every label whether it is kept.
    """
    name, args = op_name(node), list[Any](twin.args)
    out: Any = values.get(node)
    source: Any = values.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
    if name in ("view", "reshape", "unsafe_view", "expand"):
        args[1] = _new_sizes(args[1], out.labels, kept)
    elif name == "unflatten":
        dim = args[1] % len(source.shape)
        args[2] = _new_sizes(args[2], out.labels[dim : dim + len(args[2])], kept)
    elif name in ("split", "split_with_sizes", "chunk", "tensor_split"):
        dim = arguments(twin).get("dim", 0) % len(source.shape)
        if source.labels[dim]:
            twin.target, twin.kwargs = torch.ops.aten.split_with_sizes.default, {}
            args = [args[0], [_remaining(part.labels[dim], kept) for part in out], dim]
    elif name == "slice":
        args = _new_slice(args, source, kept)
    elif name == "narrow" and source.labels[args[1]]:
        args[2] = _remaining(source.labels[args[1]], kept, stop=args[2])
        args[3] = _remaining(out.labels[args[1]], kept)
    elif name in ("pad", "constant_pad_nd"):
        args[1] = _new_pad(list(args[1]), out, kept)
    elif name == "group_norm" and source.labels[1]:
        args[1] = _remaining_groups(source.labels[1][0], args[1], kept)
    elif CONVOLUTION.match(name):
        named = arguments(twin)
        weight = values[node.args[1]]  # type: ignore[index]
        if named.get("groups", 1) > 1 and weight.labels[0]:
            named["groups"] = _remaining_groups(weight.labels[0][0], named["groups"], kept)
            args, twin.kwargs = [], named
    twin.args = tuple(args)


def _remaining(vectors: tuple[Tensor, ...], kept: Tensor, start: int = 0, stop: int | None = None) -> int:
    """Return how many elements of an axis, or of a part of it, are kept."""
    return int(torch.stack([kept[vector[start:stop]] for vector in vectors]).all(0).sum())


def _new_sizes(sizes: Any, labels: tuple[tuple[Tensor, ...], ...], kept: Tensor) -> list[Any]:
    pairs = zip(sizes, labels, strict=True)
    return [_remaining(at, kept) if at and isinstance(size, int) and size > 0 else size for size, at in pairs]


def _new_slice(args: list[Any], source: Value, kept: Tensor) -> list[Any]:
    dim = (args[1] if len(args) > 1 else 0) % len(source.shape)
    vectors = source.labels[dim]
    if not vectors:
        return args
    bounds = slice(*args[2:4]).indices(source.shape[dim])[:2] if len(args) > 2 else (0, source.shape[dim])
    return [args[0], dim, *(_remaining(vectors, kept, stop=bound) for bound in bounds), *args[4:]]


def _new_pad(widths: list[int], out: Value, kept: Tensor) -> list[int]:
    for axis, vectors in enumerate(out.labels):
        first = 2 * (len(out.shape) - 1 - axis)
        if vectors and first < len(widths):
            before, after = widths[first : first + 2]
            widths[first] = _remaining(vectors, kept, stop=before)
            widths[first + 1] = _remaining(vectors, kept, start=out.shape[axis] - after)
    return widths


def _remaining_groups(vector: Tensor, groups: int, kept: Tensor) -> int:
    return int(kept[vector.view(groups, -1)].any(1).sum())


def _bake(program: Program, baked: dict[str, Tensor]) -> None:
    """Replace computed weights of layers (weight norm, weight standardisation) by their values as plain parameters."""
    fixed: dict[fx.Node, bool] = {}  # whether a node depends on parameters only
    weights = []
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
        weights.append(weight)
    _remove_updates(program.graph, weights, fixed)
    program.graph.eliminate_dead_code()
    used = {str(node.target) for node in program.graph.nodes if node.op == "get_attr"}
    program.tensors = {name: tensor for name, tensor in program.tensors.items() if name in used}


def _remove_updates(graph: fx.Graph, weights: list[fx.Node], fixed: dict[fx.Node, bool]) -> None:
    """Remove computations that only served baked weights and write to buffers, as spectral norm does in training."""
    feeding = set(weights)
    for node in reversed(graph.nodes):
        if node in feeding:
            feeding.update(node.all_input_nodes)
    for node in reversed(graph.nodes):
        inputs = node.all_input_nodes
        served = feeding.intersection(inputs) and all(fixed.get(user) for one in inputs for user in one.users)
        if node.op == "call_function" and fixed[node] and not node.users and served:
            graph.erase_node(node)


def _evaluate(node: fx.Node, program: Program) -> Tensor:
    if node.op == "get_attr":
        return program.tensors[str(node.target)].detach().clone()
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: _evaluate(n, program))
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _baked_name(weight: fx.Node, value: Tensor, program: Program) -> str:
    """Return the name of the parameter that a weight is computed from if their shapes are equal, else a new name."""
    queue, seen = [weight], set[fx.Node]()
    while queue:
        node = queue.pop(0)
        if node.op == "get_attr" and program.tensors[str(node.target)].shape == value.shape:
            return str(node.target)
        queue += [n for n in node.all_input_nodes if n not in seen]
        seen.update(node.all_input_nodes)
    stack = weight.meta.get("nn_module_stack") or {"": ("",)}
    return f"{list(stack.values())[-1][0]}.baked_weight".lstrip(".")


def _clone(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return nn.Parameter(copy, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy


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
    """Return the program as a Python function of the module and its inputs."""
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(code.src, scope)  # fx generates this source from the graph
    return scope["forward"]
