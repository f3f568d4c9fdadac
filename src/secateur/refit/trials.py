"""The output divergence of trials: what happens to the output when some layers have other weights.

A trial changes the output of a layer by d. To second order, the divergence is the mean square of g d, with g the
gradient of a random loss whose squared gradients are the Fisher information. Neither is a new forward pass, so all
trials share one. The approximation holds for small changes, and larger ones diverge by a power of it, which a few
trials show that are run as a whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from secateur._torch import version_of
from secateur.network.batches import BATCH, Call, batch_size, count_samples, first_batches, split, take
from secateur.network.divergence import output_divergence
from secateur.network.layer_calls import FunctionCall, LayerCall
from secateur.network.modules import owner
from secateur.network.precision import check_all_finite
from secateur.network.processes import batch_source, own_share, reduce_over_all
from secateur.progress import bar
from secateur.refit.fisher import Act, Run, backward
from secateur.refit.resume import Recording, Resumed
from secateur.stages import stage

ESTIMATED = 256  # samples for the estimates, at most
CHECKS = 24  # trials, up to which all are run as a whole
SPREAD = 12  # of more, these are, spread over the range of the estimates: enough to fit the power
FEW = 32  # samples that these run on, or a quarter of those for the estimates
WHOLE = 512  # samples, if all trials are run as a whole
EXPONENTS = (0.5, 3.0)  # the power of the estimate lies between these
WEIGHT_GRADIENTS = 4  # the most numbers in the gradients of a weight, for each number in a layer's input and output
CACHE = 256 << 20  # bytes of results that may be kept from one trial to the next

K = TypeVar("K", bound=Hashable)
Refit = dict[str, tuple[Tensor, Tensor]]  # for layers by their weight: another weight, and a constant for each output


@dataclass(frozen=True)
class Measured:
    """The output divergence of one trial, as far as it was measured."""

    estimate: float  # to second order; zero without gradients
    on_few: float = 0.0  # the estimate on the samples of `whole`
    whole: float | None = None  # by running the trial


class Trials:
    """Measures trials on the same samples."""

    def __init__(
        self, run: Run, batches: Sequence[Call], *, seed: int, memory: int = CACHE, progress: bool = False
    ) -> None:
        """Prepare the measurement.

        Args:
            run: runs the network on a batch, with an action at each layer, and returns its outputs.
            batches: samples that took no part in the fits.
            memory: bytes of results that are kept from one trial to the next.
        """
        self.run, self.batches = run, batches
        self.seed, self.memory, self.progress = seed, memory, progress

    def measure(self, trials: Mapping[K, Refit], *, checks: int = CHECKS) -> dict[K, Measured]:
        """Return the divergence of each trial, estimated or measured.

        Args:
            checks: if there are no more trials, all are run as a whole, without estimates; else at most `SPREAD`.
        """
        keys = list(trials)
        if len(keys) <= checks:
            found = self.whole(list(trials.values()), first_batches(self.batches, WHOLE))
            return {key: Measured(0.0, 0.0, one) for key, one in zip(keys, found, strict=True)}
        used = first_batches(self.batches, ESTIMATED)
        with stage("trials: estimates"):
            each = self.estimates(list(trials.values()), used)  # [trials, samples]
        means = each.mean(1)
        few = first_batches(used, max(FEW, count_samples(used) // 4))
        known = [i for i in means.argsort().tolist() if means[i] > 0]
        runs = min(checks, SPREAD)
        spread = np.unique(np.linspace(0, len(known) - 1, runs).round().astype(int)) if known and runs else ()
        chosen = [known[i] for i in spread] + [i for i in range(len(keys)) if not means[i] > 0]
        with stage("trials: whole runs"):
            whole = dict(zip(chosen, self.whole([trials[keys[i]] for i in chosen], few), strict=True))
        on_few = each[:, : count_samples(few)].mean(1)
        return {key: Measured(float(means[i]), float(on_few[i]), whole.get(i)) for i, key in enumerate(keys)}

    def estimates(self, trials: Sequence[Refit], batches: Sequence[Call]) -> Tensor:
        """Return the divergence of each trial on each sample to second order, [trials, samples]."""
        by_layer: dict[str, list[tuple[int, Tensor, Tensor]]] = defaultdict(list)
        for number, refit in enumerate(trials):
            for name, (weight, constant) in refit.items():
                by_layer[name].append((number, weight, constant))
        ends = list(accumulate(map(batch_size, batches)))
        found = torch.zeros(len(trials), ends[-1], dtype=torch.float64)
        mine = own_share(range(len(batches)))
        with bar("estimating cuts", len(mine), self.progress) as advance:
            for number in mine:
                batch = batches[number]
                products = torch.zeros(len(trials), batch_size(batch), dtype=torch.float64)
                backward(self.run, batch, _multiplying(by_layer, products), batch_source(self.seed, number))
                found[:, ends[number] - batch_size(batch) : ends[number]] = products.square()
                advance()
        reduce_over_all(found, "sum")
        return found

    @torch.no_grad()
    def whole(self, trials: Sequence[Refit], batches: Sequence[Call]) -> list[float]:
        """Return the divergence of each trial by running it.

        Up to the first layer that a trial changes, everything is as in the network itself and not computed again.
        Several processes share the trials.
        """
        totals = torch.zeros(len(trials), dtype=torch.float64)
        mine = own_share(list(enumerate(trials)))
        recording = Recording.of(self.run, take(batches[0], slice(2))) if mine else Recording()
        starts = {number: recording.start(refit) for number, refit in mine}
        two = min(2, batch_size(batches[0]))
        kept = sum(recording.bytes[i] for start in set(starts.values()) for i in recording.used_from(start)) / two
        parts = list(split(batches, max(1, min(BATCH, int(self.memory / max(1.0, kept))))))
        with bar("trying cuts", len(parts) * len(mine), self.progress and bool(mine)) as advance:
            for batch in parts if mine else ():
                resumed = Resumed(self.run, batch, recording, starts.values())
                for number, refit in mine:
                    found = resumed.run_from(starts[number], _with_refit(refit))
                    totals[number] += output_divergence(found, resumed.outputs) * batch_size(batch)
                    advance()
        reduce_over_all(totals, "sum")
        return [total / count_samples(parts) for total in totals.tolist()]


def divergences(found: Mapping[K, Measured]) -> dict[K, float]:
    """Return the divergence of each trial: as measured if all were, else a power of the estimates.

    The power is the one that fits the trials that were measured, in logarithms, by least squares.

    >>> divergences({"a": Measured(0.1, 0.1, 0.02), "b": Measured(0.2, 0.2, 0.08), "c": Measured(0.4, 0.4, None)})
    {'a': 0.02, 'b': 0.08, 'c': 0.32}
    """
    pairs = [
        (math.log(one.on_few), math.log(one.whole))
        for one in found.values()
        if one.on_few > 0 and one.whole is not None and 0 < one.whole < math.inf
    ]
    slope, shift = 1.0, 0.0
    if pairs:
        x, y = np.array(pairs).T
        if len(pairs) > 2 and x.std() > 0:
            slope = float(np.clip(np.cov(x, y)[0, 1] / np.cov(x), *EXPONENTS))
        shift = float(y.mean() - slope * x.mean())

    def best(one: Measured) -> float:
        if one.estimate > 0:
            return math.exp(shift + slope * math.log(one.estimate))
        return 0.0 if one.whole is None else one.whole

    return {key: best(one) for key, one in found.items()}


def _multiplying(by_layer: Mapping[str, Sequence[tuple[int, Tensor, Tensor]]], products: Tensor) -> Act:
    """Return the action at each layer: in the backward pass, multiply gradients by changes, and add the products."""

    def act(layer: LayerCall, call: FunctionCall) -> Tensor:
        output: Tensor = call.run()
        if layer.name in by_layer and output.requires_grad and len(layer.input) % products.shape[1] == 0:
            version = version_of(layer.input)

            @torch.no_grad()
            def hook(gradient: Tensor) -> None:
                if version_of(layer.input) != version:  # overwritten: the whole trial decides
                    products[[number for number, _, _ in by_layer[layer.name]]] = math.nan
                    return
                sums, by_weight = layer.by_position(gradient).sum(2), _weight_gradients(layer, gradient)
                for number, weight, constant in by_layer[layer.name]:
                    change = weight - layer.weight.detach()
                    added = sums @ constant.to(sums.dtype)
                    if by_weight is not None:
                        added += by_weight @ change.flatten()
                    else:
                        moved = call.run(weight=change)
                        if layer.bias is not None:
                            moved = moved - _along_channels(layer.bias.detach(), layer)
                        added += (moved * gradient).flatten(1).sum(1)
                    products[number] += added.view(products.shape[1], -1).sum(1).double().cpu()

            output.register_hook(hook)
        return output

    return act


def _weight_gradients(layer: LayerCall, gradient: Tensor) -> Tensor | None:
    """Return the gradient of each sample for the weight, [samples, weight], which all trials of the layer share.

    Only for a layer with a kernel of one and no stride; None for others, where running each trial is faster, and where
    the gradients of the weight would take much more memory than the maps.
    """
    if layer.transposed or layer.groups > 1 or any(layer.padding) or {*layer.kernel, *layer.stride} != {1}:
        return None
    if layer.weight.numel() * len(gradient) > WEIGHT_GRADIENTS * (gradient.numel() + layer.input.numel()):
        return None
    return (layer.by_position(gradient) @ layer.x.flatten(2).mT).flatten(1)


def _along_channels(values: Tensor, layer: LayerCall) -> Tensor:
    return values.view([-1] + [1] * (0 if layer.linear else len(layer.stride)))


def _with_refit(refit: Refit) -> Act:
    """Return the action at each layer of a trial."""

    def act(layer: LayerCall, call: FunctionCall) -> Tensor:
        if layer.name not in refit:
            output: Tensor = call.run()
            return output
        check_all_finite(layer.input, "its input", layer=owner(layer.name))
        weight, constant = refit[layer.name]
        changed: Tensor = call.run(weight=weight)
        return changed + _along_channels(constant, layer)

    return act
