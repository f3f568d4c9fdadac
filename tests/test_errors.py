"""Errors have their cause, layer and remedy in the message and as attributes."""

from __future__ import annotations

import pickle

import pytest

from secateur.errors import SecateurError, UsageError, explained


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
def test_the_message(error: SecateurError, text: str) -> None:
    assert str(error) == text


def test_attributes_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(SecateurError("no filters are left", layer="conv1", remedy="keep one")))
    assert (error.cause, error.layer, error.remedy) == ("no filters are left", "conv1", "keep one")
    assert str(error) == "conv1: no filters are left\n  remedy: keep one"


@pytest.mark.parametrize("kind", [SecateurError, ValueError])
def test_a_usage_error_is_also(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="not a shape"):
        raise UsageError("'1xx3' is not a shape")


def test_an_exception_is_explained() -> None:
    with pytest.raises(SecateurError) as caught, explained("a cannot be read", layer="conv1", remedy="check it"):
        raise KeyError("x")
    assert str(caught.value) == "conv1: a cannot be read: KeyError: 'x'\n  remedy: check it"
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_value_error_is_explained_by_its_text_and_our_own_errors_pass() -> None:
    with (
        pytest.raises(SecateurError, match=r"^a cannot be read: it is empty\n"),
        explained("a cannot be read", remedy="r"),
    ):
        raise ValueError("it is empty")
    own = UsageError("delta is 2", remedy="use 0.1")
    with pytest.raises(UsageError) as caught, explained("a cannot be read", remedy="r"):
        raise own
    assert caught.value is own
    with pytest.raises(KeyboardInterrupt), explained("a cannot be read", remedy="r"):
        raise KeyboardInterrupt
