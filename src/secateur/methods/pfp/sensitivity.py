"""The sensitivity of each channel: its share in the sums that layers compute from it on real data."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from secateur.channels.graph import ChannelGraph, Output
from secateur.checks import known_keywords
from secateur.errors import UsageError
from secateur.methods.pfp.shares import sites
from secateur.methods.pfp.statistics import check_kind, statistic
from secateur.network.batches import Call, batch_size, calls, example_of, forward, no_data, split, take
from secateur.network.examples import Example, revive
from secateur.network.layer_calls import GroupCall
from secateur.network.memory import free_memory
from secateur.network.modules import Slot, mode, owner
from secateur.network.observer import observe_slots
from secateur.network.precision import at_least_float32, check_all_finite
from secateur.network.processes import reduce_over_all, this_process
from secateur.progress import bar
from secateur.surgery.rewrite import runnable
from secateur.tracing.trace import trace

MEMORY = 256 << 20  # bytes; more does not make it faster


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivities of one group, and the numbers that its sample complexity depends on."""

    values: Tensor  # float64, one for each unit, in [0, 1]
    sites: int  # outputs times positions for one sample, over all layers that consume the group
    samples: int  # the number of samples that were measured
    kind: str = "max"  # the statistic of the shares; the sample complexity is about the largest only

    @property
    def mass(self) -> float:
        """The sum of the sensitivities, S in the paper."""
        return float(self.values.sum())


@known_keywords
def sensitivity(
    model: nn.Module,
    data: Any,
    *,
    kind: str = "max",
    graph: ChannelGraph | None = None,
    example: Example | None = None,
    keep: Sequence[str] = (),
    output: Output = "module",
    samples: int | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> dict[str, Tensor]:
    """Return the sensitivity of every prunable channel, by group.

    >>> sc.sensitivity(model, images)["conv1"]
    tensor([0.21, 0.87, 0.05], dtype=torch.float64)

    A channel has a share, from 0 to 1, in every sum that a layer computes from it: its own term over all terms of the
    same sign. There is one such site for each sample, layer that consumes the channel, output and position.

    Under `torch.distributed`, pass the same data to every process: each measures a part of every batch, and all return
    the result for all data.

    Args:
        model: the trained network.
        data: a tensor (one batch) or an iterable of batches; labels beside the inputs are ignored.
        kind: the statistic of the shares. With b the sum of the sensitivities of dropped channels, and z+ and z- the
            sums of a site by sign, it bounds the error of dropping them:

            - `max`: the largest, as in the paper. At every site of these samples the error is at most b (z+ + z-). Only
              this kind has a sample complexity, and so a guarantee before the cut.
            - `mean`: the mean over the sites of a layer, and the largest of several layers. The error over z+ + z- is
              at most b on average over the sites of each layer.
            - `rms`: likewise the root of the mean square; the root mean square of the error is at most b.
            - `q0.99`, or another number: a quantile, over the samples, of the largest share at a sample. As `max`, but
              each dropped channel may break it at 1 % of the samples. It runs the network sample by sample.
        graph: the result of `trace`; if not given, the network is traced with `example`, `keep` and `output`.
        example: inputs to trace the network with; one sample of the data if not given.
        keep: layer names or patterns whose filters stay.
        output: `"module"` to cut your own class, `"graph"` to cut the exported program.
        samples: the number of samples to use; all if not given.
        to_inputs: turns a batch into the input of the network: a tensor, a tuple of arguments or a dict of keywords.
        memory: bytes to use beside the forward pass; chosen from the free memory if not given.
        progress: show a progress bar on the standard error stream.
    """
    check_kind(kind)
    if graph is not None and example is None:
        example = revive(graph.example)
    stream = calls(data, example=example, to_inputs=to_inputs, samples=samples)
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
    """Return the sensitivities of every prunable group that some layer consumes.

    >>> measure(network, graph, calls(images), kind="mean")["conv1"].mass
    """
    shares = _Shares(graph, kind, memory)
    process = this_process()
    observer = observe_slots(network, shares.unit_at, shares.add)
    with mode(network, False), torch.no_grad(), bar("measuring sensitivities", None, progress) as advance:
        for batch in batches:
            own = take(batch, slice(process.rank, None, process.world)) if process.world > 1 else batch
            for part in split([own], 1) if shares.statistic.by_sample else [own]:
                samples = batch_size(part)
                if samples:
                    with observer:
                        forward(network, part)
                    shares.end_of_batch(samples)
                advance(samples)
    return shares.sensitivities()


def exceedance(
    network: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[Call],
    found: dict[str, Sensitivity],
    *,
    memory: int | None = None,
) -> dict[str, Tensor]:
    """Return by how much each fresh sample exceeds the sensitivities: for every group the largest ratio of each sample.

    A ratio is a unit's largest share at that sample over its sensitivity. `certificates.bounds.excess` turns the ratios
    into the constant C of the sample complexity.
    """
    for name, one in found.items():
        if one.kind != "max":
            raise UsageError(
                f"the sensitivities are of kind {one.kind}", layer=name, remedy="measure them with kind='max'"
            )
    ratios: dict[str, list[float]] = {name: [] for name in found}
    for call in split(batches, 1):
        fresh = measure(network, graph, [call], memory=memory)
        for name, one in found.items():
            now = fresh[name].values
            ratio = torch.where(now > 0, now / one.values, 0.0)
            ratios[name].append(float(ratio.max()))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in ratios.items()}


