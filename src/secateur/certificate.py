"""A certificate: statements about a smaller network, each with its number, confidence, sample and assumption."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from secateur.errors import SecateurError

SCHEMA = 1
WIDTH = 80
ASSUMPTION = (
    "the points are independent draws from what the network will meet in use, "
    "and neither calibration nor training nor any choice has seen them"
)
Kind = Literal["disagreement", "drop", "error above", "error", "change", "mean change", "mean squared change", "layer"]


@dataclass(frozen=True)
class Statement:
    """One thing that is known. `bound` is None where the points do not suffice; the claim then says what would.

    >>> print(cert.statements[0])
    With confidence 99.9 %, the two networks choose different classes for at most 1.9 % of all inputs (seen: ...
    """

    kind: Kind
    claim: str
    bound: float | None
    observed: float | None
    delta: float  # the probability that it is false
    spent: float  # what the bound was computed with: less than delta where several share it
    points: int
    eps: float | None = None  # the error that is exceeded rarely
    level: float | None = None  # the share of inputs that may exceed the bound
    layer: str | None = None

    def __str__(self) -> str:
        return f"With confidence {confidence(self.delta)}, {self.claim}, by {self.points:,} points, if {ASSUMPTION}."


@dataclass(frozen=True)
class Certificate:
    """What held-out points say about a smaller network. `print(cert)` tells it all; it is plain data.

    >>> Certificate.from_json(cert.to_json()) == cert
    True
    """

    statements: tuple[Statement, ...]
    points: int
    delta: float
    chosen_from: int = 1
    notes: tuple[str, ...] = ()
    assumption: str = ASSUMPTION

    def __getitem__(self, kind: str) -> Statement:
        """The first statement of a kind: `cert["drop"].bound`."""
        for statement in self.statements:
            if statement.kind == kind:
                return statement
        known = ", ".join(dict.fromkeys(s.kind for s in self.statements))
        raise SecateurError(f"the certificate has no statement of kind {kind!r}", remedy=f"it has: {known}")

    def __str__(self) -> str:
        lines = [f"{self.points:,} held-out points. With confidence {confidence(self.delta)} each:", ""]
        layers = [s for s in self.statements if s.kind == "layer"]
        for number, statement in enumerate([s for s in self.statements if s.kind != "layer"], 1):
            lines.append(_wrapped(f"{number:2}. ", f"{statement.claim}."))
        if layers:
            number = len(self.statements) - len(layers) + 1
            lines.append(_wrapped(f"{number:2}. ", f"all of these {len(layers)} at once:"))
            lines += [_wrapped("    - ", f"{statement.claim}.") for statement in layers]
        if self.chosen_from > 1:
            text = f"the best of {self.chosen_from} networks was chosen on these points; each has its share of delta."
            lines += ["", _wrapped("", text.capitalize())]
        lines += ["", _wrapped("", f"All this holds if {self.assumption}.")]
        lines += [_wrapped("Note: ", f"{note}.") for note in self.notes]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The certificate as text; `from_json` gives it back."""
        data = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(data, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read a certificate; a text that is not one is refused."""
        try:
            data = json.loads(text)
            schema = data.pop("schema")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SecateurError(
                f"this is not a certificate: {error}", remedy="give the text that Certificate.to_json wrote"
            ) from error
        if schema != SCHEMA:
            raise SecateurError(
                f"the certificate has schema {schema}, this version reads {SCHEMA}",
                remedy="use the version that wrote it",
            )
        try:
            statements = tuple(_statement(one) for one in data.pop("statements"))
            notes = tuple(_text(note) for note in data.pop("notes"))
            cert = cls(statements=statements, notes=notes, **data)
            _check_numbers(cert, "points", "delta", "chosen_from")
            _text(cert.assumption)
            return cert
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SecateurError(
                f"the certificate is damaged: {type(error).__name__}: {error}"[:300],
                remedy="write it again with Certificate.to_json",
            ) from error


def confidence(delta: float) -> str:
    """How sure a statement is, in words.

    >>> confidence(0.001), confidence(1e-12)
    ('99.9 %', '1 - 1e-12')
    """
    return f"{100 * (1 - delta):.10g} %" if delta >= 1e-6 else f"1 - {delta:g}"


def percent(share: float) -> str:
    """A share, rounded up: what is shown is never less than what is certified.

    >>> percent(0.012341)
    '1.24 %'
    """
    return f"{_up(100 * share):g} %"


def number(value: float) -> str:
    """A number to three digits, rounded up."""
    return f"{_up(value):g}"


def _up(value: float) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return rounded if rounded >= value else round(rounded + 10.0**-digits, digits)


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _statement(data: dict[str, Any]) -> Statement:
    if set(data) != {field.name for field in fields(Statement)}:
        raise ValueError("a statement has other fields")
    one = Statement(**data)
    if one.kind not in get_args(Kind):
        raise ValueError(f"there is no statement of kind {one.kind!r}")
    _text(one.claim)
    _check_numbers(one, "delta", "spent", "points")
    _check_numbers(one, *(name for name in ("bound", "observed", "eps", "level") if getattr(one, name) is not None))
    return one


def _check_numbers(data: object, *names: str) -> None:
    for name in names:
        value = getattr(data, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value
