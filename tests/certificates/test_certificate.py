"""A certificate as plain data: to JSON and back, and printed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur import Certificate, SecateurError
from secateur.certificates.certificate import Statement, confidence, number, percent
from secateur.certificates.statements import Sample
from support.stored_networks import FOLDER


def certificate() -> Certificate:
    sample = Sample(2000, 1e-3, chosen_from=3)
    found = (
        sample.disagreement(11),
        sample.drop(20, 5),
        sample.layer("block1.conv2", [0.1] * 2000, 0.05, 2),
        sample.layer("fc", [float("inf")] * 2000, 0.05, 2),
    )
    return Certificate(found, 2000, 1e-3, 3, notes=("a note that is " + "long " * 30,))


def test_a_certificate_survives_json() -> None:
    cert = certificate()
    text = cert.to_json()
    assert Certificate.from_json(text) == cert
    data = json.loads(text)
    assert data["schema"] == 2 and data["samples"] == 2000
    assert data["statements"][1]["bound"] == cert["drop"].bound
    assert data["statements"][3]["bound"] is None  # infinite: there is no bound


def test_the_printed_certificate_is_complete_and_fits_the_terminal() -> None:
    text = str(certificate())
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for words in ("2,000 held-out samples", "99.9 %", "best of 3 networks", "all of these 2 at once", "Note: a note"):
        assert words in flat
    assert "All this holds if the samples were drawn independently" in flat


def test_a_printed_statement_is_one_complete_sentence() -> None:
    text = str(certificate()["disagreement"])
    assert "99.9 %" in text and "2,000 samples" in text and "drawn independently" in text and text.count(". ") == 0


def test_a_kind_that_the_certificate_does_not_have() -> None:
    with pytest.raises(SecateurError, match="no statement of kind 'mean change'"):
        certificate()["mean change"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nonsense", "not a certificate"),
        ("[1]", "not a certificate"),
        ("{}", "not a certificate"),
        ('{"schema": 3}', "schema 3, this version reads schemas up to 2"),
        ({"statements": 3}, "damaged"),
        ({"statements": [{}]}, "expected the fields"),
        ({"delta": "0.1"}, "expected a finite number for delta, found '0.1'"),
        ({"samples": True}, "expected a finite number for samples, found 'True'"),
        ({"notes": [1]}, "expected a string"),
        ({"assumption": None}, "expected a string"),
        ({"more": 1}, "damaged"),
    ],
)
def test_invalid_json_is_refused(change: str | dict[str, object], words: str) -> None:
    text = change if isinstance(change, str) else json.dumps({**json.loads(certificate().to_json()), **change})
    with pytest.raises(SecateurError, match=words) as caught:
        Certificate.from_json(text)
    assert caught.value.remedy


@pytest.mark.parametrize(("field", "value"), [("kind", "hope"), ("bound", "much"), ("claim", 3), ("samples", None)])
def test_a_damaged_statement_is_refused(field: str, value: object) -> None:
    data = json.loads(certificate().to_json())
    data["statements"][0][field] = value
    with pytest.raises(SecateurError, match="damaged"):
        Certificate.from_json(json.dumps(data))


@given(st.floats(-1, 1))
def test_a_shown_bound_is_never_below_the_certified_one(value: float) -> None:
    assert float(number(value)) >= value
    assert float(number(value)) <= value + max(abs(value) * 0.0101, 1e-300)
    assert float(percent(value).removesuffix(" %")) >= 100 * value


def test_a_certificate_of_schema_1_is_read() -> None:
    """certificate1.json was written by version 0.1, which said `points`."""
    cert = Certificate.from_json((FOLDER / "certificate1.json").read_text())
    assert cert.samples == 200 and [statement.samples for statement in cert.statements] == [200, 200]
    assert cert["disagreement"].bound == 0.12477113319232824 and cert.assumption.startswith("the points are")
    assert json.loads(cert.to_json())["schema"] == 2 and Certificate.from_json(cert.to_json()) == cert
    with pytest.deprecated_call(match="use samples"):
        assert cert.points == 200


def test_confidence_in_words() -> None:
    assert [confidence(delta) for delta in (0.05, 1e-3, 1e-6, 1e-12)] == ["95 %", "99.9 %", "99.9999 %", "1 - 1e-12"]


def test_statements_are_frozen_data() -> None:
    assert isinstance(certificate()["drop"], Statement)
    assert hash(certificate()["drop"]) == hash(certificate()["drop"])
