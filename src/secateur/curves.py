"""How much harm a group's shrinking does: which units go in which order, and what each costs at the output.

Three passes over the calibration data: the second moments of what every layer reads; how strongly the output reacts to
an error in each thing that a layer makes; and, group by group, how far the output really moves when half of the group
is gone, or most of it, its readers fitted anew. The last sets the scale of the curves, so that groups can be
compared. It looks at points that the others do not: a layer that reads more values than there are points can be fitted
to them without an error whatever is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur.batches import Call, apart, batch_size, held_of, seen_of, take
from secateur.eliminate import Alone, Order, Reader, eliminate
from secateur.errors import SecateurError
from secateur.forward import forward
from secateur.graph import ChannelGraph, Group
from secateur.layers import AtLayers, LayerCall, Run
from secateur.program import mode, named_tensors, owner
from secateur.progress import bar
from secateur.ridge import add_squares, wide

BATCH = 64  # points that run together
PATCHES = 1 << 15  # rows that the moments look at, if there are so many
LARGEST = 6144  # the most that a layer may read at one place for its moments to be kept; beyond,
WIDE_ROWS = 512  # rows show what each unit adds by itself
RIDGE = 1e-3  # of the mean square of what is read
PROBED = 256  # points for the reaction of the output
TRIED = 128  # points for the trials of each group, or more,
PASSES = 8  # if all trials together then run over no more than so many times the points of the moments
FRACTIONS = (0.5, 0.85)  # of a group that go in its trials
REMEMBERED = 1 << 30  # bytes that may be remembered from one trial to the next


@dataclass(frozen=True)
class Curve:
    """How a group shrinks: its units in the order in which they go, and the harm done once 0, 1, 2, ... have gone."""

    removed: tuple[int, ...]
    harm: Tensor  # float64, rising from 0


def curves(
    network: nn.Module,
    graph: ChannelGraph,
    batches: Sequence[Call],
    kept: Mapping[str, Sequence[int]],
    *,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Curve]:
    """The curve of every prunable group that some layer reads, over the units in `kept`, counted among those.

    >>> curves(model, graph, [((images,), {})], {"conv1": range(20)})["conv1"].removed[:3]
    (17, 4, 11)
    """
    study = _Study(network, graph, pieces(batches), seed)
    orders: dict[str, Order] = {}
    refits: dict[tuple[str, int], _Refit] = {}
    with mode(network, False), bar("weighing channels", len(graph.prunable) + 2, progress) as advance:
        study.take_moments()
        advance()
        study.take_reactions()
        advance()
        for group in graph.prunable:
            units = kept[group.name]
            readers = study.readers(group, units)
            if readers and len(units) > 1:
                order = orders[group.name] = eliminate(readers, RIDGE)
                for count in sorted({max(1, int(fraction * len(units))) for fraction in FRACTIONS}):
                    refits[group.name, count] = study.refitted(group, [units[i] for i in order.removed[:count]])
            advance()
    with mode(network, False):
        harms = dict(zip(refits, study.harms(list(refits.values()), progress), strict=True))
    return {
        name: scaled(order, {count: harm for (group, count), harm in harms.items() if group == name})
        for name, order in orders.items()
    }


def scaled(order: Order, harms: Mapping[int, float]) -> Curve:
    """The curve through the harm that trials found with so many units gone; in between and beyond, as the errors go.

    >>> scaled(Order((2, 0, 1), torch.tensor([0.0, 1.0, 4.0])), {1: 10.0}).harm
    tensor([ 0., 10., 40.])
    """
    errors = order.errors.numpy()
    ratios = {count: harm / errors[count] for count, harm in harms.items() if errors[count] > 0 and 0 < harm < math.inf}
    if not ratios:
        return Curve(order.removed, order.errors)
    scale = np.exp(np.interp(np.arange(len(errors)), list(ratios), np.log(list(ratios.values()))))
    return Curve(order.removed, torch.from_numpy(np.maximum.accumulate(errors * scale)))


def pieces(batches: Sequence[Call], size: int = BATCH) -> list[Call]:
    """The same points in batches of at most this size."""
    return [take(b, slice(i, i + size)) for b in batches for i in range(0, batch_size(b), size)]


@dataclass
class _Seen:
    """What was seen of one layer: for each of its groups the moments of [x, 1]."""

    grams: list[Tensor]
    count: int = 0
    places: int = 0
    reaction: Tensor | None = None  # [outputs], per point the sum over places of the squared gradient


@dataclass
class _Wide:
    """What was seen of a layer that reads too much: for each unit of a group what it adds to each output."""

    sums: Tensor  # [outputs, units]
    squares: Tensor
    count: int = 0

    @property
    def mean(self) -> Tensor:
        return self.sums / self.count

    @property
    def variance(self) -> Tensor:
        """What is left of a unit's part when its mean goes into a constant."""
        return (self.squares / self.count - self.mean.square()).clamp_min(0)


