"""A table of measured times: how long each part of a network takes, by the sizes of its layers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy.optimize import nnls

from secateur.errors import SecateurError, UsageError, explained
from secateur.storage.files import writable_file, write_json

SCHEMA = 1
Engine = Literal["torch", "onnxruntime"]
Sides = tuple[int, int]  # output and input channels of a layer's weight: its first two axes


@dataclass(frozen=True)
class Segment:
    """A layer and what follows it up to the next layer: its time by the sizes of its weight.

    The time is `constant + per_output * outputs + per_input * inputs + per_product * outputs * inputs` milliseconds:
    the fit of the measured times, with sizes rounded up to the table's multiple.
    """

    weight: str
    full: Sides
    constant: float
    per_output: float
    per_input: float
    per_product: float

    @classmethod
    def fit(cls, weight: str, full: Sides, sides: Sequence[Sides], ms: Sequence[float]) -> Segment:
        """Return the segment with times nearest to the measured ones; more channels never take less time."""
        o, i = np.array(sides, float).T / np.array(full, float)[:, None]
        terms = np.stack([np.ones_like(o), o, i, o * i], 1)
        weights = 1 / np.maximum(np.array(ms), 1e-6)  # relative errors count
        found, _ = nnls(terms * weights[:, None], np.ones(len(ms)))
        scale = np.array([1, full[0], full[1], full[0] * full[1]], float)
        return cls(weight, full, *(found / scale).tolist())

    def ms(self, outputs: float, inputs: float) -> float:
        """Return the time at these sizes."""
        rest = self.per_output * outputs + self.per_input * inputs
        return self.constant + rest + self.per_product * outputs * inputs


@dataclass(frozen=True)
class LatencyTable:
    """The time of a network for any sizes of its groups, from measurements; `print(table)` is a summary.

    >>> table = sc.latency_table(model, images[:1])
    >>> table.save("latency.json")

    Attributes:
        segments: the parts of the network, one for each layer.
        original_ms: time of the original as a whole; the segments say how it shrinks.
        multiple: sizes are best multiples of it: fewer channels up to the next multiple take no less time.
        network: name of the network's class.
        shapes: of all its parameters, which identify it.
        input: shapes and types of the inputs, as plain data.
        engine: what was timed, "torch" or "onnxruntime".
        threads: number of CPU threads.
        machine: processor and versions.
        networks: number of cut networks, or sizes of each layer, that were timed.
        error: how far the fitted time of a measured network is from its measured time, in the median.
    """

    segments: tuple[Segment, ...]
    original_ms: float
    multiple: int
    network: str
    shapes: dict[str, tuple[int, ...]]
    input: Any
    engine: Engine = "torch"
    threads: int = 1
    machine: Mapping[str, str] | None = None
    networks: int = 0
    error: float = 0.0

    def part(self, sides: Mapping[str, Sides]) -> float:
        """Return the time as a part of the original's, given the sizes of the weights that shrink.

        >>> table.part({"conv1.weight": (32, 3)})
        0.93
        """
        whole = sum(one.ms(*one.full) for one in self.segments)
        return sum(self._ms(one, sides.get(one.weight, one.full)) for one in self.segments) / max(whole, 1e-12)

    def _ms(self, one: Segment, sides: Sides) -> float:
        rounded = [min(full, -(-side // self.multiple) * self.multiple) for side, full in zip(sides, one.full)]
        return one.ms(*rounded)

    def check(self, network: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise an error if the table is for another network."""
        for name in [*self.shapes, *shapes]:
            if self.shapes.get(name) != shapes.get(name):
                raise UsageError(
                    f"the latency table is for another network: it has {name} of shape {self.shapes.get(name)} "
                    f"({self.network}), this network of shape {shapes.get(name)} ({network})",
                    layer=name,
                    remedy="make a table for this network with secateur profile, on the machine that will run it",
                )

    def save(self, path: str | Path) -> None:
        """Write the table as JSON."""
        write_json(writable_file(path), {"latency_table": SCHEMA, **asdict(self)})

    @classmethod
    def load(cls, path: str | Path) -> LatencyTable:
        """Return the table in a file that `save` wrote."""
        remedy = "make one with secateur profile"
        with explained(f"{path} is no latency table", remedy=remedy):
            data = json.loads(Path(path).read_text())
            schema = data.pop("latency_table")
        if schema != SCHEMA:
            found = f"the latency table {path} has schema {schema}, this version reads {SCHEMA}"
            raise SecateurError(found, remedy=remedy)
        with explained(f"the latency table {path} is damaged", remedy=remedy):
            segments = tuple(_segment(one) for one in data.pop("segments"))
            shapes = {str(name): tuple(map(int, shape)) for name, shape in data.pop("shapes").items()}
            table = cls(segments=segments, shapes=shapes, **data)
            if table.engine not in get_args(Engine) or not segments or not table.multiple >= 1 <= table.threads:
                raise ValueError("its engine, multiple or threads are not possible")
            if not (math.isfinite(table.original_ms) and table.original_ms > 0):
                raise ValueError(f"the original takes {table.original_ms} ms")
        return table

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        where = f" on {self.machine['cpu']}" if self.machine else ""
        return (
            f"{self.network}: {self.original_ms:.3g} ms in {self.engine}, {threads}{where}; "
            f"{len(self.segments)} layers, sizes best in multiples of {self.multiple}, fitted to {self.error:.1%}"
        )


def _segment(data: Mapping[str, Any]) -> Segment:
    first, second = data["full"]
    found = replace(Segment(**data), full=(int(first), int(second)))
    terms = (found.constant, found.per_output, found.per_input, found.per_product)
    if not all(math.isfinite(one) and one >= 0 for one in terms):
        raise ValueError(f"the times of {found.weight} are not possible")
    return found
