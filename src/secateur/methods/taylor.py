"""Taylor: remove the filters whose removal changes the loss least, to first order (Molchanov et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import parametrize

from secateur.errors import SecateurError, UsageError, first_line
from secateur.methods.base import Evidence, Method
from secateur.methods.filters import checked, producer_weights, units_along
from secateur.network.batches import Call, batch_size, forward, no_data, split
from secateur.network.modules import Slot, mode, named_tensors


@dataclass(frozen=True)
class Taylor(Method):
    """Score each unit by the square of the sum of gradient times weight over its filter, averaged over batches.

    That sum is the derivative of the loss when the filter is scaled. The loss is the cross-entropy for integer labels
    and the mean squared error for others. If several layers produce a unit, the sum is over all their weights.

    >>> sc.prune(model, [(images, labels)], {"params": "50%"}, method="taylor")

    Attributes:
        batch: the number of samples for one gradient; larger batches of data are split. Over very many samples the mean
            gradient of a trained network is near zero and carries little information.
    """

    batch: int = 32

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}", remedy="give an integer of at least 1")

    def settings(self) -> dict[str, Any]:
        """Return the settings as given."""
        return asdict(self)

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """Return the mean square of every unit; a group whose filters get no gradient is left out."""
        network, graph, kept = evidence.network, evidence.graph, evidence.kept
        producers = {group.name: producer_weights(network, group) for group in graph.prunable}
        unit_of = {
            (name, slot): units_along(graph[name], slot, weight.shape[slot.axis], kept[name])
            for name, weights in producers.items()
            for slot, weight in weights.items()
        }
        tensors = named_tensors(network)
        stored = [tensors[name] for name in sorted({slot.parameter for _, slot in unit_of})]
        totals: dict[str, Tensor] = {}
        samples = 0
        with mode(network, False), torch.inference_mode(False), torch.enable_grad(), _trainable(stored):
            for call, labels in _pairs(evidence, self.batch):
                with parametrize.cached():  # so that a computed weight is the same tensor as in forward
                    weights = {slot: w for g in graph.prunable for slot, w in producer_weights(network, g).items()}
                    changes = _changes(_loss(forward(network, call), labels), weights)
                samples += len(labels)
                for name, slots in producers.items():
                    found = [slot for slot in slots if slot in changes]
                    change = torch.zeros(len(kept[name]) + 1, dtype=torch.float64)
                    for slot in found:
                        change.index_add_(0, unit_of[name, slot], changes[slot])
                    if found:
                        totals[name] = totals.get(name, torch.zeros(())) + len(labels) * change[:-1].square()
        if not samples:
            raise no_data()
        return checked({name: total / samples for name, total in totals.items()})


@contextmanager
def _trainable(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Let gradients reach these tensors within a `with` block, frozen or not."""
    before = [tensor.requires_grad for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.requires_grad_(True)
        yield
    finally:
        for tensor, required in zip(tensors, before, strict=True):
            tensor.requires_grad_(required)


def _pairs(evidence: Evidence, most: int) -> Iterator[tuple[Call, Tensor]]:
    """Return inputs and labels, at most `most` samples at a time."""
    if evidence.labels is None:
        raise UsageError(
            "this method needs labels, and the data has none",
            layer="taylor",
            remedy="give pairs: data=[(inputs, labels), ...], labels as class indices or as numbers to predict",
        )
    if len(evidence.labels) != len(evidence.batches):
        raise UsageError(
            f"there are labels for {len(evidence.labels)} of {len(evidence.batches)} batches",
            layer="taylor",
            remedy="give pairs (inputs, labels) for all of them",
        )
    for call, labels in zip(evidence.batches, evidence.labels, strict=True):
        size = batch_size(call)
        if not labels.dim() or len(labels) != size:
            raise UsageError(
                f"a batch of {size} samples has labels of shape {tuple(labels.shape)}",
                layer="taylor",
                remedy="give one label for each sample",
            )
        yield from zip(split([call], most), labels.split(most), strict=True)


def _loss(outputs: Any, labels: Tensor) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise UsageError(
            f"the network returns a {type(outputs).__name__} instead of a tensor, so its loss is not known",
            layer="taylor",
            remedy="wrap the network so that it returns the logits alone, or use a method without labels",
        )
    labels = labels.to(outputs.device)
    if labels.is_floating_point():
        if labels.squeeze(-1).shape != outputs.squeeze(-1).shape:
            raise _misfit(outputs, labels, "numbers to predict in the shape of the output")
        return mse_loss(outputs, labels.view_as(outputs).to(outputs.dtype))
    if outputs.dim() < 2 or outputs.shape[:1] + outputs.shape[2:] != labels.shape:
        raise _misfit(outputs, labels, "class indices, one for each sample")
    if not 0 <= int(labels.min()) <= int(labels.max()) < outputs.shape[1]:
        raise _misfit(outputs, labels, f"class indices from 0 to {outputs.shape[1] - 1}")
    return cross_entropy(outputs, labels.long())


def _misfit(outputs: Tensor, labels: Tensor, wanted: str) -> UsageError:
    low, high = (labels.min().item(), labels.max().item()) if labels.numel() else (None, None)
    return UsageError(
        f"the output has the shape {tuple(outputs.shape)}, the labels have {tuple(labels.shape)}, from {low} to {high}",
        layer="taylor",
        remedy=f"give {wanted}",
    )


def _changes(loss: Tensor, weights: dict[Slot, Tensor]) -> dict[Slot, Tensor]:
    """Return gradient times weight, summed over all axes but the slot's, for every slot that gets a gradient."""
    try:
        used = loss.requires_grad and torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    except RuntimeError as error:
        raise SecateurError(
            f"the gradients could not be computed: {first_line(error)}",
            layer="taylor",
            remedy="use a method without gradients",
        ) from error
    gradients = {slot: gradient for slot, gradient in zip(weights, used or (), strict=False) if gradient is not None}
    if not gradients:
        raise SecateurError(
            "no filter gets a gradient from the loss",
            layer="taylor",
            remedy="make sure that forward neither detaches nor runs under no_grad, or use a method without gradients",
        )
    return {
        slot: (gradient.cpu().double() * weights[slot].detach().cpu().double()).movedim(slot.axis, 0).flatten(1).sum(1)
        for slot, gradient in gradients.items()
    }
