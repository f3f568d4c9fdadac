"""Follow channel labels through a program by running its data movement on the labels themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from secateur.ops import channel_axis_of
from secateur.program import TORCH, Program
from secateur.ties import Reason, Slot, Ties

Fields = tuple[tuple[Tensor, ...], ...]  # for each axis the label vectors that run along it


@dataclass(frozen=True)
class Value:
    """What is known of one tensor: its shape, the labels along each axis, and what it is made of."""

    shape: tuple[int, ...]
    fields: Fields
    activation: bool  # depends on the network's input
    plain: bool = False  # a parameter that was only moved or scaled: zeros in it stay zeros
    origin: str = ""  # what made its unlabelled axes

    def along(self, axis: int) -> Tensor | None:
        """The one label vector along an axis, if there is one."""
        vectors = self.fields[axis]
        return vectors[0] if len(vectors) == 1 else None

    def all_labels(self) -> Tensor:
        vectors = [vector for axis in self.fields for vector in axis]
        return torch.cat(vectors) if vectors else torch.empty(0, dtype=torch.long)


@dataclass
class Follower:
    """The state of one program's run on labels; what each op does to them is in `secateur.rules`."""

    ties: Ties
    program: Program
    literal: bool  # sizes written into the program cannot be changed
    longest: bool = True  # of several parts of an axis the longest shrinks
    values: dict[fx.Node, Any] = field(default_factory=dict)
    node: fx.Node = field(init=False)  # the call that is looked at

    def look_up(self, args: Any) -> Any:
        return fx.node.map_arg(args, self.values.__getitem__)

    def parameter(self, name: str) -> Any:
        """A tensor of the model: every axis has labels of its own."""
        shape = tuple(self.program.tensors[name].shape)
        if name not in self.program.registered and (self.literal or name.startswith("lifted_tensor")):
            return self.unlabelled(f"the constant {name} (a buffer would be cut along)", activation=False)
        fields = tuple((self.ties.atoms(Slot(name, axis), n),) if n > 1 else () for axis, n in enumerate(shape))
        return Value(shape, fields, activation=False, plain=True, origin=name)

    def unlabelled(self, origin: str, activation: bool) -> Any:
        """The result of a call whose channels cannot be told apart."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                shape = concrete(leaf.shape)
                return Value(shape, ((),) * len(shape), activation, origin=origin)
            return concrete_number(leaf)

        return pytree.tree_map(value, self.node.meta.get("val"))

    def reason(self, text: str) -> Reason:
        return Reason(text, str(self.node.target).removesuffix(".default"), self.layer(), source_line(self.node))

    def layer(self) -> str:
        """The name of the module that makes the current call."""
        stack = self.node.meta.get("nn_module_stack") or {}
        return list(stack.values())[-1][0] if stack else ""

    def module(self) -> nn.Module | None:
        return self.program.modules.get(self.layer())

    def shape(self) -> tuple[int, ...]:
        """The shape that the program says the current node has."""
        value = self.node.meta["val"]
        return concrete(value[0].shape if isinstance(value, tuple | list) else value.shape)

    def mix(self, value: Value, axes: list[int], what: str) -> Value:
        """An op whose result at one place depends on the whole axis: nothing along it can go."""
        fields = list(value.fields)
        for axis in axes:
            for vector in fields[axis]:
                self.ties.keep(vector, self.reason(what))
            fields[axis] = ()
        origin = value.origin if value.activation else f"a weight that {self.reason('').op} computes from all its parts"
        return replace(value, fields=tuple(fields), origin=origin)

    def move(self, value: Value, op: Any) -> list[Value]:
        """Run a data movement on every label vector, spread over the whole shape, and read where it went."""
        out: list[Value] | None = None
        for axis, vectors in enumerate(value.fields):
            for vector in vectors:
                spread = vector.double().view([-1 if d == axis else 1 for d in range(len(value.shape))])
                results = op(spread.expand(value.shape))
                results = list(results) if isinstance(results, tuple | list) else [results]
                blank = [replace(value, shape=tuple(r.shape), fields=((),) * r.dim()) for r in results]
                moved = [self._read(b, r) for b, r in zip(blank, results, strict=True)]
                if out is None:
                    out = moved
                else:
                    out = [_merge(a, b) for a, b in zip(out, moved, strict=True)]
        if out is None:
            results = op(torch.zeros((), dtype=torch.double).expand(value.shape))
            results = list(results) if isinstance(results, tuple | list) else [results]
            out = [replace(value, shape=tuple(r.shape), fields=((),) * r.dim()) for r in results]
        return out

    def channel_axis(self, axes: list[int], dims: int) -> int | None:
        """Of several axes the one that the next layer takes for channels, if there is such a layer."""
        queue = list(self.node.users)
        while len(axes) > 1 and queue:
            user = queue.pop(0)
            axis = channel_axis_of(user, dims)
            if axis in axes:
                return axis
            if axis is None:
                queue += user.users
        return axes[0] if len(axes) == 1 else None

    def _read(self, blank: Value, labels: Tensor) -> Value:
        """Find the axis that the labels run along; where they run along several, one is cut."""
        axes = [axis for axis in range(labels.dim()) if _varies(labels, axis)]
        if not axes:
            self.ties.keep(labels.reshape(-1)[:1].long(), self.reason("one channel is picked out of its axis"))
            return blank
        cut = self.channel_axis(axes, labels.dim())
        if cut is None:
            self.ties.ambiguous = True
            choose = max if self.longest else min
            cut = choose(axes, key=lambda axis: (labels.shape[axis], axis))
        rows = _rows(labels, axes, cut).long()
        if len(axes) > 1:
            self.ties.tie_rows(rows, self.reason("a reshape splits its axis"))
        fields = list(blank.fields)
        fields[cut] = (*fields[cut], rows[:, 0].clone())
        return replace(blank, fields=tuple(fields))


def _rows(labels: Tensor, axes: list[int], cut: int) -> Tensor:
    """The labels as a matrix, a row for each index of the cut axis, axes without variation dropped."""
    for axis in range(labels.dim()):
        if axis not in axes:
            labels = labels.narrow(axis, 0, 1)
    return labels.movedim(cut, 0).reshape(labels.shape[cut], -1)


def _varies(labels: Tensor, axis: int) -> bool:
    if labels.shape[axis] < 2 or labels.stride(axis) == 0:
        return False
    return not bool((labels == labels.narrow(axis, 0, 1)).all())


def _merge(a: Value, b: Value) -> Value:
    return replace(a, fields=tuple((*x, *y) for x, y in zip(a.fields, b.fields, strict=True)))


def concrete(shape: Any) -> tuple[int, ...]:
    """A shape in numbers: a free batch size stands for the example's."""
    return tuple(int(concrete_number(n)) for n in shape)


def concrete_number(n: Any) -> Any:
    return int(n.node.hint) if isinstance(n, torch.SymInt) else n


def source_line(node: fx.Node) -> str:
    """`file.py:12` of the user's code that made the node."""
    lines = [line for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File ")]
    own = [line for line in lines if TORCH not in line] or lines
    if not own:
        return ""
    path, _, rest = own[-1].strip().removeprefix('File "').partition('", line ')
    return f"{path.rpartition('/')[2]}:{rest.partition(',')[0]}"
