"""A certificate as plain data: in and out of JSON, and on paper."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur import Certificate, SecateurError
from secateur.certificate import Statement, confidence, number, percent
from secateur.statements import Sample


def certificate() -> Certificate:
    sample = Sample(2000, 1e-3, chosen_from=3)
    found = (
        sample.disagreement(11),
        sample.drop(20, 5),
        sample.layer("block1.conv2", [0.1] * 2000, 0.05, 2),
        sample.layer("fc", [float("inf")] * 2000, 0.05, 2),
    )
    return Certificate(found, 2000, 1e-3, 3, notes=("a note that is " + "long " * 30,))


def test_json_there_and_back() -> None:
    cert = certificate()
    text = cert.to_json()
    assert Certificate.from_json(text) == cert
    data = json.loads(text)
    assert data["schema"] == 1 and data["points"] == 2000
    assert data["statements"][1]["bound"] == cert["drop"].bound
    assert data["statements"][3]["bound"] is None  # infinite: nothing is certified


def test_the_print_fits_and_tells_all() -> None:
    text = str(certificate())
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for words in ("2,000 held-out points", "99.9 %", "best of 3 networks", "all of these 2 at once", "Note: a note"):
        assert words in flat
    assert "All this holds if the points are independent draws" in flat


def test_a_statement_alone_is_one_sentence_with_everything() -> None:
    text = str(certificate()["disagreement"])
    assert "99.9 %" in text and "2,000 points" in text and "independent draws" in text and text.count(". ") == 0


def test_a_kind_that_is_not_there() -> None:
    with pytest.raises(SecateurError, match="no statement of kind 'mean change'"):
        certificate()["mean change"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nonsense", "not a certificate"),
        ("[1]", "not a certificate"),
        ("{}", "not a certificate"),
        ('{"schema": 2}', "schema 2"),
        ({"statements": 3}, "damaged"),
        ({"statements": [{}]}, "other fields"),
        ({"delta": "0.1"}, "delta is '0.1'"),
        ({"points": True}, "points is True"),
        ({"notes": [1]}, "expected a text"),
        ({"assumption": None}, "expected a text"),
        ({"more": 1}, "damaged"),
    ],
)
def test_what_is_no_certificate_is_refused(change: str | dict[str, object], words: str) -> None:
    text = change if isinstance(change, str) else json.dumps({**json.loads(certificate().to_json()), **change})
    with pytest.raises(SecateurError, match=words) as caught:
        Certificate.from_json(text)
    assert caught.value.remedy


@pytest.mark.parametrize(("field", "value"), [("kind", "hope"), ("bound", "much"), ("claim", 3), ("points", None)])
def test_a_damaged_statement_is_refused(field: str, value: object) -> None:
    data = json.loads(certificate().to_json())
    data["statements"][0][field] = value
    with pytest.raises(SecateurError, match="damaged"):
        Certificate.from_json(json.dumps(data))


@given(st.floats(-1, 1))
def test_what_is_shown_is_never_less_than_what_is_certified(value: float) -> None:
    assert float(number(value)) >= value
    assert float(number(value)) <= value + max(abs(value) * 0.0101, 1e-300)
    assert float(percent(value).removesuffix(" %")) >= 100 * value


def test_confidence_in_words() -> None:
    assert [confidence(delta) for delta in (0.05, 1e-3, 1e-6, 1e-12)] == ["95 %", "99.9 %", "99.9999 %", "1 - 1e-12"]


def test_statements_are_frozen_data() -> None:
    assert isinstance(certificate()["drop"], Statement)
    assert hash(certificate()["drop"]) == hash(certificate()["drop"])
