"""What every method looks at is measured once; what it gives by default."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import secateur as sc
from secateur.methods import METHODS, base
from secateur.methods.base import Evidence, GroupRow, Method
from support.evidences import case_evidence


@pytest.mark.parametrize(("what", "source"), [("sensitivities", "measure"), ("curves", "curves")])
def test_a_measurement_is_made_once(what: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, evidence = case_evidence("plain")
    made: list[Any] = []
    right = getattr(base, source)
    monkeypatch.setattr(base, source, lambda *args, **options: made.append(args) or right(*args, **options))
    one = getattr(evidence, what)()
    one.clear()  # what is handed out is the caller's own
    assert getattr(evidence, what)().keys() == {"a"} and len(made) == 1
    assert getattr(replace(evidence, _known={}), what)().keys() == {"a"} and len(made) == 2


def test_kinds_of_sensitivity_are_told_apart_and_count_the_units_left() -> None:
    _, evidence = case_evidence("plain", kept={"a": [1, 4, 6]})
    for kind in ("max", "mean", "max"):
        found = evidence.sensitivities(kind)["a"].values
        assert len(found) == 3
        wanted = sc.sensitivity(evidence.network, evidence.batches[0][0][0], kind=kind)["a"][[1, 4, 6]]
        torch.testing.assert_close(found, wanted)


class Norms(Method):
    """A method as a user writes it."""

    asked = 0

    def scores(self, evidence: Evidence) -> dict[str, Any]:
        self.asked += 1
        weights = dict(evidence.network.named_parameters())
        kept = evidence.kept
        return {
            g.name: weights[g.slots[0].parameter].detach().flatten(1).norm(dim=1)[list(kept[g.name])]
            for g in evidence.graph.prunable
        }


def test_a_method_of_ones_own_keeps_the_largest() -> None:
    network, evidence = case_evidence("residual")
    method = Norms()
    plan = sc.plan(network, evidence.batches[0][0][0], {"params": "60%"}, method=method)
    for group in plan.groups:
        norms = dict(network.named_parameters())[f"{group.name}.weight"].flatten(1).norm(dim=1)
        assert set(group.kept) == set(norms.argsort(descending=True)[: len(group.kept)].tolist())
    assert method.name == "norms" and method.asked == 1
    sc.plan(network, evidence.batches[0][0][0], {"params": "60%"}, method=method, steps=3)
    assert method.asked == 4


def test_of_equal_scores_the_first_stays() -> None:
    chosen = Norms().choose("a", [1.0, 3.0, 3.0, 2.0, 3.0], 2)
    assert chosen.kept == (1, 2) and chosen.scales == (1.0, 1.0)
    assert Norms().choose("a", torch.arange(4), 4).kept == (0, 1, 2, 3)


def test_what_is_told_of_a_group_by_default() -> None:
    row = Norms().row(GroupRow("a", 5, 5), None, 2, Norms().choose("a", [1.0, 2.0], 1))
    assert row.after == 1 and row.before == 5 and all(map(math.isnan, (row.mass, row.eps, row.dropped, row.divergence)))
    assert Norms().settings() == {} and Norms().notes([], 3) == [] and Norms().allocation == "uniform"
    with pytest.raises(TypeError, match="abstract method scores"):
        Method()  # type: ignore[abstract]


def test_every_method_has_its_name() -> None:
    assert {kind().name: kind for kind in METHODS.values()} == METHODS
