"""From a request to a plan: budgets met, floors, rounding, steps, time."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import secateur as sc
from secateur.costs.sizes import Sizes
from secateur.embedded import digits, lenet5
from secateur.methods import METHODS
from secateur.methods.base import Evidence
from secateur.pruning.allocation import NAMES, Allocation
from secateur.pruning.job import Job
from secateur.pruning.prune import carry_out
from secateur.pruning.settings import PruneSettings
from secateur.refit.repair import Repair
from secateur.zoo import LeNet5Classic
from support.cases import build

IMAGES = torch.rand(8, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    return LeNet5Classic().eval()


NETWORK = network()
WHOLE = sc.cost(NETWORK, IMAGES[:1])
GRAPH = sc.trace(NETWORK, IMAGES[:1])
PFP_SETTINGS = PruneSettings(method="pfp")


def cost_of(plan: sc.Plan) -> sc.Cost:
    return sc.cost(sc.cut(NETWORK, plan), IMAGES[:1]) if plan.kept else WHOLE


@pytest.mark.parametrize("select", ["derand", "rand", "partial", "pivotal"])
@pytest.mark.parametrize("budget", [{"params": "40%"}, {"macs": "55%"}, {"params": "60%", "macs": "30%"}])
def test_the_budget_is_never_exceeded(select: Any, budget: dict[str, str]) -> None:
    found = cost_of(sc.plan(NETWORK, IMAGES, budget, method="pfp", select=select))
    gaps = {}
    for name, share in budget.items():
        gaps[name] = float(share.rstrip("%")) / 100 * getattr(WHOLE, name) - getattr(found, name)
    assert min(gaps.values()) >= 0
    if select in ("derand", "pivotal"):  # of the others, how many channels a draw has is chance
        assert any(gap <= costliest_channel(name) for name, gap in gaps.items())


def costliest_channel(resource: str) -> int:
    sizes = Sizes(GRAPH, WHOLE)
    measure = {"params": sizes.params, "macs": sizes.macs}[resource]
    return max(measure({}) - measure({group.name: group.size - 1}) for group in GRAPH.prunable)


def test_a_budget_in_numbers() -> None:
    assert 29_000 < cost_of(sc.plan(NETWORK, IMAGES, {"params": 30_000}, method="pfp")).params <= 30_000


def test_a_larger_budget_keeps_what_a_smaller_one_keeps() -> None:
    small, large = (sc.plan(NETWORK, IMAGES, {"params": share}) for share in ("20%", "50%"))
    kept = {group.name: set(group.kept) for group in large.groups}
    for group in small.groups:
        assert set(group.kept) <= kept.get(group.name, set(range(group.size)))


def test_derand_keeps_the_most_sensitive() -> None:
    found = sc.sensitivity(NETWORK, IMAGES)
    for group in sc.plan(NETWORK, IMAGES, {"params": "30%"}, method="pfp").groups:
        order = found[group.name].sort(descending=True, stable=True).indices[: len(group.kept)]
        assert set(group.kept) == set(order.tolist())


@pytest.mark.parametrize("select", ["rand", "pivotal"])
def test_draws_are_reweighed_and_repeatable(select: Any) -> None:
    one, same, other = (
        sc.plan(NETWORK, IMAGES, {"params": "40%"}, method="pfp", select=select, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert any(scale != 1 for group in one.groups for scale in group.scales)


def test_all_of_it_may_remain() -> None:
    assert not sc.plan(NETWORK, IMAGES, {"params": "100%"}).kept


def test_floors_and_multiples() -> None:
    plan = sc.plan(NETWORK, IMAGES, {"params": "30%"}, method="pfp", at_least={"conv*": 5}, round_to={"fc*": 8})
    sizes = {group.name: len(group.kept) for group in plan.groups}
    assert sizes.get("conv1", 6) >= 5 and sizes["conv2"] >= 5
    assert sizes["fc1"] % 8 == 0 and sizes["fc2"] % 8 == 0
    everywhere = sc.plan(NETWORK, IMAGES, {"params": "30%"}, at_least=4, round_to=4)
    assert all(len(group.kept) % 4 == 0 for group in everywhere.groups)


def test_steps_measure_again() -> None:
    one, several = (sc.plan(NETWORK, IMAGES, {"params": "20%"}, steps=steps) for steps in (1, 4))
    assert one != several
    assert cost_of(several).params <= 0.2 * WHOLE.params


def test_errors_of_several_steps_add_up() -> None:
    several = Job.of(NETWORK, IMAGES, {"params": "15%"}, replace(PFP_SETTINGS, steps=3)).draft()
    found = sc.sensitivity(NETWORK, IMAGES)
    for row in several.rows:
        assert row.mass == pytest.approx(float(found[row.name].sum()))
    once = {row.name: row.dropped for row in Job.of(NETWORK, IMAGES, {"params": "15%"}, PFP_SETTINGS).draft().rows}
    assert sum(row.dropped for row in several.rows) > 0.5 * sum(once.values())  # not of the last step alone


def test_steps_multiply_their_scales() -> None:
    plan = sc.plan(NETWORK, IMAGES, {"params": "20%"}, steps=3, method="pfp", select="pivotal")
    assert cost_of(plan).params <= 0.2 * WHOLE.params
    assert sc.verify(NETWORK, plan, IMAGES) < 1e-5


class Wide(nn.Module):
    """Nearly all of its time is arithmetic: a busy machine does not hide what cutting saves."""

    busy = 0  # so many calls of networks that were cut take long

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 96, 3), nn.Conv2d(96, 96, 3), nn.Conv2d(96, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if Wide.busy and len(self.first.weight) < 96:
            Wide.busy -= 1
            time.sleep(0.03)
        return self.third(self.second(self.first(x).relu()).relu())


@pytest.mark.parametrize("busy", [0, 50])
def test_milliseconds_are_measured(busy: int) -> None:
    torch.manual_seed(0)
    Wide.busy = busy  # 50: the first look at the smallest network finds it too slow
    draft = Job.of(Wide().eval(), torch.rand(8, 3, 32, 32), {"latency": "70%"}, PFP_SETTINGS).draft()
    assert draft.plan.kept and Wide.busy == 0


def test_a_time_out_of_reach_is_refused() -> None:
    with pytest.raises(sc.SecateurError, match=r"0.0001 ms may remain .* the smallest network takes"):
        sc.plan(NETWORK, IMAGES, {"latency": "0.0001ms"})


def test_the_program_can_be_planned_for() -> None:
    model, example = build("split_by_literal_widths")
    plan = sc.plan(model, example, {"params": "70%"}, output="graph")
    assert plan.output == "graph" and sc.verify(model, plan, example) < 1e-9


def test_the_draft_tells_of_every_group() -> None:
    draft = Job.of(NETWORK, IMAGES, {"params": "15%"}, PFP_SETTINGS).draft()
    assert [row.name for row in draft.rows] == ["conv1", "conv2", "fc1", "fc2"]
    planned = {group.name: len(group.kept) for group in draft.plan.groups}
    for row in draft.rows:
        assert row.after == planned.get(row.name, row.before) and 0 < row.mass <= row.before
        assert (row.eps > 0) == (row.dropped > 0)  # only what matters is missed: silent channels may go
    assert any(row.dropped > 0 for row in draft.rows)
    assert any("vacuous" in note for note in draft.notes)
    assert any("8 samples are few" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("budget", "settings", "text"),
    [
        ({"params": "0.01%"}, {}, "the smallest possible network has"),
        ({"macs": "1%", "params": "90%"}, {}, "macs .* may remain"),
        ({"latency_ms": 1e-6}, {}, "the smallest network takes"),
        ({}, {}, "the budget is empty"),
        ({"parms": "40%"}, {}, "did you mean 'params'"),
        ({"params": "40%"}, {"method": "magic"}, "no method 'magic'"),
        ({"params": "40%"}, {"select": "best"}, "select is 'best'"),
        ({"params": "40%"}, {"delta": 0.0}, "delta is 0.0"),
        ({"params": "40%"}, {"C": 0.5}, "C is 0.5"),
        ({"params": "40%"}, {"steps": 0}, "steps is 0"),
        ({"params": "40%"}, {"samples": 0}, "samples is 0"),
        ({"params": "40%"}, {"at_least": {"layer9*": 2}}, "'layer9\\*' matches no group"),
        ({"params": "40%"}, {"keep": ["*"]}, "no group of this network can be cut"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(budget: dict[str, Any], settings: Any, text: str) -> None:
    with pytest.raises(sc.SecateurError, match=text):
        sc.plan(NETWORK, IMAGES, budget, **settings)


def test_no_data_is_refused() -> None:
    with pytest.raises(sc.SecateurError, match="there is no data"):
        sc.plan(NETWORK, [], {"params": "40%"})


@pytest.fixture(scope="module")
def embedded() -> tuple[Job, Evidence]:
    """A request for the embedded network, and what is known of it."""
    images, labels = digits("calibration")
    job = Job.of(lenet5(), (images, labels), {"params": "20%"}, PruneSettings(samples=32))
    return job, job.evidence()


@pytest.mark.parametrize("allocation", NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_every_allocation(method: str, allocation: str, embedded: tuple[Job, Evidence]) -> None:
    job, seen = embedded
    repair = (list(METHODS).index(method) + NAMES.index(allocation)) % 2 == 0
    settings = PruneSettings(method=method, allocation=allocation, repair=repair)
    chosen, sizes = settings.resolve()
    asked = replace(job, settings=settings, method=chosen, allocation=sizes)
    res = carry_out(asked, asked.draft(seen))
    assert 0.19 * res.before.params < res.after.params <= 0.2 * res.before.params
    assert res.after == sc.cost(res.model, job.example)
    assert (res.repair is not None) == repair and res.verification < 1e-5
    if res.repair is not None:
        assert res.repair.after <= res.repair.before
    info = json.loads(json.dumps(res.info, allow_nan=False))
    assert info["method"] == method and info["allocation"] == allocation and (info["repair"] is not None) == repair
    assert res.summary()


def test_what_cannot_be_told_in_numbers_is_left_out_of_the_info(embedded: tuple[Job, Evidence]) -> None:
    job, seen = embedded
    res = carry_out(replace(job, settings=replace(job.settings, repair=False)), job.draft(seen))
    info = replace(res, repair=Repair((), 8, before=math.inf, after=math.nan, norms=False)).info
    assert json.loads(json.dumps(info, allow_nan=False))["repair"]["before"] is None


def test_uniform_keeps_the_same_part_of_every_group() -> None:
    plan = sc.plan(NETWORK, IMAGES, {"params": "30%"}, method="ft")
    parts = [len(group.kept) / group.size for group in plan.groups]
    most = max(1 / group.size for group in plan.groups)
    assert len(parts) == 4 and max(parts) - min(parts) <= most


def test_what_belongs_to_a_method_is_taken_unless_another_is_asked_for() -> None:
    sizes = {name: PruneSettings(method=name).resolve()[1] for name in ("residual", "pfp", "ft")}
    assert {name: one.name for name, one in sizes.items()} == {"residual": "residual", "pfp": "pfp", "ft": "uniform"}
    asked = PruneSettings(method="ft", allocation="residual").resolve()[1]
    assert asked == Allocation("residual", sizes["ft"].pfp)
    assert PruneSettings().repaired and not PruneSettings(repair=False).repaired
    assert not PruneSettings(method="ft").repaired and PruneSettings(method="ft", repair=True).repaired


@pytest.mark.parametrize("budget", [{"params": "40%"}, {"macs": "40%"}, {"params": "50%", "macs": "50%"}])
def test_residual_meets_its_budget_in_several_steps(budget: dict[str, str]) -> None:
    found = cost_of(sc.plan(NETWORK, IMAGES, budget, steps=2))
    assert all(getattr(found, name) <= float(share[:-1]) / 100 * getattr(WHOLE, name) for name, share in budget.items())


def test_data_that_is_not_finite_is_refused() -> None:
    images = IMAGES.clone()
    images[2, 0, 3, 3] = torch.nan
    for method in ("residual", "pfp"):
        with pytest.raises(sc.SecateurError, match="NaN or infinite values in sample 2 of batch 0"):
            sc.plan(NETWORK, images, {"params": "40%"}, method=method)
