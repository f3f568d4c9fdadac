"""ThiNet: remove the channels whose sum the next layer misses least (Luo et al. 2017)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateur.errors import UsageError
from secateur.methods.base import Evidence, Method
from secateur.methods.filters import checked, units_along
from secateur.methods.pfp.sampling import generator
from secateur.network.batches import forward, no_data
from secateur.network.layer_calls import GroupCall
from secateur.network.modules import Slot, mode
from secateur.network.observer import observe_slots

MEMORY = 64 << 20  # bytes


@dataclass(frozen=True)
class ThiNet(Method):
    """Score each unit by its rank in the order in which a greedy search removes them; the first to go has 0.

    With c_j the term of unit j in a value that a layer computes, the removed set T grows by the unit that makes the sum
    over sampled values of (sum over T of c_j)^2 smallest. Each layer that consumes the group counts relative to the
    mean square of its own values (without bias), so that layers of different scales have the same weight.

    >>> sc.prune(model, images, {"params": "50%"}, method=ThiNet(samples=30), seed=3)

    Attributes:
        samples: the number of output values of each layer to sample for each input sample, at random outputs and
            positions. Each group of a grouped layer counts as a layer; one with fewer values gives all of them.
    """

    samples: int = 10

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(
                f"samples is {self.samples}", remedy="give an integer of at least 1; ThiNet's authors use 10"
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings as given."""
        return asdict(self)

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """Return the rank of every unit; a group that no layer consumes in evaluation is left out."""
        if not evidence.batches:
            raise no_data()
        products = _InnerProducts(evidence, self.samples)
        observer = observe_slots(evidence.network, products.unit_of, products.add)
        with mode(evidence.network, False), torch.no_grad():
            for call in evidence.batches:
                with observer:
                    forward(evidence.network, call)
                products.end_of_batch()
        return {name: removal_ranks(gram) for name, gram in checked(products.grams()).items()}


def removal_ranks(gram: Tensor) -> Tensor:
    """Return the rank of each unit in the greedy order of removal, from the inner products of their contributions.

    >>> removal_ranks(torch.diag(torch.tensor([4.0, 0.0, 1.0])))
    tensor([2., 0., 1.], dtype=torch.float64)
    """
    rise = gram.diagonal().clone()  # of the squared sum over the removed, when this unit joins them
    ranks = torch.empty(len(gram), dtype=torch.float64)
    for rank in range(len(gram)):
        unit = int(rise.argmin())
        ranks[unit] = rank
        rise += 2 * gram[unit]
        rise[unit] = math.inf
    return ranks


def sample_values(call: GroupCall, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sample, output and (flat) position of random output values of a layer, `count` for each sample."""
    positions = math.prod(call.positions)
    sites = len(call.weight) * positions
    sampled = np.stack([rng.choice(sites, min(count, sites), replace=False) for _ in range(len(call.x))])
    chosen = torch.from_numpy(sampled).to(call.x.device)
    samples = torch.arange(len(chosen), device=chosen.device).repeat_interleave(chosen.shape[1])
    return samples, chosen.flatten() // positions, chosen.flatten() % positions


def contributions(call: GroupCall, samples: Tensor, outputs: Tensor, positions: Tensor) -> Tensor:
    """Return the term of each channel in each of these values, [values, channels] in float64."""
    at: tuple[Any, ...] = torch.unravel_index(positions, call.positions)
    inputs = call.windows(call.x)[(samples, slice(None), *at)]  # [values, channels, *kernel]
    return (inputs.cpu().double() * call.weight.detach()[outputs].cpu().double()).flatten(2).sum(2)


class _InnerProducts:
    """The inner products of the units' contributions to sampled values, for every group and layer that consumes it."""

    def __init__(self, evidence: Evidence, samples: int) -> None:
        self.seed, self.samples = evidence.seed, samples
        self.memory = evidence.memory or MEMORY
        self.unit_of: dict[Slot, dict[str, Tensor]] = defaultdict(dict)
        self.sizes = {name: len(units) for name, units in evidence.kept.items()}
        for group in evidence.graph.prunable:
            for slot in group.consumes:
                length = evidence.graph.shapes[slot.parameter][slot.axis]
                self.unit_of[slot][group.name] = units_along(group, slot, length, evidence.kept[group.name])
        self.products: dict[tuple[str, Slot], Tensor] = {}
        self.squares: dict[Slot, float] = defaultdict(float)  # the sum of the squared values
        self._generators: dict[tuple[Slot, int], np.random.Generator] = {}
        self._calls: Counter[Slot] = Counter()

    def add(self, call: GroupCall) -> None:
        """Sample output values of one layer for a batch."""
        sampled = sample_values(call, self.samples, self._generator(call.slot))
        at_once = max(1, self.memory // (24 * call.weight[0].numel()))
        for samples, outputs, positions in zip(*(part.split(at_once) for part in sampled), strict=True):
            each = contributions(call, samples, outputs, positions)
            self.squares[call.slot] += float(each.sum(1).square().sum())
            for name, unit_of in self.unit_of[call.slot].items():
                added = each.new_zeros(len(each), self.sizes[name] + 1)
                added = added.index_add_(1, unit_of[call.channels.cpu()], each)[:, :-1]
                key = name, call.slot
                self.products[key] = self.products.get(key, torch.zeros(())) + added.T @ added

    def _generator(self, slot: Slot) -> np.random.Generator:
        """Return the generator of this call of a layer, so that the batch size makes no difference."""
        key = slot, self._calls[slot]
        self._calls[slot] += 1
        if key not in self._generators:
            self._generators[key] = generator(self.seed, f"{slot.parameter} {slot.axis} {key[1]}")
        return self._generators[key]

    def end_of_batch(self) -> None:
        self._calls.clear()

    def grams(self) -> dict[str, Tensor]:
        """Return the inner products by group, those of each layer over the sum of the squares of its values."""
        found: dict[str, Tensor] = {}
        for (name, slot), products in sorted(self.products.items(), key=lambda item: item[0]):
            found[name] = found.get(name, torch.zeros(())) + products / (self.squares[slot] or 1.0)
        return found
