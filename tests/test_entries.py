"""Methods with their options: read, written, refused by name."""

from __future__ import annotations

import pytest

from secateur.entries import Entry, entries
from secateur.errors import UsageError
from secateur.methods.ft import FT
from secateur.methods.pfp import PFP
from secateur.methods.residual import Residual
from secateur.methods.thinet import ThiNet


@pytest.mark.parametrize(
    ("text", "entry", "written"),
    [
        ("ft", Entry("ft"), "ft"),
        ("ft-repair", Entry("ft", repair=False), "ft"),
        ("ft+repair", Entry("ft", repair=True), "ft+repair"),
        ("ft@residual+repair", Entry("ft", allocation="residual", repair=True), "ft@residual+repair"),
        ("pfp:pivotal", Entry("pfp", select="pivotal"), "pfp:pivotal"),
        ("pfp~q0.99", Entry("pfp", sensitivity="q0.99"), "pfp~q0.99"),
        ("ft~mean@pfp", Entry("ft", sensitivity="mean", allocation="pfp"), "ft~mean@pfp"),
        ("residual", Entry("residual"), "residual+repair"),
        ("residual-repair", Entry("residual", repair=False), "residual-repair"),
        (
            "pfp:rand~rms@uniform+repair",
            Entry("pfp", select="rand", sensitivity="rms", allocation="uniform", repair=True),
            "pfp:rand~rms@uniform+repair",
        ),
    ],
)
def test_what_is_read_and_written(text: str, entry: Entry, written: str) -> None:
    found = Entry.parse(text)
    assert (found, str(found)) == (entry, written)
    again = Entry.parse(written)
    assert (again.stem, again.repaired) == (found.stem, found.repaired)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "cannot be read"),
        (" ft", "cannot be read"),
        ("ft:", "cannot be read"),
        ("ft+", "cannot be read"),
        ("ft+fix", "cannot be read"),
        ("ft+repair+repair", "cannot be read"),
        ("pfp@pfp:rand", "cannot be read"),  # out of order
        ("pfp:rand:rand", "cannot be read"),
        (7, "cannot be read"),
        ("l1", "method is 'l1'"),
        ("ft:derand", "select is 'derand'"),
        ("pfp:best", "select is 'best'"),
        ("pfp~median", "kind of sensitivity is 'median'"),
        ("pfp~q1.5", "kind of sensitivity is 'q1.5'"),
        ("ft~mean", "looks at no sensitivities"),
        ("ft@equal", "allocation is 'equal'"),
    ],
)
def test_what_is_refused_by_name(text: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause) as caught:
        Entry.parse(text)
    assert repr(text) in str(caught.value) and caught.value.remedy


def test_the_options_reach_method_and_allocation() -> None:
    method, allocation = Entry.parse("pfp:pivotal~mean@uniform").judges(delta=1e-3, C=2.0, seed=7)
    assert method == PFP(select="pivotal", delta=1e-3, C=2.0, seed=7, sensitivity="mean")
    assert allocation.name == "uniform"
    method, allocation = Entry.parse("ft~q0.9@pfp").judges()
    assert method == FT() and allocation.name == "pfp" and allocation.pfp.sensitivity == "q0.9"


def test_with_and_without_a_repair_each_once() -> None:
    asked = ["ft", "ft", "ft+repair", "residual", "pfp-repair"]
    assert [str(one) for one in entries(asked)] == ["ft", "ft+repair", "residual+repair", "pfp"]
    both = [str(one) for one in entries(asked, repair=True)]
    assert both == ["ft", "ft+repair", "residual-repair", "residual+repair", "pfp"]


def test_methods_of_your_own() -> None:
    found = entries([ThiNet(samples=3), ThiNet(samples=4), FT(), Residual()])
    assert [str(one) for one in found] == ["thinet(samples=3)", "thinet(samples=4)", "ft", "residual+repair"]
    with pytest.raises(UsageError, match="two methods are called ft"):
        entries([FT(), FT()])


@pytest.mark.parametrize("methods", [[], "ft"])
def test_what_is_no_list(methods: object) -> None:
    with pytest.raises(UsageError, match="the methods are"):
        entries(methods)  # type: ignore[arg-type]
