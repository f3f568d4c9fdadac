"""Methods with their options: read, written, refused by name."""

from __future__ import annotations

import pytest

from secateur.errors import UsageError
from secateur.methods.ft import FT
from secateur.methods.pfp.method import PFP
from secateur.methods.residual import Residual
from secateur.methods.thinet import ThiNet
from secateur.pruning.settings import PruneSettings
from secateur.pruning.variants import Variant, variants


@pytest.mark.parametrize(
    ("text", "variant", "written"),
    [
        ("ft", Variant("ft"), "ft"),
        ("ft-repair", Variant("ft", repair=False), "ft"),
        ("ft+repair", Variant("ft", repair=True), "ft+repair"),
        ("ft@residual+repair", Variant("ft", allocation="residual", repair=True), "ft@residual+repair"),
        ("pfp:pivotal", Variant("pfp", select="pivotal"), "pfp:pivotal"),
        ("pfp~q0.99", Variant("pfp", sensitivity="q0.99"), "pfp~q0.99"),
        ("ft~mean@pfp", Variant("ft", sensitivity="mean", allocation="pfp"), "ft~mean@pfp"),
        ("residual", Variant("residual"), "residual+repair"),
        ("pfp+inputs", Variant("pfp", inputs=True), "pfp+inputs"),
        ("residual-repair+inputs", Variant("residual", repair=False, inputs=True), "residual-repair+inputs"),
        ("residual-repair", Variant("residual", repair=False), "residual-repair"),
        (
            "pfp:rand~rms@uniform+repair",
            Variant("pfp", select="rand", sensitivity="rms", allocation="uniform", repair=True),
            "pfp:rand~rms@uniform+repair",
        ),
    ],
)
def test_what_is_read_and_written(text: str, variant: Variant, written: str) -> None:
    found = Variant.parse(text)
    assert (found, str(found)) == (variant, written)
    again = Variant.parse(written)
    assert (again.stem, again.repaired, again.inputs) == (found.stem, found.repaired, found.inputs)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "cannot read"),
        (" ft", "cannot read"),
        ("ft:", "cannot read"),
        ("ft+", "cannot read"),
        ("ft+fix", "cannot read"),
        ("ft+repair+repair", "cannot read"),
        ("ft+inputs+repair", "cannot read"),
        ("pfp@pfp:rand", "cannot read"),  # out of order
        ("pfp:rand:rand", "cannot read"),
        (7, "cannot read"),
        ("l1", "no method 'l1'"),
        ("ft:derand", "belongs to the method pfp"),
        ("pfp:best", "select is 'best'"),
        ("pfp~median", "kind of sensitivity is 'median'"),
        ("pfp~q1.5", "kind of sensitivity is 'q1.5'"),
        ("ft~mean", "uses no sensitivities"),
        ("ft@equal", "allocation is 'equal'"),
    ],
)
def test_what_is_refused_by_name(text: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause) as caught:
        Variant.parse(text)
    assert repr(text) in str(caught.value) and caught.value.remedy


def test_the_options_reach_method_and_allocation() -> None:
    method, allocation = (
        Variant.parse("pfp:pivotal~mean@uniform").settings(PruneSettings(delta=1e-3, C=2.0, seed=7)).resolve()
    )
    assert method == PFP(select="pivotal", delta=1e-3, C=2.0, seed=7, sensitivity="mean")
    assert allocation.name == "uniform"
    method, allocation = Variant.parse("ft~q0.9@pfp").settings(PruneSettings()).resolve()
    assert method == FT() and allocation.name == "pfp" and allocation.pfp.sensitivity == "q0.9"


def test_with_and_without_a_repair_each_once() -> None:
    asked = ["ft", "ft", "ft+repair", "residual", "pfp-repair"]
    assert [str(one) for one in variants(asked)] == ["ft", "ft+repair", "residual+repair", "pfp"]
    both = [str(one) for one in variants(asked, repair=True)]
    assert both == ["ft", "ft+repair", "residual-repair", "residual+repair", "pfp"]


def test_methods_of_your_own() -> None:
    found = variants([ThiNet(samples=3), ThiNet(samples=4), FT(), Residual()])
    assert [str(one) for one in found] == ["thinet(samples=3)", "thinet(samples=4)", "ft", "residual+repair"]
    with pytest.raises(UsageError, match="two methods are called ft"):
        variants([FT(), FT()])


@pytest.mark.parametrize("methods", [[], "ft"])
def test_what_is_no_list(methods: object) -> None:
    with pytest.raises(UsageError, match="methods is"):
        variants(methods)  # type: ignore[arg-type]
