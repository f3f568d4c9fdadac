"""Fisher weights: how much an error of each output of a layer matters for the output of the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from secateur._torch import pytree
from secateur.errors import SecateurError, first_line
from secateur.network.batches import Call, count_samples
from secateur.network.divergence import are_class_scores
from secateur.network.layer_calls import FunctionCall, LayerCall
from secateur.network.memory import out_of_memory
from secateur.network.processes import batch_source, own_share, reduce_over_all

SAMPLES = 64  # that are used, or a few more: whole batches

Act = Callable[[LayerCall, FunctionCall], Tensor]  # what stands in for the call of a layer
Run = Callable[[Call, Act], list[Tensor]]  # runs a network on a batch, with an action at each layer


def fisher_weights(
    run: Run,
    batches: Sequence[Call],
    layers: Mapping[str, int],
    seed: int,
    each: Callable[[int], Act] | None = None,
    device: torch.device | None = None,
) -> dict[str, Tensor]:
    """Return, for each output of each layer, the squared gradient of a random loss: per sample, summed over positions.

    >>> fisher_weights(run, batches, {"conv2.weight": 50}, seed=0)["conv2.weight"].shape
    torch.Size([50])

    Several processes share the batches, and all return the same.

    Args:
        run: runs the network on a batch, with an action at each layer, and returns its outputs.
        layers: the number of outputs, by the name of the weight. A layer without gradients is left out.
        each: returns what runs a layer in a batch, by its number, if something else is measured in the same pass.
        device: of the result, that of the network.
    """
    sums = {name: torch.zeros(outputs, dtype=torch.float64, device=device) for name, outputs in layers.items()}
    seen = torch.zeros(len(layers), dtype=torch.int64)
    numbers = {name: number for number, name in enumerate(layers)}
    for number in own_share(range(len(batches))):
        inner = None if each is None else each(number)

        def act(layer: LayerCall, call: FunctionCall, inner: Act | None = inner) -> Tensor:
            output: Tensor = call.run() if inner is None else inner(layer, call)
            if layer.name in sums and output.requires_grad:

                def hook(gradient: Tensor) -> None:
                    squares = layer.by_position(gradient).square().sum(2).double().sum(0)
                    sums[layer.name] += squares
                    seen[numbers[layer.name]] += 1

                output.register_hook(hook)
            return output

        backward(run, batches[number], act, batch_source(seed, number))
    for total in (seen, *sums.values()):
        reduce_over_all(total, "sum")
    samples = count_samples(batches)
    return {name: total / samples for name, total in sums.items() if seen[numbers[name]]}


def backward(run: Run, batch: Call, act: Act, source: torch.Generator) -> None:
    """Run the network on a batch, then a backward pass of the random loss, if there are gradients."""
    inputs, call = _differentiable(batch)
    with torch.enable_grad():
        loss = _random_loss(run(call, act), source)
        if loss is None or not loss.requires_grad or not inputs:
            return
        try:
            torch.autograd.grad(loss, inputs, allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:
            raise out_of_memory(error) or SecateurError(
                f"the gradients of the network could not be computed: {first_line(error)}",
                remedy="use a method without gradients (pfp, ft), or give the op a backward pass: "
                "torch.library.register_autograd",
            ) from error


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
    """Return a loss whose squared gradients, per sample, are the divergence to second order of a change of the output.

    It is the product of the output with a random direction v. For class scores with probabilities p, the mean of v v'
    is half of the Fisher information `diag(p) - p p'`; for anything else it is the identity over the mean square.
    """
    total = None
    for output in outputs:
        signs = 2.0 * torch.randint(0, 2, output.shape, generator=source) - 1
        if are_class_scores(output):
            p = output.detach().float().softmax(1)
            root = p.sqrt() * signs.to(p)
            way = (root - p * root.sum(1, keepdim=True)) / math.sqrt(2)
        else:
            square = output.detach().double().square().sum() / max(1, len(output) if output.dim() else 1)
            way = signs / float(square.sqrt().clamp_min(1e-12))
        part = (output * way.to(output)).sum() / math.sqrt(len(outputs))
        total = part if total is None else total + part
    return total
