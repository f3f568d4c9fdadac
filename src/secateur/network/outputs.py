"""The outputs of a network by name, and networks that return only some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import keys_of, pytree, remove_forward_hooks
from secateur.errors import UsageError
from secateur.network.modules import stand_in, unwrap

FREE_REMEDY = "give outputs by path or index, such as ['aux', '1.features']; the network returns "


def output_names(tree: Any) -> list[str]:
    """Return the path of each leaf of an output: keys and positions, joined by dots.

    >>> output_names({"scores": y, "features": [a, b]})
    ['scores', 'features.0', 'features.1']

    A single tensor has the name "".
    """
    return _leaf_names(pytree.tree_structure(tree))


def _leaf_names(spec: Any) -> list[str]:
    if spec.is_leaf():
        return [""]
    return [
        f"{key}.{name}" if name else str(key)
        for key, child in zip(keys_of(spec), spec.children(), strict=True)
        for name in _leaf_names(child)
    ]


def selectors(free: Sequence[str | int]) -> tuple[str, ...]:
    """Return the given paths, indices and patterns of outputs as texts."""
    if isinstance(free, str | int):
        raise UsageError(f"free_outputs is {free!r}", remedy=f"pass a list: free_outputs=[{free!r}]")
    return tuple(str(one) for one in free)


@dataclass
class DropOutputs:
    """A forward hook that returns None in place of the selected outputs; copies of a network share it.

    Attributes:
        free: paths, prefixes of paths or patterns.
        evaluation: the names of the outputs in evaluation mode, once they are known.
        training: those in training mode.
        matched: the selectors that have matched an output so far.
    """

    free: tuple[str, ...]
    evaluation: list[str] = field(default_factory=list)
    training: list[str] = field(default_factory=list)
    matched: set[str] = field(default_factory=set)

    def __deepcopy__(self, memo: dict[int, Any]) -> DropOutputs:
        return self

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        leaves, spec = pytree.tree_flatten(output)
        names = _leaf_names(spec)
        tensors = [name for name, leaf in zip(names, leaves) if isinstance(leaf, Tensor)]
        if module.training:
            self.training = tensors
        else:
            self.evaluation = tensors
        other = module.training and bool(self.evaluation) and tensors != self.evaluation
        kept = [None if self._drops(name, other) else leaf for name, leaf in zip(names, leaves)]
        return pytree.tree_unflatten(kept, spec)

    def _drops(self, name: str, other: bool) -> bool:
        """Return whether an output is dropped; an index counts in training only if both modes return the same."""
        asked = [one for one in self.free if not (other and one.partition(".")[0].isdecimal())]
        found = {one for one in asked if name == one or name.startswith(f"{one}.") or fnmatchcase(name, one)}
        self.matched |= found
        return bool(found)

    def check(self) -> None:
        """Raise an error if a selector has matched no output, or if no output is left."""
        returned = ", ".join(filter(None, dict.fromkeys([*self.evaluation, *self.training]))) or "one tensor"
        for one in self.free:
            if one not in self.matched:
                raise UsageError(f"there is no output {one!r}", layer="free_outputs", remedy=FREE_REMEDY + returned)
        if all(self._drops(name, False) for name in self.evaluation):
            raise UsageError(
                "every output is free, so every channel could go",
                layer="free_outputs",
                remedy="leave out those that must stay as they are; the network returns " + returned,
            )


class ScoreRows:
    """A forward hook that turns maps of class scores [samples, classes, ...] into rows of scores, one for each pixel.

    A map with one channel has the scores of class 1 against class 0. Rows of scores are compared as class scores are:
    by the KL divergence, averaged over pixels.
    """

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        leaves, spec = pytree.tree_flatten(output)
        maps = [isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() >= 3 for leaf in leaves]
        if not any(maps):
            shapes = [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)]
            raise UsageError(
                f"expected maps of scores [samples, classes, height, width], got outputs of shape {shapes}",
                layer=type(module).__name__,
                remedy="leave task='segmentation' out",
            )
        return pytree.tree_unflatten([_rows(leaf) if one else leaf for leaf, one in zip(leaves, maps)], spec)


def _rows(scores: Tensor) -> Tensor:
    rows = scores.movedim(1, -1).reshape(-1, scores.shape[1])
    return torch.cat([torch.zeros_like(rows), rows], 1) if scores.shape[1] == 1 else rows


def with_score_rows(model: nn.Module) -> nn.Module:
    """Return a stand-in with the same parameters that returns maps of class scores as rows.

    >>> with_score_rows(segmenter)(images).shape  # of 2 images with 64 x 64 pixels and 21 classes
    torch.Size([8192, 21])
    """
    network = stand_in(unwrap(model))
    remove_forward_hooks(network, ScoreRows)
    network.register_forward_hook(ScoreRows())
    return network


def compared_outputs(model: nn.Module, free: Sequence[str], task: str | None) -> nn.Module:
    """Return the network, or a stand-in whose outputs are those to compare: without free ones, score maps as rows."""
    network = without_outputs(model, free)
    return with_score_rows(network) if task == "segmentation" else network


def without_outputs(model: nn.Module, free: Sequence[str]) -> nn.Module:
    """Return a stand-in with the same parameters that returns None in place of these outputs; without any, the model.

    >>> without_outputs(model, ["features"])(images)
    {'scores': tensor(...), 'features': None}
    """
    if not free:
        return model
    network = stand_in(unwrap(model))
    remove_forward_hooks(network, DropOutputs)
    network.register_forward_hook(DropOutputs(tuple(free)))
    return network


def with_all_outputs(network: nn.Module) -> nn.Module:
    """Return the network, which returns all its outputs again, and as they were."""
    remove_forward_hooks(network, DropOutputs)
    remove_forward_hooks(network, ScoreRows)
    return network
