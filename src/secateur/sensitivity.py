"""How much each channel matters: its share in what layers compute from it, on real data, the largest or a mean."""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur import rewrite
from secateur.batches import Call, batch_size, calls, example_of, take
from secateur.errors import SecateurError, UsageError
from secateur.forward import forward
from secateur.graph import ChannelGraph, Output
from secateur.processes import in_use, this_process
from secateur.program import Example, mode, owner, revive, unwrap
from secateur.shares import sites
from secateur.statistics import check_kind, reduce_over_all, statistic
from secateur.ties import Slot
from secateur.trace import trace
from secateur.watch import Read, Watch

MEMORY = 256 << 20  # bytes; more does not make it faster


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivities of one group, and what its sample complexity depends on."""

    values: Tensor  # float64, one for each unit, in [0, 1]
    sites: int  # outputs times patches of one point, over all layers that read the group
    points: int  # how many points were seen
    kind: str = "max"  # what of the shares; the sample complexity is about the largest only

    @property
    def mass(self) -> float:
        """The sum of the sensitivities, S in the paper."""
        return float(self.values.sum())


def sensitivity(
    model: nn.Module,
    data: Any,
    *,
    kind: str = "max",
    graph: ChannelGraph | None = None,
    example: Example | None = None,
    keep: Sequence[str] = (),
    output: Output = "module",
    points: int | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> dict[str, Tensor]:
    """The sensitivity of every channel that may be cut, by group.

    >>> sc.sensitivity(model, images)["conv1"]
    tensor([0.21, 0.87, 0.05], dtype=torch.float64)

    A channel has a share, from 0 to 1, in every sum that a layer computes from it: what it adds, over all that is added
    with the same sign. There is one such site for each point, layer that reads it, output and patch.

    kind: what of the shares the sensitivity is, and what dropping channels then does, with b the sum of the dropped
        sensitivities and z+ and z- the sums of a site by sign.
        `max`: the largest, the paper's. At every site of these points the error is at most b (z+ + z-). The one kind
        that the sample complexity, and so any guarantee before the cut, is about.
        `mean`: the mean over the sites of a layer, the largest one of several layers. The error over z+ + z- is at most
        b on average over the sites of each layer.
        `rms`: likewise the root of the mean square, and the root of the error's mean square is at most b.
        `q0.99`, or another number: a quantile over points of the largest share at a point. As `max`, but each channel
        dropped may break it at 1 % of the points. It runs the network point by point.
    data: a tensor (one batch) or an iterable of batches; labels beside the inputs are ignored.
    graph: what `trace` gave; otherwise the network is traced with `example`, `keep` and `output`.
    points: use so many points; all of them if not given.
    memory: bytes that the pass may use beside the forward pass; chosen from what is free if not given.
    progress: show a progress bar on the standard error stream.

    Under `torch.distributed` give every process the same data: each takes its share of every batch, and all get the
    result of the whole.
    """
    check_kind(kind)
    if graph is not None and example is None:
        example = revive(graph.example)
    stream = calls(data, example=example, to_inputs=to_inputs, points=points)
    if graph is None:
        first = next(stream, None)
        if first is None:
            raise no_data()
        graph = trace(model, example_of(first) if example is None else example, keep=keep, output=output)
        stream = itertools.chain([first], stream)
    found = measure(runnable(model, graph), graph, stream, kind=kind, memory=memory, progress=progress)
    return {name: one.values for name, one in found.items()}


def measure(
    network: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[Call],
    *,
    kind: str = "max",
    memory: int | None = None,
    progress: bool = False,
) -> dict[str, Sensitivity]:
    """The sensitivities of every prunable group that some layer reads; a group that none reads is left out.

    >>> measure(network, graph, calls(images), kind="mean")["conv1"].mass
    """
    tally = _Tally(graph, kind, memory)
    _run(network, batches, tally, progress)
    tally.share_among_processes()
    if not tally.points:
        raise no_data()
    values = tally.statistic.values()
    return {
        name: Sensitivity(values[slice(*span)], tally.sites[name], tally.points, kind)
        for name, span in tally.spans.items()
        if tally.sites[name]
    }


def exceedance(
    network: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[Call],
    found: dict[str, Sensitivity],
    *,
    memory: int | None = None,
    progress: bool = False,
) -> dict[str, Tensor]:
    """How far each fresh point goes beyond the sensitivities: by group, for every point the largest ratio.

    A ratio is a unit's largest share on that point over its sensitivity. `bounds.excess` turns the ratios into the
    constant C of the sample complexity.
    """
    for name, one in found.items():
        if one.kind != "max":
            raise UsageError(
                f"the sensitivities are of kind {one.kind}", layer=name, remedy="measure them with kind='max'"
            )
    ratios: dict[str, list[float]] = {name: [] for name in found}
    for call in _points(batches):
        fresh = measure(network, graph, [call], memory=memory)
        for name, one in found.items():
            now = fresh[name].values
            ratio = torch.where(now > 0, now / one.values, 0.0)
            ratios[name].append(float(ratio.max()))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in ratios.items()}


def _points(batches: Iterable[Call]) -> Iterator[Call]:
    for call in batches:
        for number in range(batch_size(call)):
            yield take(call, slice(number, number + 1))


def runnable(model: nn.Module, graph: ChannelGraph) -> nn.Module:
    """The network whose parameters the groups name: the user's own, or the program that a graph cut would cut."""
    model = unwrap(model)
    if graph.output == "module":
        return model
    own = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))

    def adapt(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(own.device, own.dtype if leaf.is_floating_point() else leaf.dtype)

    return rewrite.build(rewrite.programs_of(model, pytree.tree_map(adapt, revive(graph.example))))


class _Tally:
    """What was seen so far: a statistic of every unit's shares, the groups one after the other, and what it is over."""

    def __init__(self, graph: ChannelGraph, kind: str, memory: int | None) -> None:
        self.memory = memory
        self.points = 0
        self.spans: dict[str, tuple[int, int]] = {}
        end = 0
        for group in graph.prunable:
            self.spans[group.name] = (end, end + group.size)
            end += group.size
        self.kept = end  # stands for a unit that stays: its share is not asked for
        self.unit_at = self._wiring(graph)
        self.statistic = statistic(kind, end, self.unit_at)
        self.sites: Counter[str] = Counter()
        self._seen: Counter[Slot] = Counter()
        self._readers = {slot: [g.name for g in graph.prunable if slot in g.slots] for slot in self.unit_at}
        self._most: Counter[Slot] = Counter()

    def _wiring(self, graph: ChannelGraph) -> dict[Slot, Tensor]:
        """For every slot that reads a prunable group: which unit sits at each index."""
        wanted = {s for group in graph.prunable for s, reads in zip(group.slots, group.reads, strict=True) if reads}
        wiring = {}
        for slot in sorted(wanted):
            # An index of no group, or of one that stays, is a unit of its own; so are two of the same kept unit.
            at = self.kept + torch.arange(graph.shapes[slot.parameter][slot.axis])
            for group in graph.groups:
                if slot not in group.slots:
                    continue
                for unit, indices in enumerate(group.indices[group.slots.index(slot)]):
                    first = self.spans[group.name][0] + unit if group.prunable else int(at[indices[0]])
                    at[list(indices)] = first
            wiring[slot] = at
        return wiring

    @property
    def wanted(self) -> dict[str, tuple[Slot, ...]]:
        slots: dict[str, list[Slot]] = defaultdict(list)
        for slot in self.unit_at:
            slots[slot.parameter].append(slot)
        return {name: tuple(sorted(several)) for name, several in slots.items()}

    def see(self, read: Read) -> None:
        """Take one layer's reading into account."""
        x, weight = (t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in (read.x, read.weight))
        _check_activations(x, read.slot)
        read = Read(read.slot, read.places, x, weight.detach().to(x.dtype), read.stride, read.dilation)
        units, unit_of = self.unit_at[read.slot][read.places.cpu()].unique(return_inverse=True)
        self.statistic.see(read, units, unit_of.to(x.device), self.memory or _free(x.device))
        self._seen[read.slot] += sites(read)

    def end_of_batch(self, points: int) -> None:
        self.points += points
        self.statistic.end_of_batch()
        for slot, count in self._seen.items():
            self._most[slot] = max(self._most[slot], -(-count // points))
        self._seen.clear()
        self.sites = Counter()
        for slot, count in self._most.items():
            for name in self._readers[slot]:
                self.sites[name] += count

    def share_among_processes(self) -> None:
        """Every process gets what all have seen."""
        if not in_use():
            return
        names = list(self.spans)
        most, points = torch.tensor([self.sites[name] for name in names]), torch.tensor([self.points])
        self.statistic.share_among_processes()
        reduce_over_all(most, dist.ReduceOp.MAX)
        reduce_over_all(points, dist.ReduceOp.SUM)
        self.sites = Counter(dict(zip(names, most.tolist(), strict=True)))
        self.points = int(points)


def _run(network: nn.Module, batches: Iterable[Call], tally: _Tally, progress: bool) -> None:
    process = this_process()
    watch = Watch(network, tally.wanted, tally.see)
    with mode(network, False), torch.no_grad(), _bar(progress) as advance:
        for whole in batches:
            mine = take(whole, slice(process.rank, None, process.world)) if process.world > 1 else whole
            for part in _points([mine]) if tally.statistic.by_point else [mine]:
                points = batch_size(part)
                if points:
                    with watch:
                        forward(network, part)
                    tally.end_of_batch(points)
                advance(points)


def _check_activations(x: Tensor, slot: Slot) -> None:
    low, high = torch.aminmax(x)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        bad = int((~torch.isfinite(x)).sum())
        raise SecateurError(
            f"{bad} of {x.numel()} values that it reads are NaN or infinite",
            layer=owner(slot.parameter),
            remedy="check the inputs for such values, and that the network evaluates soundly on them",
        )


def no_data() -> SecateurError:
    """What is said when there is nothing to measure on."""
    return SecateurError(
        "there is no data", layer="data", remedy="give at least one batch of inputs; 128 points are few"
    )


def _free(device: torch.device) -> int:
    """A part of the memory that is free."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            free = 4 * MEMORY
    return max(1 << 20, min(MEMORY, free // 4))


@contextmanager
def _bar(show: bool) -> Iterator[Callable[[int], None]]:
    words = TextColumn("measuring sensitivities: {task.completed} points")
    with Progress(SpinnerColumn(), words, console=Console(stderr=True), transient=True, disable=not show) as bar:
        task = bar.add_task("", total=None)
        yield lambda points: bar.advance(task, points)
