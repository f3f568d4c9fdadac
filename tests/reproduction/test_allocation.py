"""The allocation of a budget to the groups of a small network, measured once."""

from __future__ import annotations

from pathlib import Path

import torch

import secateur as sc
from secateur.experiments.cascade import load_original
from secateur.reproduction.allocation import charts, measure, table
from support.small_runs import small, write_digits


def test_groups_errors_and_charts(tmp_path: Path) -> None:
    recipe, data = small(tmp_path / "recipe"), write_digits(tmp_path / "data")
    found = measure(recipe, ["pfp", "residual"], tmp_path / "run", data)
    model = load_original(recipe, 0, tmp_path / "run")
    groups = {group.name: group.size for group in sc.trace(model, torch.zeros(1, 1, 28, 28)).prunable}
    for method in ("pfp", "residual"):
        rows = found["methods"][method]["groups"]
        assert {row["group"]: row["before"] for row in rows} == groups
        assert sum(row["after"] for row in rows) < sum(groups.values())
    assert all(row["mass"] > 0 for row in found["methods"]["pfp"]["groups"])
    assert measure(recipe, ["pfp"], tmp_path / "run", data) == found  # as stored
    lines = table(found)
    assert (
        len(lines) == 2 * len(groups) and lines[0]["protocol"] == "small, cut to 50% of the parameters, not retrained"
    )
    kept, errors, sensitivities = charts("name", "Small", found)
    assert all(0 < mean <= 1 for mean in sensitivities.series[0].y if mean is not None)
    assert not any(value == 0 for one in errors.series for value in one.y)  # the scale is logarithmic
    assert [one.name for one in kept.series] == ["PFP", "residual (ours)"] and errors.y.scale == "log"
    assert list(kept.series[0].y) == [row["after"] / row["before"] for row in found["methods"]["pfp"]["groups"]]
