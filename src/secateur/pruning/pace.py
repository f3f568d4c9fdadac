"""The time of cut networks as a part of the original's: predicted from a latency table, and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from secateur.channels.graph import ChannelGraph
from secateur.costs.sizes import Sizes
from secateur.costs.timing import forward_pass, interleaved, latency
from secateur.network.examples import Example
from secateur.network.modules import Slot, unwrap
from secateur.network.processes import from_first
from secateur.profiling.cache import kept_table
from secateur.profiling.measure import shapes_of
from secateur.profiling.stopwatch import clock
from secateur.profiling.table import LatencyTable
from secateur.pruning.settings import PruneSettings
from secateur.storage.export import onnx_pass


@dataclass(frozen=True)
class Pace:
    """How fast cut networks are.

    Attributes:
        table: the times of the layers by their sizes.
        here: whether networks can be timed: the table is of this machine, not from a file.
        notes: remarks for the result.
    """

    model: nn.Module
    example: Example
    table: LatencyTable
    here: bool
    notes: tuple[str, ...] = ()
    _passes: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls, model: nn.Module, graph: ChannelGraph, example: Example, settings: PruneSettings, *, progress: bool = False
    ) -> Pace:
        """Return the pace by the table that the settings name, else by one that is measured or was kept."""
        if settings.latency_table is None:
            table, notes = from_first(lambda: kept_table(model, graph, example, settings.engine, progress=progress))
            return cls(model, example, table, True, notes)
        given = settings.latency_table
        table = given if isinstance(given, LatencyTable) else LatencyTable.load(given)
        inner = unwrap(model)
        table.check(type(inner).__name__, shapes_of(inner))
        note = f"sized by a latency table ({table}), and not timed here"
        return cls(model, example, table, False, (note,))

    @cached_property
    def original_ms(self) -> float:
        """The time of the original."""
        measured = self.here and self.table.engine == "torch"
        if not measured:
            return self.table.original_ms
        return from_first(lambda: latency(self.model, self.example).median_ms)

    def predicted(self, sizes: Sizes, counts: Mapping[str, int]) -> float:
        """Return the time by the table, as a part of the original's."""
        sides = sizes.sides(counts)
        weights = {
            one.weight: (sides.get(Slot(one.weight, 0), one.full[0]), sides.get(Slot(one.weight, 1), one.full[1]))
            for one in self.table.segments
        }
        return self.table.part(weights)

    def measured(self, network: nn.Module, runs: int) -> float:
        """Return the time of a network as a part of the original's, timed interleaved in one process."""
        return from_first(lambda: self._measured(network, runs))

    def _measured(self, network: nn.Module, runs: int) -> float:
        if self.table.engine == "torch":
            with forward_pass(self.model, self.example) as before, forward_pass(network, self.example) as after:
                return 1 / interleaved(before, after, runs=runs, clock=clock()).speedup
        if "original" not in self._passes:
            self._passes["original"] = onnx_pass(self.model, self.example)
        after = onnx_pass(network, self.example)
        return 1 / interleaved(self._passes["original"], after, runs=runs, clock=clock()).speedup
