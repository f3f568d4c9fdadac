"""What the page shows of a certificate: its statements in plain words, and what they assume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from secateur.certificates.certificate import Certificate, confidence
from secateur.report.blocks import Block, Column, Facts, Result, Table, Words, sections
from secateur.report.charts import finite

EXTRA = ("small", "model", "data")  # what the command line adds to a certificate


def certificate(name: str, record: Mapping[str, Any]) -> Result:
    """Return the section about a certificate, given as the plain data of `Certificate.to_json`."""
    about = tuple((key, str(record[key])) for key in EXTRA if record.get(key) is not None)
    blocks: list[Block | None] = [*statements(record), Facts("about", "", about) if about else None]
    cert = _read(record)
    key = {"samples": cert.samples, "confidence": confidence(cert.delta)}
    for kind in ("disagreement", "drop"):
        bounds = [one.bound for one in cert.statements if one.kind == kind]
        key[kind] = bounds[0] if bounds else None
    return Result("certificate", name, key, sections(("certificate", "Certificate", blocks)))


def statements(record: Mapping[str, Any]) -> list[Block]:
    """Return the statements as sentences, the assumption, and all figures as a table."""
    cert = _read(record)
    texts = tuple(f"{one.claim[0].upper()}{one.claim[1:]}." for one in cert.statements if one.kind != "layer")
    head = f"{cert.samples:,} held-out samples. Each statement holds with confidence {confidence(cert.delta)}."
    if cert.chosen_from > 1:
        head += f" The best of {cert.chosen_from} networks was chosen on these samples; each has its share of delta."
    rows = tuple(vars(one) | {"bound": finite(one.bound), "observed": finite(one.observed)} for one in cert.statements)
    columns = (
        Column("kind", "statement about", "text"),
        Column("layer", "layer", "code"),
        Column("bound", "bound"),
        Column("observed", "observed", about="the same quantity on the samples"),
        Column("level", "level", about="share of inputs that may exceed the bound"),
        Column("eps", "eps"),
        Column("delta", "delta", about="probability that the statement is false"),
        Column("samples", "samples", "count"),
    )
    made: list[Block] = [
        Words("head", "", (head,)),
        Words("statements", "", texts, listed=True),
        Words("assumption", "What this assumes", (f"All this holds if {cert.assumption}.",), warning=True),
        Table("statements", "All figures", columns, rows),
    ]
    return [*made, Words("notes", "Notes", cert.notes, listed=True)] if cert.notes else made


def _read(record: Mapping[str, Any]) -> Certificate:
    return Certificate.from_json(json.dumps({key: value for key, value in record.items() if key not in EXTRA}))
