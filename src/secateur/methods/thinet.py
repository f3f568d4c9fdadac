"""ThiNet: the channels go whose sum the next layer misses least (Luo et al. 2017)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateur.errors import UsageError
from secateur.forward import forward
from secateur.graph import Group
from secateur.methods.base import Evidence, Method
from secateur.methods.filters import checked, units_along
from secateur.program import mode
from secateur.select import generator
from secateur.sensitivity import no_data
from secateur.ties import Slot
from secateur.watch import Read, Watch

MEMORY = 64 << 20  # bytes


@dataclass(frozen=True)
class ThiNet(Method):
    """The place of each unit in the order in which a greedy search removes them; the first to go has 0.

    With c_j what unit j adds to a value that a layer computes, the removed set T grows by the unit that makes the sum
    over sampled values of (sum over T of c_j)^2 least. Each layer that reads the group counts relative to the mean
    square of its own values (without bias), so that layers of different scales weigh alike.

    samples: values drawn from what each layer makes of each point, each at a random output and place. A layer with
        groups is one for each of them, and a layer that makes fewer values gives all.

    >>> sc.prune(model, images, {"params": "50%"}, method=ThiNet(samples=30), seed=3)
    """

    samples: int = 10

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(
                f"samples is {self.samples}", remedy="give a whole number from 1 up; ThiNet's authors use 10"
            )

    def settings(self) -> dict[str, Any]:
        """As given."""
        return asdict(self)

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """The places of all units; a group that no layer reads in evaluation is left out."""
        tally = _Tally(evidence, self.samples)
        watch = Watch(evidence.network, tally.wanted, tally.see)
        with mode(evidence.network, False), torch.no_grad():
            for call in evidence.batches:
                with watch:
                    forward(evidence.network, call)
                tally.end_of_batch()
        if not tally.batches:
            raise no_data()
        return {name: removal_places(gram) for name, gram in checked(tally.grams()).items()}


def removal_places(gram: Tensor) -> Tensor:
    """For each unit its place in the greedy order of removal, from the inner products of what the units add.

    >>> removal_places(torch.diag(torch.tensor([4.0, 0.0, 1.0])))
    tensor([2., 0., 1.], dtype=torch.float64)
    """
    rise = gram.diagonal().clone()  # of the squared sum over the removed, when this unit joins them
    places = torch.empty(len(gram), dtype=torch.float64)
    for place in range(len(gram)):
        unit = int(rise.argmin())
        places[unit] = place
        rise += 2 * gram[unit]
        rise[unit] = math.inf
    return places


def draw(read: Read, samples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Point, output and place (along the flattened space) of values that a layer makes: as many for each point."""
    places = math.prod(read.patches)
    sites = len(read.weight) * places
    drawn = np.stack([rng.choice(sites, min(samples, sites), replace=False) for _ in range(len(read.x))])
    chosen = torch.from_numpy(drawn).to(read.x.device)
    points = torch.arange(len(chosen), device=chosen.device).repeat_interleave(chosen.shape[1])
    return points, chosen.flatten() // places, chosen.flatten() % places


def contributions(read: Read, points: Tensor, outputs: Tensor, places: Tensor) -> Tensor:
    """What each channel adds to each of these values, [values, channels] in float64."""
    windows = read.x
    for axis, (k, s, d) in enumerate(zip(read.weight.shape[2:], read.stride, read.dilation, strict=True), 2):
        windows = windows.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
    at: tuple[Any, ...] = torch.unravel_index(places, read.patches)
    seen = windows[(points, slice(None), *at)]  # [values, channels, *kernel]
    return (seen.cpu().double() * read.weight.detach()[outputs].cpu().double()).flatten(2).sum(2)


class _Tally:
    """The inner products of what units add to the sampled values, for every group and layer that reads it."""

    def __init__(self, evidence: Evidence, samples: int) -> None:
        self.seed, self.samples = evidence.seed, samples
        self.memory = evidence.memory or MEMORY
        self.batches = 0
        self.unit_of: dict[Slot, dict[str, Tensor]] = defaultdict(dict)
        self.sizes = {name: len(units) for name, units in evidence.kept.items()}
        for group in evidence.graph.prunable:
            for slot in _readers(group):
                length = evidence.graph.shapes[slot.parameter][slot.axis]
                self.unit_of[slot][group.name] = units_along(group, slot, length, evidence.kept[group.name])
        self.products: dict[tuple[str, Slot], Tensor] = {}
        self.squares: dict[Slot, float] = defaultdict(float)  # of the sampled values, summed up
        self._random: dict[tuple[Slot, int], np.random.Generator] = {}
        self._calls: Counter[Slot] = Counter()

    @property
    def wanted(self) -> dict[str, tuple[Slot, ...]]:
        names = sorted({slot.parameter for slot in self.unit_of})
        return {name: tuple(sorted(slot for slot in self.unit_of if slot.parameter == name)) for name in names}

    def see(self, read: Read) -> None:
        """Sample what one layer makes of a batch."""
        drawn = draw(read, self.samples, self._generator(read.slot))
        at_once = max(1, self.memory // (24 * read.weight[0].numel()))
        for points, outputs, places in zip(*(part.split(at_once) for part in drawn), strict=True):
            each = contributions(read, points, outputs, places)
            self.squares[read.slot] += float(each.sum(1).square().sum())
            for name, unit_of in self.unit_of[read.slot].items():
                units = self.sizes[name]
                added = each.new_zeros(len(each), units + 1).index_add_(1, unit_of[read.places.cpu()], each)[:, :units]
                key = name, read.slot
                self.products[key] = self.products.get(key, torch.zeros(())) + added.T @ added

    def _generator(self, slot: Slot) -> np.random.Generator:
        """One for each call of a layer, so that it makes no difference how the data is cut into batches."""
        key = slot, self._calls[slot]
        self._calls[slot] += 1
        if key not in self._random:
            self._random[key] = generator(self.seed, f"{slot.parameter} {slot.axis} {key[1]}")
        return self._random[key]

    def end_of_batch(self) -> None:
        self.batches += 1
        self._calls.clear()

    def grams(self) -> dict[str, Tensor]:
        """By group the inner products, each layer's over the sum of the squares of its values."""
        found: dict[str, Tensor] = {}
        for (name, slot), products in sorted(self.products.items(), key=lambda item: item[0]):
            found[name] = found.get(name, torch.zeros(())) + products / (self.squares[slot] or 1.0)
        return found


def _readers(group: Group) -> list[Slot]:
    return [slot for slot, reads in zip(group.slots, group.reads, strict=True) if reads]
