"""What theory says about one cut network, beside what held-out samples certify; `theory` returns it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group as Stack
from rich.text import Text

from secateur import tables
from secateur.tables import number


@dataclass(frozen=True)
class LayerTheory:
    """One layer that consumes a cut group. Condition numbers are NaN where the network is not a chain.

    Attributes:
        layer: its name.
        group: the group that it consumes; several are joined by a comma.
        units, kept: of that group, before and after the cut.
        eps: error of the layer's own sums, relative to z+ + z-, that the method guarantees at this size.
        largest, usual: the condition number: the largest on the samples, and the bound for all but a share of inputs.
        asked_largest, asked_usual: units that the theorem asks for, at the error that was asked about.
    """

    layer: str
    group: str
    units: int
    kept: int
    eps: float
    largest: float = math.nan
    usual: float = math.nan
    asked_largest: int | None = None
    asked_usual: int | None = None


@dataclass(frozen=True)
class Theory:
    """The statements of theory about a cut network. `print(found)` shows them beside the certified error.

    Attributes:
        layers: the layers with cut inputs.
        eps: the network-wide error that the asked sizes are for.
        theorem_largest, theorem_usual: error of the network by the main theorem, from the largest condition numbers on
            the samples, and from those that all but a share beta of inputs keep to; None if the network is no chain.
        propagated: error of the network that all but a share beta of inputs keep to, by entrywise propagation; None if
            an op is unknown or there are too few samples.
        unchanged: share of samples whose class the propagated bound proves to be unchanged; None without classes.
        certified: error of the network that all but a share beta of inputs keep to, from the held-out samples alone.
        samples, beta, delta: number of samples, share of inputs left out, and failure probability of each statement.
        notes: what is missing, and why.
    """

    layers: tuple[LayerTheory, ...]
    eps: float
    theorem_largest: float | None
    theorem_usual: float | None
    propagated: float | None
    unchanged: float | None
    certified: float | None
    samples: int
    beta: float
    delta: float
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data; numbers that are not finite are None."""
        return _finite(asdict(self))

    def __str__(self) -> str:
        return tables.plain(self.table())

    def table(self) -> Stack:
        """Return the layers, and the three errors of the network below one another, for a rich terminal."""
        layers = tables.table("layer", "kept", "eps", "D max", f"D {1 - self.beta:.0%}", "asked max", "asked")
        for one in self.layers:
            layers.add_row(
                Text(one.layer), f"{one.kept:,}/{one.units:,}", number(one.eps), number(one.largest), number(one.usual),
                _count(one.asked_largest), _count(one.asked_usual),
            )  # fmt: skip
        errors = tables.table("relative error of the output", "bound", "holds for")
        most = f"{1 - self.beta:.0%} of inputs"
        for name, bound, scope in (
            ("main theorem, largest condition numbers", self.theorem_largest, f"these {self.samples:,} samples"),
            ("main theorem, usual condition numbers", self.theorem_usual, most),
            ("propagated through the program", self.propagated, most),
            ("certified from held-out samples", self.certified, most),
        ):
            vacuous = "" if bound is None or bound < 1 else " (vacuous)"
            errors.add_row(name, "-" if bound is None else f"{number(bound)}{vacuous}", scope)
        legend = (
            "eps: error of the layer's own sums, relative to z+ + z-. D: condition number, the largest and that of "
            f"{1 - self.beta:.0%} of inputs. asked: units of the group that the theorem asks for, so that the error of "
            f"the network is at most {self.eps:g}."
        )
        parts: list[Any] = [layers, "", Text(legend, "dim"), "", errors]
        if self.unchanged is not None:
            parts += ["", Text(f"The propagated bound proves the class unchanged for {self.unchanged:.1%} of samples.")]
        return Stack(*parts, *tables.paragraphs("Note: ", self.notes))


def _count(units: int | None) -> str:
    return "-" if units is None else f"{units:,}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
