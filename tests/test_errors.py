"""The error carries what a person needs, in its text and as attributes."""

from __future__ import annotations

import pickle

import pytest

from secateur.errors import SecateurError, UsageError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SecateurError("no filters are left"), "no filters are left"),
        (SecateurError("no filters are left", layer="conv1"), "conv1: no filters are left"),
        (
            SecateurError("no filters are left", layer="conv1", remedy="keep at least one"),
            "conv1: no filters are left\n  remedy: keep at least one",
        ),
    ],
)
def test_text(error: SecateurError, text: str) -> None:
    assert str(error) == text


def test_attributes_survive_another_process() -> None:
    error = pickle.loads(pickle.dumps(SecateurError("no filters are left", layer="conv1", remedy="keep one")))
    assert (error.cause, error.layer, error.remedy) == ("no filters are left", "conv1", "keep one")
    assert str(error) == "conv1: no filters are left\n  remedy: keep one"


def test_a_wrong_request_is_one_kind_of_error() -> None:
    with pytest.raises(SecateurError, match="not a shape"):
        raise UsageError("'1xx3' is not a shape")
