"""An estimate of the time that pruning will take, from a timed forward pass and a timed matrix product."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.network.batches import eval_outputs
from secateur.network.examples import Example, call_arguments
from secateur.network.modules import unwrap
from secateur.pruning.settings import Effort, PruneSettings
from secateur.refit.least_squares import LARGEST

BATCH = 8  # samples in the timed forward pass
SIZE = 384  # of the timed matrix product
TRACE = 0.06  # seconds for each layer, on a machine where PRODUCT seconds are the time of the matrix product
PRODUCT = 0.006
PASSES: dict[Effort, float] = {"quick": 7.0, "default": 8.0, "thorough": 40.0}  # forward passes over all samples
SCORES = 4.0  # the same for methods without second moments
CUBES = 4.0  # products of matrices as large as the second moments of a layer


@dataclass(frozen=True)
class Estimate:
    """The seconds that pruning will take, about; a busy machine and an unusual network take longer."""

    seconds: float
    forward_seconds: float  # of a pass over all samples

    def __str__(self) -> str:
        return (
            f"about {duration(self.seconds)} (a forward pass over the samples takes {duration(self.forward_seconds)})"
        )


def estimate(network: nn.Module, example: Example, samples: int, settings: PruneSettings) -> Estimate:
    """Return how long `prune` will take with these settings.

    >>> print(estimate(model, images[:1], 256, PruneSettings()))
    about 3 minutes (a forward pass over the samples takes 24 s)
    """
    args, kwargs = call_arguments(example)
    batch = pytree.tree_map(_repeated, (args, kwargs))
    inner = unwrap(network)
    each = _timed(lambda: eval_outputs(inner, batch)) / BATCH
    a = torch.ones(SIZE, SIZE, dtype=torch.float64)
    product = _timed(lambda: a @ a)
    widths = [weight[0].numel() for weight in inner.parameters() if weight.dim() > 1 and len(weight)]
    seconds = TRACE * len(widths) * product / PRODUCT
    method, _ = settings.resolve()
    if method.repairs or settings.repaired:
        cubes = sum((min(n, LARGEST) / SIZE) ** 3 for n in widths)
        seconds += PASSES[settings.effort] * samples * each + CUBES * cubes * product
    else:
        seconds += SCORES * samples * each
    return Estimate(settings.steps * seconds, samples * each)


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(170)
    '3 minutes'
    """
    if seconds < 90:
        return f"{max(1, math.ceil(seconds)):.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _repeated(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.dim():
        return leaf
    return leaf[:1].repeat(BATCH, *[1] * (leaf.dim() - 1))


def _timed(run: Callable[[], Any]) -> float:
    """Return the seconds of the second run; the first one warms up."""
    run()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
