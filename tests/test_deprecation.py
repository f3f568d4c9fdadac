"""Old spellings work for one version, and every warning names the new one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.experiments.recipe import read

IMAGES, LABELS = (part[:32] for part in digits("calibration"))


def deprecated(new: str) -> Any:
    return pytest.warns(DeprecationWarning, match=new)


def test_points_are_samples() -> None:
    with deprecated("samples="):
        old = sc.plan(lenet5(), IMAGES, {"params": "50%"}, method="ft", points=16)  # type: ignore[call-arg]
    assert old == sc.plan(lenet5(), IMAGES, {"params": "50%"}, method="ft", samples=16)
    with deprecated("samples="), pytest.raises(TypeError, match="both 'points' and 'samples'"):
        sc.plan(lenet5(), IMAGES, {"params": "50%"}, points=16, samples=16)  # type: ignore[call-arg]


def test_fields_of_a_result() -> None:
    res = sc.prune(lenet5(), IMAGES, {"params": "50%"}, method="ft")
    with deprecated("samples"):
        assert res.points == res.samples  # type: ignore[attr-defined]
    with deprecated("scores"):
        assert res.sensitivities is res.scores  # type: ignore[attr-defined]


def test_draws_are_repeats() -> None:
    with deprecated("repeats="):
        found = sc.compare(
            lenet5(),
            IMAGES,
            {"params": "50%"},
            ["ft"],
            on=(IMAGES, LABELS),
            draws=2,
            samples=8,  # type: ignore[call-arg]
        )
    for old, new in (("draws", "repeats"), ("points", "samples"), ("judged", "evaluated")):
        with deprecated(new):
            assert getattr(found, old) == getattr(found, new)
    for old, new in (("figure", "value"), ("why", "error")):
        with deprecated(new):
            assert getattr(found.rows[0], old) == getattr(found.rows[0], new)


def test_delta_of_a_drop_is_certificate_delta() -> None:
    heldout = [digits("test")]
    kept = {}
    for name, wanted in (("delta", deprecated("certificate_delta=")), ("certificate_delta", None)):
        settings: Any = {name: 0.01, "heldout": heldout, "method": "ft"}
        if wanted is None:
            kept[name] = sc.prune(lenet5(), IMAGES, {"drop": "3%"}, **settings).plan
        else:
            with wanted as caught:
                kept[name] = sc.prune(lenet5(), IMAGES, {"drop": "3%"}, **settings).plan
            assert caught[0].filename == __file__  # the line of the caller
    assert kept["delta"] == kept["certificate_delta"]


def test_the_module_bounds() -> None:
    with deprecated("secateur.methods.pfp.bounds or secateur.certificates.bounds"):
        bounds = sc.bounds
    assert bounds.clopper_pearson(0, 100, 0.05) == pytest.approx(0.0295, abs=1e-4)
    assert bounds.points_needed is bounds.samples_needed
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        sc.magic  # noqa: B018


def test_keys_of_a_recipe(tmp_path: Any) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(
        "name: old\nnetwork: zoo:lenet5\ndata: mnist\ntrain: {epochs: 1}\ntargets: [0.5]\n"
        "prune: {points: 32, resource: macs}\n"
    )
    with pytest.warns(DeprecationWarning) as caught:
        recipe = read(path)
    assert recipe.prune.samples == 32 and recipe.resource == "macs"
    texts = sorted(str(one.message) for one in caught)
    assert ["old.yaml:6: prune.points" in texts[0], "old.yaml:6: prune.resource" in texts[1]] == [True, True]


def test_new_spellings_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    sc.prune(lenet5(), torch.rand(8, 1, 28, 28), {"params": "50%"}, method="ft", samples=8)
    assert not [one for one in recwarn if issubclass(one.category, DeprecationWarning)]
