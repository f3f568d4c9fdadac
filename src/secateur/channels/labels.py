"""Propagate channel labels through a program by running its data movement on the labels themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from secateur._torch import pytree, size_hint
from secateur.channels.heads import heads_axis
from secateur.channels.program import Program
from secateur.channels.ties import Reason, Ties
from secateur.errors import TORCH
from secateur.network.modules import Slot
from secateur.network.operations import argument_names, channel_axis_of


@dataclass(frozen=True)
class Value:
    """A tensor of the program as propagation sees it.

    Attributes:
        shape: its sizes in the example.
        labels: for each axis the label vectors that run along it, in most cases one or none.
        activation: whether it depends on the network's input.
        plain: whether it is a parameter that was only moved or scaled, so that zeros in it stay zeros.
        origin: what produced its unlabelled axes, for reasons.
    """

    shape: tuple[int, ...]
    labels: tuple[tuple[Tensor, ...], ...]
    activation: bool
    plain: bool = False
    origin: str = ""

    def all_labels(self) -> Tensor:
        """Return the labels of all axes."""
        vectors = [vector for axis in self.labels for vector in axis]
        return torch.cat(vectors) if vectors else torch.empty(0, dtype=torch.long)

    def relabelled(self, axis: int, vectors: Iterable[Tensor], shape: tuple[int, ...] | None = None) -> Value:
        """Return the value with other label vectors along one axis, and with another shape if one is given."""
        labels = (*self.labels[:axis], tuple(vectors), *self.labels[axis + 1 :])
        return replace(self, labels=labels, shape=shape or self.shape)


@dataclass
class Propagation:
    """The run of one program on labels; `secateur.channels.rules` has the rule for each op.

    Attributes:
        ties: the labels and their ties, shared by the programs of a network.
        program: the program.
        hard_coded: whether sizes in the program cannot change, since the user's own class is cut.
        longest: whether the longest part of an axis shrinks, and not the shortest, where nothing determines it.
        values: the value of each node so far.
        node: the current node.
    """

    ties: Ties
    program: Program
    hard_coded: bool
    longest: bool = True
    values: dict[fx.Node, Any] = field(default_factory=dict)
    node: fx.Node = field(init=False)

    def look_up(self, args: Any) -> Any:
        """Return the arguments of a node with its input nodes replaced by their values."""
        return fx.node.map_arg(args, self.values.__getitem__)

    def parameter(self, name: str) -> Any:
        """Return the value of a parameter or buffer, whose axes have labels of their own."""
        shape = tuple(self.program.tensors[name].shape)
        if name not in self.program.registered and (self.hard_coded or name.startswith("lifted_tensor")):
            return self.unlabelled(f"the constant {name} (a buffer could be cut)", activation=False)
        labels = tuple((self.ties.labels_of(Slot(name, axis), n),) if n > 1 else () for axis, n in enumerate(shape))
        return Value(shape, labels, activation=False, plain=True, origin=name)

    def unlabelled(self, origin: str, activation: bool) -> Any:
        """Return the result of the current node without labels."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return Value(concrete(leaf.shape), ((),) * leaf.dim(), activation, origin=origin)
            return size_hint(leaf)

        return pytree.tree_map(value, self.node.meta.get("val"))

    def op(self) -> str:
        """Return the name of the current node's op, such as `aten.relu`."""
        return str(self.node.target).removesuffix(".default")

    def reason(self, text: str) -> Reason:
        """Return a reason that arises at the current node."""
        return Reason(text, self.op(), self.layer(), source_line(self.node))

    def keep(self, text: str, vectors: Iterable[Tensor]) -> None:
        """Keep the channels with these labels for a reason that arises at the current node."""
        for vector in vectors:
            self.ties.keep(vector, self.reason(text))

    def layer(self) -> str:
        """Return the name of the module that makes the current call."""
        stack = self.node.meta.get("nn_module_stack") or {}
        return list(stack.values())[-1][0] if stack else ""

    def module(self) -> nn.Module | None:
        """Return the module that makes the current call."""
        return self.program.modules.get(self.layer())

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the current node's result, of the first of several."""
        value = self.node.meta["val"]
        return concrete(value[0].shape if isinstance(value, tuple | list) else value.shape)

    def mix(self, value: Value, axes: Iterable[int], why: str) -> Value:
        """Keep the channels along these axes, since every result depends on all of them."""
        for axis in axes:
            self.keep(why, value.labels[axis])
            value = value.relabelled(axis, ())
        origin = value.origin if value.activation else f"a weight that {self.op()} computes from all its parts"
        return replace(value, plain=False, origin=origin)

    def move(self, value: Value, op: Callable[[Tensor], Any]) -> list[Value]:
        """Return the results of a data movement: it is run on each label vector, expanded to the whole shape."""
        vectors = [(axis, vector) for axis, along in enumerate(value.labels) for vector in along]
        moved = [_as_list(op(_expanded(vector.double(), axis, value.shape))) for axis, vector in vectors]
        parts = moved[0] if moved else _as_list(op(torch.zeros(()).double().expand(value.shape)))
        out = [replace(value, shape=tuple(part.shape), labels=((),) * part.dim()) for part in parts]
        for results in moved:
            out = [self._with_moved(one, labels) for one, labels in zip(out, results, strict=True)]
        return out

    def _with_moved(self, value: Value, labels: Tensor) -> Value:
        """Return the value with the labels of a moved vector along the axis where they vary; of several, one is cut."""
        axes = [axis for axis in range(labels.dim()) if _varies(labels, axis)]
        if not axes:
            self.keep("one channel is selected from its axis", [labels.reshape(-1)[:1].long()])
            return value
        cut = self._channel_axis(axes, labels.dim())
        if cut is None:
            cut = heads_axis(self.node, axes, tuple(labels.shape))
        if cut is None:
            self.ties.ambiguous = True
            choose = max if self.longest else min
            cut = choose(axes, key=lambda axis: (labels.shape[axis], axis))
        rows = _rows(labels, axes, cut).long()
        if len(axes) > 1:
            self.ties.tie_rows(rows, self.reason("a reshape splits its axis"))
        return value.relabelled(cut, (*value.labels[cut], rows[:, 0].clone()))

    def _channel_axis(self, axes: list[int], dims: int) -> int | None:
        """Return the axis that the next layer takes for channels; None if no layer determines it."""
        if len(axes) == 1:
            return axes[0]
        users = list(self.node.users)
        for user in users:  # grows by the users of ops that pass axes on
            axis = channel_axis_of(user, dims)
            if axis in axes:
                return axis
            if axis is None:
                users += user.users
        return None


