"""A certificate: statements about a smaller network, each with its bound, confidence, sample size and assumption."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import asdict, dataclass, fields
from html import escape
from typing import Any, Literal, get_args

from secateur.deprecation import renamed_fields
from secateur.errors import SecateurError, explained
from secateur.rows import frame

SCHEMA = 2  # 1 had `points` instead of `samples`, and is still read
WIDTH = 80
ASSUMPTION = (
    "the samples were drawn independently from the distribution that the network will see in use, "
    "and were not used for calibration, training or any choice"
)
Kind = Literal[
    "disagreement",
    "drop",
    "error above",
    "error",
    "change",
    "mean change",
    "mean squared change",
    "layer",
    "pixel disagreement",
    "map overlap",
    "pixel drop",
    "recall",
    "precision",
]


@renamed_fields(points="samples")
@dataclass(frozen=True)
class Statement:
    """One certified statement; `print(statement)` shows it as a sentence.

    >>> print(cert.statements[0])
    With confidence 99.9 %, the two networks choose different classes for at most 1.9 % of all inputs (observed: ...

    Attributes:
        kind: what is bounded: "disagreement", "drop", "error above", "error", "change", "mean change", "mean squared
            change" or "layer"; of segmentation "pixel disagreement", "map overlap" and "pixel drop"; of detection
            "recall" and "precision". Overlap, recall and precision are bounded from below.
        claim: the statement in words.
        bound: the certified number; None where the samples do not suffice, and the claim says how many would.
        observed: the same quantity on the samples.
        delta: probability that the statement is false.
        spent: delta that the bound was computed with; less than `delta` where several statements share it.
        samples: number of held-out samples.
        eps: for "error above": the relative error that is rarely exceeded.
        level: share of inputs that may exceed the bound.
        layer: for "layer": its name.
    """

    kind: Kind
    claim: str
    bound: float | None
    observed: float | None
    delta: float
    spent: float
    samples: int
    eps: float | None = None
    level: float | None = None
    layer: str | None = None

    def __str__(self) -> str:
        return (
            f"With confidence {confidence(self.delta)}, {self.claim}, from {self.samples:,} samples, if {ASSUMPTION}."
        )


@renamed_fields(points="samples")
@dataclass(frozen=True)
class Certificate:
    """Statements about a smaller network from held-out samples, as plain data; `print(cert)` shows them all.

    >>> cert["drop"].bound
    >>> Certificate.from_json(cert.to_json()) == cert
    True

    Attributes:
        statements: each holds with confidence 1 - delta.
        samples: number of held-out samples.
        delta: probability that a statement is false.
        chosen_from: number of networks that this one was chosen from on the same samples.
        notes: remarks.
        assumption: on which everything rests.
    """

    statements: tuple[Statement, ...]
    samples: int
    delta: float
    chosen_from: int = 1
    notes: tuple[str, ...] = ()
    assumption: str = ASSUMPTION

    def __getitem__(self, kind: str) -> Statement:
        """Return the first statement of a kind: `cert["drop"].bound`."""
        for statement in self.statements:
            if statement.kind == kind:
                return statement
        known = ", ".join(dict.fromkeys(s.kind for s in self.statements))
        raise SecateurError(f"the certificate has no statement of kind {kind!r}", remedy=f"use one of: {known}")

    def __str__(self) -> str:
        lines = [f"{self.samples:,} held-out samples. Each statement holds with confidence {confidence(self.delta)}:"]
        layers = [s for s in self.statements if s.kind == "layer"]
        others = [s for s in self.statements if s.kind != "layer"]
        lines += ["", *(_wrapped(f"{number:2}. ", f"{one.claim}.") for number, one in enumerate(others, 1))]
        if layers:
            lines.append(_wrapped(f"{len(others) + 1:2}. ", f"all of these {len(layers)} at once:"))
            lines += [_wrapped("    - ", f"{statement.claim}.") for statement in layers]
        if self.chosen_from > 1:
            text = f"The best of {self.chosen_from} networks was chosen on these samples; each has its share of delta."
            lines += ["", _wrapped("", text)]
        lines += ["", _wrapped("", f"All this holds if {self.assumption}.")]
        lines += [_wrapped("Note: ", f"{note}.") for note in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = f"{self.samples:,} held-out samples. Each statement holds with confidence {confidence(self.delta)}:"
        claims = "".join(f"<li>{escape(one.claim)}</li>" for one in self.statements)
        notes = "".join(f"<p>Note: {escape(note)}</p>" for note in self.notes)
        return f"<p>{escape(head)}</p><ol>{claims}</ol><p>All this holds if {escape(self.assumption)}.</p>{notes}"

    def to_frame(self) -> Any:
        """Return every statement as a row of a pandas DataFrame."""
        return frame(asdict(one) for one in self.statements)

    def to_json(self) -> str:
        """Return the certificate as JSON, which `from_json` reads."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Return the certificate that `to_json` wrote, also that of an earlier version."""
        with explained("this is not a certificate", remedy="pass the text that Certificate.to_json returned"):
            data = json.loads(text)
            schema = data.pop("schema")
        if schema not in (1, SCHEMA):
            raise SecateurError(
                f"the certificate has schema {schema}, this version reads schemas up to {SCHEMA}",
                remedy="read it with the version that wrote it, or a newer one",
            )
        with explained("the certificate is damaged", remedy="write it again with Certificate.to_json"):
            statements = data.pop("statements")
            if schema == 1:
                data, *statements = (_with_samples(part) for part in (data, *statements))
            notes = tuple(_text(note) for note in data.pop("notes"))
            cert = cls(statements=tuple(map(_statement, statements)), notes=notes, **data)
            _check_numbers(cert, "samples", "delta", "chosen_from")
            _text(cert.assumption)
            return cert


def confidence(delta: float) -> str:
    """Return the confidence of a statement in words.

    >>> confidence(0.001), confidence(1e-12)
    ('99.9 %', '1 - 1e-12')
    """
    return f"{100 * (1 - delta):.10g} %" if delta >= 1e-6 else f"1 - {delta:g}"


def percent(share: float) -> str:
    """Return a share in percent, rounded up: never less than what is certified.

    >>> percent(0.012341)
    '1.24 %'
    """
    return f"{_up(100 * share):g} %"


def number(value: float) -> str:
    """Return three digits of a number, rounded up."""
    return f"{_up(value):g}"


def _up(value: float) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return rounded if rounded >= value else round(rounded + 10.0**-digits, digits)


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _with_samples(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of schema 1 under today's names."""
    return {"samples" if name == "points" else name: value for name, value in data.items()}


def _statement(data: dict[str, Any]) -> Statement:
    if set(data) != (expected := {field.name for field in fields(Statement)}):
        raise ValueError(f"expected the fields {sorted(expected)} of a statement, found {sorted(data)}"[:300])
    one = Statement(**data)
    if one.kind not in get_args(Kind):
        raise ValueError(f"there is no statement of kind {str(one.kind)[:100]!r}")
    _text(one.claim)
    _check_numbers(one, "delta", "spent", "samples")
    _check_numbers(one, *(name for name in ("bound", "observed", "eps", "level") if getattr(one, name) is not None))
    return one


def _check_numbers(data: object, *names: str) -> None:
    for name in names:
        value = getattr(data, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"expected a finite number for {name}, found {str(value)[:100]!r}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, found {str(value)[:100]!r}")
    return value
