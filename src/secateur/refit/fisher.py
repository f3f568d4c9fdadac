"""Fisher weights: how much an error of each output of a layer matters for the output of the network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from secateur._torch import pytree
from secateur.errors import SecateurError, first_line
from secateur.network.batches import Call, batch_size
from secateur.network.divergence import are_class_scores
from secateur.network.layer_calls import FunctionCall, LayerCall

SAMPLES = 256  # that are used, at most

Act = Callable[[LayerCall, FunctionCall], Tensor]  # what stands in for the call of a layer


def fisher_weights(
    run: Callable[[Call, Act], list[Tensor]], batches: Sequence[Call], names: Collection[str], seed: int
) -> dict[str, Tensor]:
    """Return, for each output of each layer, the squared gradient of a random loss: per sample, summed over positions.

    >>> fisher_weights(run, batches, ["conv2.weight"], seed=0)["conv2.weight"].shape
    torch.Size([50])

    Args:
        run: runs the network on a batch, with an action at each layer, and returns its outputs.
        names: of the weights of the layers. A layer without gradients is left out.
    """
    source = torch.Generator().manual_seed(seed)
    sums: dict[str, Tensor] = {}

    def act(layer: LayerCall, call: FunctionCall) -> Tensor:
        output: Tensor = call.run()
        if layer.name in names and output.requires_grad:

            def hook(gradient: Tensor) -> None:
                squares = layer.by_position(gradient).double().square().sum((0, 2))
                sums[layer.name] = sums.get(layer.name, 0) + squares

            output.register_hook(hook)
        return output

    samples = 0
    for batch in batches:
        if samples >= SAMPLES:
            break
        inputs, call = _differentiable(batch)
        if not inputs:
            break
        with torch.enable_grad():
            loss = _random_loss(run(call, act), source)
            if loss is None or not loss.requires_grad:
                break
            try:
                torch.autograd.grad(loss, inputs, allow_unused=True)
            except (RuntimeError, NotImplementedError) as error:
                raise SecateurError(
                    f"the gradients of the network could not be computed: {first_line(error)}",
                    remedy="use a method without gradients (pfp, ft), or give the op a backward pass: "
                    "torch.library.register_autograd",
                ) from error
        samples += batch_size(batch)
    return {name: total / samples for name, total in sums.items()}


def _differentiable(batch: Call) -> tuple[list[Tensor], Call]:
    """Return copies of the inputs that take gradients, and the batch with them."""
    inputs: list[Tensor] = []

    def fresh(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        inputs.append(leaf.detach().clone().requires_grad_())
        return inputs[-1].clone()  # so that forward may write to it

    with torch.enable_grad():
        return inputs, pytree.tree_map(fresh, batch)


def _random_loss(outputs: Sequence[Tensor], source: torch.Generator) -> Tensor | None:
    """Return a loss whose squared gradients are Fisher weights.

    For class scores it is that of labels sampled from the network's own distribution, for anything else the product
    with a random direction.
    """
    total = None
    for output in outputs:
        if are_class_scores(output):
            labels = torch.multinomial(output.detach().float().softmax(1).cpu(), 1, generator=source)[:, 0]
            part = F.cross_entropy(output, labels.to(output.device), reduction="sum")
        else:
            way = torch.randn(output.shape, generator=source).to(output)
            part = (output * way).sum() / output.detach().square().mean().sqrt().clamp_min(1e-12)
        total = part if total is None else total + part
    return total
