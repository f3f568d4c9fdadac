"""Rows and charts from known numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from secateur.experiments.recipe import read as recipe
from secateur.report.records import read_records
from secateur.reproduction.items import read
from secateur.reproduction.points import Results, results
from secateur.reproduction.render import curves, points_table, settings_table, table
from support.reproduced_runs import write_run


@pytest.fixture
def found(tmp_path: Path) -> Results:
    steps = {"pfp": [[(0.5, 5.2, 5.4), (0.5, 5.2, 5.6)]], "residual": [[(0.6, 5.0, 5.0), (0.6, 5.0, 5.0)]]}
    return results("ResNet20", read_records(write_run(tmp_path, "resnet20", [(5.0, 5.0), (5.0, 5.0)], steps)))


def test_ours_stands_beside_the_paper(found: Results) -> None:
    rows = table(read("table-cifar"), [found])
    first = rows[0]
    assert (first["network"], first["method"], first["row"]) == ("ResNet20", "PFP", "within 0.5")
    assert (first["original"], first["change"], first["PR"], first["FR"]) == (5.0, 0.5, 50.0, 25.0)
    assert (first["paper: PR"], first["PR - paper"], first["networks"]) == (62.67, -12.67, 2)
    assert first["protocol"].startswith("resnet20: 3 networks trained for 182 epochs, cascade")
    ours = rows[1]
    assert ours["method"] == "residual (ours)" and ours["paper: PR"] is None and ours["PR - paper"] is None


def test_published_rows_without_a_run_say_so(found: Results) -> None:
    rows = table(read("table-cifar-more"), [found])
    literature = [row for row in rows if row["protocol"].startswith("literature: ")]
    names = {row["method"] for row in literature if row["network"] == "ResNet20"}
    assert "He et al. 2019 (FPGM)" in names and "PFP" not in names
    assert all("PR" not in row for row in literature) and all(row["paper: change"] is not None for row in literature)
    assert {row["row"] for row in rows if row["method"] == "PFP" and "PR" in row} == {
        "within 0.5",
        "original",
        "lowest",
    }
    others = {row["protocol"] for row in literature if row["network"] == "VGG16" and row["method"] == "PFP"}
    assert others == {"literature: the paper; not run here"}


def test_curves_have_a_band_and_the_level_of_the_original(found: Results) -> None:
    item = replace(read("fig-curves"), stage=("pruned", "retrained"))
    before, after = curves(item, [found])
    assert before.name == "fig-curves-resnet20-pruned" and "before retraining" in before.title
    pfp, ours, level = after.series
    assert pfp.name == "PFP" and list(pfp.x) == [0.5] and list(pfp.y) == pytest.approx([94.5])
    assert pfp.low is not None and pfp.low[0] == pytest.approx(94.5 - 0.1414, abs=1e-4)
    assert ours.style != pfp.style and level.kind == "level" and list(level.y) == [95.0, 95.0]
    assert before.series[0].y[0] == pytest.approx(84.5)
    rows = points_table(item, [found])
    assert [row["before retraining"] for row in rows] == pytest.approx([15.5, 15.0])


def test_only_the_named_methods_are_drawn(found: Results) -> None:
    item = replace(read("fig-curves"), methods=("residual",))
    (chart,) = curves(item, [found])
    assert [one.name for one in chart.series] == ["residual (ours)", "original"]
    assert len(points_table(item, [found])) == 1


def test_hyper_parameters_come_from_the_recipes() -> None:
    rows = {row["setting"]: row for row in settings_table([("VGG16", recipe("vgg16")), ("WRN16-8", recipe("wrn16-8"))])}
    assert rows["epochs"] == {"setting": "epochs", "VGG16": "300", "WRN16-8": "200"}
    assert rows["decay"]["VGG16"] == "x0.5 every 30" and rows["Nesterov"]["WRN16-8"] == "yes"
    assert rows["retraining epochs"]["VGG16"] == "150" and rows["delta"]["VGG16"] == "1e-16"