def _as_list(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple | list) else [results]


def _expanded(vector: Tensor, axis: int, shape: tuple[int, ...]) -> Tensor:
    return vector.view([-1 if d == axis else 1 for d in range(len(shape))]).expand(shape)


def _rows(labels: Tensor, axes: list[int], cut: int) -> Tensor:
    """Return the labels as a matrix with a row for each index of the cut axis; axes without variation are dropped."""
    for axis in range(labels.dim()):
        if axis not in axes:
            labels = labels.narrow(axis, 0, 1)
    return labels.movedim(cut, 0).reshape(labels.shape[cut], -1)


def _varies(labels: Tensor, axis: int) -> bool:
    if labels.shape[axis] < 2 or labels.stride(axis) == 0:
        return False
    return not bool((labels == labels.narrow(axis, 0, 1)).all())


def concrete(shape: Any) -> tuple[int, ...]:
    """Return a shape in numbers, with the example's batch size for a dynamic one."""
    return tuple(int(size_hint(n)) for n in shape)


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by name, those that are given."""
    return {**dict(zip(argument_names(node), node.args, strict=False)), **node.kwargs}


def source_line(node: fx.Node) -> str:
    """Return the line of the user's code that a node comes from, as `file.py:12`."""
    lines = [line for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File ")]
    own = [line for line in lines if TORCH not in line] or lines
    if not own:
        return ""
    path, _, rest = own[-1].strip().removeprefix('File "').partition('", line ')
    return f"{path.rpartition('/')[2]}:{rest.partition(',')[0]}"