_Refit = dict[str, tuple[Tensor, Tensor]]  # for layers by their weights: other weights, and a constant for each output


class _Study:
    def __init__(self, network: nn.Module, graph: ChannelGraph, batches: list[Call], seed: int) -> None:
        parts = apart(batches)
        self.network, self.seed = network, seed
        self.batches = seen_of(parts)
        self.held = held_of(parts) or self.batches  # for the trials: what was fitted would look too good
        self.points = sum(map(batch_size, self.batches))
        self.wanted = {
            slot.parameter for group in graph.prunable for slot, reads in zip(group.slots, group.reads) if reads
        }
        self.groups = graph.prunable
        self.seen: dict[str, _Seen] = {}
        self.wide: dict[tuple[str, str], _Wide] = {}  # by weight and group
        self.calls: dict[str, LayerCall] = {}  # an example of each, with a single point
        self.bytes_each = 0.0  # of what all layers make of a point

    def _run(self, batch: Call, act: Callable[[str, LayerCall, Run], Tensor]) -> list[Tensor]:
        with AtLayers(self.network, act):
            given = forward(self.network, batch)
        return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    def take_moments(self) -> None:
        """One pass: the second moments of what the layers read."""
        source = torch.Generator().manual_seed(self.seed)

        def act(name: str, call: LayerCall, run: Run) -> Tensor:
            if name in self.wanted:
                self._add(name, call, source)
            made = run(None)
            self.bytes_each += made.numel() * made.element_size() / self.points
            return made

        with torch.no_grad():
            for batch in self.batches:
                self._run(batch, act)
        for name, seen in self.seen.items():
            _check_finite(name, *seen.grams)

    def _add(self, name: str, call: LayerCall, source: torch.Generator) -> None:
        n, places = call.plain(call.weight).shape[2], math.prod(call.patches)
        if n > LARGEST:
            self._add_wide(name, call, source)
            return
        seen = self.seen.get(name)
        if seen is None:
            empty = torch.zeros(n + 1, n + 1, dtype=torch.float64, device=call.input.device)
            seen = self.seen[name] = _Seen([empty.clone() for _ in range(call.groups)], places=places)
            self.calls[name] = replace(call, input=call.input[:1])
        chosen = some_places(places, max(PATCHES, 8 * n), self.points, source).to(call.input.device)
        for gram, columns in zip(seen.grams, call.columns(chosen), strict=True):
            add_squares(gram, wide(columns.flatten(0, 1)))
        seen.count += len(call.input) * len(chosen)

    def _add_wide(self, name: str, call: LayerCall, source: torch.Generator) -> None:
        if call.groups > 1:
            return
        self.seen.setdefault(name, _Seen([]))
        self.calls.setdefault(name, replace(call, input=call.input[:1]))
        chosen = some_places(math.prod(call.patches), WIDE_ROWS, self.points, source).to(call.input.device)
        columns = wide(call.columns(chosen)[0].flatten(0, 1))
        weight = wide(call.plain(call.weight.detach())[0])
        for group in self.groups:
            for slot, indices in zip(group.slots, group.indices, strict=True):
                if slot.parameter != name or slot.axis != (0 if call.transposed else 1):
                    continue
                empty = torch.zeros(call.outputs, group.size, dtype=torch.float64, device=weight.device)
                seen = self.wide.setdefault((name, group.name), _Wide(empty, empty.clone()))
                rows = [torch.tensor(_rows(call, unit, 0), device=weight.device) for unit in indices]
                for number, at in enumerate(rows):
                    added = (columns[:, at] @ weight[:, at].T).double()  # [rows, outputs]
                    seen.sums[:, number] += added.sum(0)
                    seen.squares[:, number] += added.square().sum(0)
                seen.count += len(columns)

    def take_reactions(self) -> None:
        """One pass with gradients: how strongly the output reacts to what each layer makes."""
        source = torch.Generator().manual_seed(self.seed)
        sums: dict[str, Tensor] = {}

        def act(name: str, call: LayerCall, run: Run) -> Tensor:
            made = run(None)
            if name in self.seen and made.requires_grad:

                def hook(gradient: Tensor) -> None:
                    squares = call.as_places(gradient).double().square().sum((0, 2))
                    sums[name] = sums.get(name, 0) + squares

                made.register_hook(hook)
            return made

        points = 0
        for batch in self.batches:
            if points >= PROBED:
                break
            inputs, call = _differentiable(batch)
            if not inputs:
                break
            with torch.enable_grad():
                loss = _random_loss(self._run(call, act), source)
                if loss is None or not loss.requires_grad:
                    break
                torch.autograd.grad(loss, inputs, allow_unused=True)
            points += batch_size(batch)
        for name, total in sums.items():
            self.seen[name].reaction = total / points

    def readers(self, group: Group, units: Sequence[int]) -> list[Reader | Alone]:
        """The layers that read a group, as the elimination takes them."""
        tensors = named_tensors(self.network)
        found: list[Reader | Alone] = []
        for slot, indices, reads in zip(group.slots, group.indices, group.reads, strict=True):
            seen = self.seen.get(slot.parameter) if reads else None
            if seen is None:
                continue
            call = self.calls[slot.parameter]
            weighing = torch.ones(call.outputs) if seen.reaction is None else seen.reaction.sqrt()
            single = self.wide.get((slot.parameter, group.name))
            if single is not None:
                found.append(Alone((single.variance * weighing.square()[:, None]).sum(0)[list(units)]))
            if not seen.count:
                continue
            plain = call.plain(tensors[slot.parameter].detach()).double()
            weighed = F.pad(plain, (0, 1)) * weighing.view(call.groups, -1, 1)
            for k, gram in enumerate(seen.grams):
                rows = tuple(_rows(call, indices[unit], k) for unit in units)
                found.append(Reader(gram / seen.count, weighed[k], rows))
        return found

    @torch.no_grad()
    def harms(self, trials: Sequence[_Refit], progress: bool) -> list[float]:
        """How far the output moves with the refits of each trial.

        Up to the first layer that a trial changes all is as in the network as it is, so what the layers make there is
        remembered and not computed again.
        """
        if not trials:
            return []
        totals = [0.0] * len(trials)
        batches = self._tried(len(trials))

        def remember(name: str, call: LayerCall, run: Run) -> Tensor:
            if name in self.seen:
                _check_finite(name, call.input)
            made.append(run(None))
            return made[-1].clone()  # what comes next may write to it

        with bar("trying cuts", len(batches) * len(trials), progress) as advance:
            for batch in batches:
                made: list[Tensor] = []
                wanted = self._run(batch, remember)
                for number, refit in enumerate(trials):
                    totals[number] += movement(self._run(batch, _with(refit, made)), wanted) * batch_size(batch)
                    advance()
        return [total / sum(map(batch_size, batches)) for total in totals]

    def _tried(self, trials: int) -> list[Call]:
        """The points of the trials, so many at a time that what all layers make of them can be remembered."""
        wanted = max(TRIED, PASSES * self.points // trials)
        size = max(1, min(BATCH, int(REMEMBERED / max(1.0, self.bytes_each))))
        before = accumulate(map(batch_size, self.held), initial=0)
        return pieces([batch for batch, points in zip(self.held, before) if points < wanted], size)

    def refitted(self, group: Group, gone: Sequence[int]) -> _Refit:
        """For every reader its weights, with nothing for the units that are gone, and a constant for each output."""
        tensors = named_tensors(self.network)
        found = {}
        for slot, indices, reads in zip(group.slots, group.indices, group.reads, strict=True):
            seen = self.seen.get(slot.parameter) if reads else None
            if seen is None:
                continue
            call, old = self.calls[slot.parameter], tensors[slot.parameter].detach()
            plain = F.pad(call.plain(old).double(), (0, 1))
            single = self.wide.get((slot.parameter, group.name))
            if single is not None:
                for unit in gone:
                    plain[0, :, list(_rows(call, indices[unit], 0))] = 0
                    plain[0, :, -1] += single.mean[:, unit]
            for k, gram in enumerate(seen.grams):
                stays = torch.ones(len(gram), dtype=torch.bool)
                for unit in gone:
                    stays[list(_rows(call, indices[unit], k))] = False
                inner = gram[stays][:, stays] / seen.count
                ridge = RIDGE * inner.diagonal().mean()
                inner.diagonal().add_(ridge)
                goal = plain[k] @ gram[:, stays] / seen.count + ridge * plain[k][:, stays]
                plain[k, :, stays] = torch.linalg.solve(inner, goal.T).T
                plain[k, :, ~stays] = 0
            found[slot.parameter] = call.layered(plain[..., :-1]).to(old.dtype), plain[..., -1].flatten().to(old.dtype)
        return found


def _check_finite(name: str, *tensors: Tensor) -> None:
    if not all(torch.isfinite(tensor).all() for tensor in tensors):
        raise SecateurError(
            "what it reads is NaN or infinite", layer=owner(name), remedy="check the inputs and the weights"
        )


def _with(refit: _Refit, made: Sequence[Tensor]) -> Callable[[str, LayerCall, Run], Tensor]:
    """What to do at each layer of a trial: all as it was, up to the first layer that was fitted anew."""
    known: Iterator[Tensor] | None = iter(made)

    def act(name: str, call: LayerCall, run: Run) -> Tensor:
        nonlocal known
        if name in refit:
            known = None
            weight, constant = refit[name]
            return run(weight) + constant.view([-1] + [1] * (0 if call.linear else len(call.stride)))
        return run(None) if known is None else next(known).clone()

    return act


def _rows(call: LayerCall, indices: Sequence[int], group: int) -> tuple[int, ...]:
    """Where the indices of a unit along the input axis of a weight lie among what a group of the layer reads."""
    kernel = math.prod(call.kernel)
    if call.transposed and call.groups > 1:
        own = call.weight.shape[0] // call.groups
        indices = [i - group * own for i in indices if group * own <= i < (group + 1) * own]
    return tuple(i * kernel + tap for i in indices for tap in range(kernel))


def some_places(places: int, rows: int, points: int, source: torch.Generator) -> Tensor:
    """Some places of each point, so that all points together give about so many rows; else all of them."""
    wanted = max(1, math.ceil(rows / points))
    if wanted >= places:
        return torch.arange(places)
    return torch.randperm(places, generator=source)[:wanted].sort().values


def _differentiable(batch: Call) -> tuple[list[Tensor], Call]:
    """The batch with inputs that take gradients."""
    inputs: list[Tensor] = []

    def fresh(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        inputs.append(leaf.detach().clone().requires_grad_())
        return inputs[-1].clone()  # so that forward may write to it

    with torch.enable_grad():
        return inputs, pytree.tree_map(fresh, batch)


def _random_loss(outputs: Sequence[Tensor], source: torch.Generator) -> Tensor | None:
    """A loss whose squared gradients tell how the output reacts: for scores of classes, of labels that the network
    itself draws; for anything else, along a random direction."""
    total = None
    for output in outputs:
        if _are_scores(output):
            labels = torch.multinomial(output.detach().float().softmax(1).cpu(), 1, generator=source)[:, 0]
            part = F.cross_entropy(output, labels.to(output.device), reduction="sum")
        else:
            way = torch.randn(output.shape, generator=source).to(output)
            part = (output * way).sum() / output.detach().square().mean().sqrt().clamp_min(1e-12)
        total = part if total is None else total + part
    return total


def movement(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """How far outputs moved: for scores of classes the divergence of their probabilities, else the relative square."""
    total = 0.0
    for new, old in zip(map(wide, found), map(wide, wanted), strict=True):
        if _are_scores(old):
            gap = F.kl_div(new.log_softmax(1), old.log_softmax(1), log_target=True, reduction="batchmean")
        else:
            gap = (new - old).square().sum() / old.square().sum().clamp_min(1e-24)
        total += max(0.0, float(gap)) if gap.isfinite() else math.inf
    return total


def _are_scores(output: Tensor) -> bool:
    return output.dim() == 2 and output.shape[1] > 1