class _Shares:
    """A statistic of the shares of all units, one group after the other, and the number of sites and samples."""

    def __init__(self, graph: ChannelGraph, kind: str, memory: int | None) -> None:
        self.groups, self.kind, self.memory = graph.prunable, kind, memory
        starts = itertools.accumulate((group.size for group in self.groups), initial=0)
        self.starts = dict(zip((group.name for group in self.groups), starts))
        self.unit_at = self._units(graph)
        self.statistic = statistic(kind, sum(group.size for group in self.groups), self.unit_at)
        self.samples = 0
        self.sites: Counter[Slot] = Counter()  # per sample, the most of any batch
        self._sites_now: Counter[Slot] = Counter()  # of this batch

    def _units(self, graph: ChannelGraph) -> dict[Slot, Tensor]:
        """Return the unit at each index of every slot along which a layer consumes a prunable group."""
        wanted = {slot for group in self.groups for slot in group.consumes}
        beyond, found = sum(group.size for group in self.groups), {}
        for slot in sorted(wanted):
            # An index of no group, or of one that is kept, is a unit of its own; so are two of the same kept unit.
            at = beyond + torch.arange(graph.shapes[slot.parameter][slot.axis])
            for group in graph.groups:
                if slot not in group.slots:
                    continue
                for unit, indices in enumerate(group.indices[group.slots.index(slot)]):
                    at[list(indices)] = self.starts[group.name] + unit if group.prunable else int(at[indices[0]])
            found[slot] = at
        return found

    def add(self, call: GroupCall) -> None:
        """Add the shares in one layer."""
        x = at_least_float32(call.x)
        check_all_finite(x, "its input", layer=owner(call.slot.parameter))
        call = replace(call, x=x, weight=call.weight.detach().to(x.dtype))
        units, unit_of = self.unit_at[call.slot][call.channels.cpu()].unique(return_inverse=True)
        memory = self.memory or max(1 << 20, min(MEMORY, free_memory(x.device) // 4))
        self.statistic.add(call, units, unit_of.to(x.device), memory)
        self._sites_now[call.slot] += sites(call)

    def end_of_batch(self, samples: int) -> None:
        self.samples += samples
        self.statistic.end_of_batch()
        for slot, count in self._sites_now.items():
            self.sites[slot] = max(self.sites[slot], -(-count // samples))
        self._sites_now.clear()

    def sensitivities(self) -> dict[str, Sensitivity]:
        """Return the sensitivities of all groups, over the samples of all processes."""
        self.statistic.share_among_processes()
        samples = torch.tensor([self.samples])
        reduce_over_all(samples, "sum")
        sites = torch.tensor([sum(self.sites[slot] for slot in group.slots) for group in self.groups])
        reduce_over_all(sites, "max")
        if not samples:
            raise no_data()
        values = self.statistic.values().split([group.size for group in self.groups])
        return {
            group.name: Sensitivity(own, count, int(samples), self.kind)
            for group, own, count in zip(self.groups, values, sites.tolist(), strict=True)
            if count
        }
