"""Run a small item end to end, resume it, and render it in every form."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from secateur.errors import SecateurError, UsageError
from secateur.experiments import recipe as recipes
from secateur.report.records import read_records
from secateur.reproduction.items import Item, Published, Run, read
from secateur.reproduction.reproduce import chosen, plan, rendered, run, take_stored
from secateur.reproduction.stored import compact
from support.reproduced_runs import write_run
from support.small_runs import write_digits, write_recipe

TABLE = Item(
    name="small-table",
    kind="table",
    title="A small table",
    paper="Table 0",
    runs=(Run("none", "Small", quick="small"), Run("none", "Other")),
    published=(Published("Small", "pfp", original=5.0, change=0.4, pr=50.0),),
    note="A remark.",
)
CURVES = replace(TABLE, name="small-curves", kind="curves", stage=("pruned", "retrained"), published=())
ALLOCATION = replace(TABLE, name="small-allocation", kind="allocation", methods=("pfp", "residual"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("recipes")
    write_recipe(folder)
    monkeypatch.setattr(recipes, "FOLDER", folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


def test_plan_run_resume_and_render(runs: Path, data: Path, tmp_path: Path) -> None:
    before = plan(TABLE, "quick", runs, data)
    assert [(task.recipe, task.method) for task in before] == [("small", None), ("small", "pfp")]
    said: list[str] = []
    run(TABLE, "quick", runs, data_root=data, log=said.append)
    assert "small: network 0, pfp" in said and plan(TABLE, "quick", runs, data) == []
    files = {path: path.stat().st_mtime_ns for path in (runs / "small").rglob("step-*")}
    run(TABLE, "quick", runs, data_root=data)
    assert files == {path: path.stat().st_mtime_ns for path in files}
    found = rendered(TABLE, "quick", runs)
    (row,) = found.rows
    assert row["network"] == "Small" and row["paper: PR"] == 50.0 and row["PR"] >= 40
    assert found.missing == ("Other: no results of a quick recipe",)
    written = found.write(tmp_path)
    assert [path.suffix for path in written] == [".md", ".csv", ".tex", ".json"]
    assert "| Small | PFP |" in written[0].read_text() and "A remark." in written[0].read_text()
    assert next(csv.DictReader(written[1].read_text().splitlines()))["protocol"] == row["protocol"]
    assert r"\begin{tabular}" in written[2].read_text() and json.loads(written[3].read_text())["rows"] == [row]


def test_stored_results_are_not_run_again(data: Path, tmp_path: Path) -> None:
    steps = {"pfp": [[(0.4, 5.2, 5.4)], [(0.7, 5.2, 5.4)]]}
    records = read_records(write_run(tmp_path / "elsewhere", "small", [(5.0, 5.0)], steps))
    stored, runs = tmp_path / "stored", tmp_path / "runs"
    stored.mkdir()
    (stored / "small.json").write_text(json.dumps(compact(records)))
    (stored / "small-allocation.json").write_text('{"recipe": "small"}')
    assert take_stored(TABLE, "quick", runs, stored) == 3 and take_stored(TABLE, "quick", runs, stored) == 0
    assert plan(TABLE, "quick", runs, data) == []
    run(TABLE, "quick", runs, data_root=data)
    assert not list(runs.rglob("*.safetensors")) and rendered(TABLE, "quick", runs).rows[0]["PR"] == 70.0
    assert take_stored(ALLOCATION, "quick", runs, stored) == 1 and plan(ALLOCATION, "quick", runs, data) == []


def test_curves_are_drawn_in_three_formats(runs: Path, data: Path, tmp_path: Path) -> None:
    run(replace(CURVES, timed=True), "quick", runs, data_root=data)
    found = rendered(CURVES, "quick", runs)
    assert all(row["ms, batch 1"] > 0 and row["latency kept"] > 0 for row in found.rows)
    assert [chart.name for chart in found.charts] == ["small-curves-small-pruned", "small-curves-small-retrained"]
    written = {path.name: path for path in found.write(tmp_path)}
    for chart in found.charts:
        assert written[f"{chart.name}.pdf"].read_bytes().startswith(b"%PDF")
        assert b"<svg" in written[f"{chart.name}.svg"].read_bytes()
        assert written[f"{chart.name}.png"].read_bytes().startswith(b"\x89PNG")


def test_the_allocation_of_a_budget(runs: Path, data: Path) -> None:
    assert len(plan(ALLOCATION, "quick", runs, data)) == 1
    run(ALLOCATION, "quick", runs, data_root=data)
    stored = (runs / "small" / "allocation.json").stat().st_mtime_ns
    run(ALLOCATION, "quick", runs, data_root=data)  # measured once
    assert (runs / "small" / "allocation.json").stat().st_mtime_ns == stored
    found = rendered(ALLOCATION, "quick", runs)
    assert {row["method"] for row in found.rows} == {"PFP", "residual (ours)"} and not found.missing
    assert all(0 < row["kept"] <= 1 for row in found.rows)
    pfp = [row for row in found.rows if row["method"] == "PFP"]
    assert all(row["sensitivity mass"] > 0 for row in pfp)
    assert [chart.name.rpartition("-")[2] for chart in found.charts] == ["kept", "errors", "sensitivities"]


def test_settings_need_no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    item = read("table-settings")
    assert chosen(item, "quick") == [] and rendered(item, "full", Path("none")).rows[2]["VGG16"] == "300"


def test_shortened_results_stand_in_where_the_full_recipe_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    write_run(tmp_path, "resnet20-short", [(5.0, 5.0)], {"pfp": [[(0.5, 5.2, 5.4)]]})
    found = rendered(read("table-cifar"), "full", tmp_path)
    assert found.rows[0]["protocol"].startswith("resnet20-short: 1 network")
    write_run(tmp_path, "resnet20", [(5.0, 5.0)], {"pfp": [[(0.6, 5.2, 5.4)]]})
    assert rendered(read("table-cifar"), "full", tmp_path).rows[0]["PR"] == 60.0
    assert any("ResNet56: no results of resnet56" in text for text in found.missing)


def test_an_item_without_a_quick_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    with pytest.raises(UsageError, match="has no quick version"):
        run(read("table-imagenet"), "quick", tmp_path)


def test_a_run_without_its_weights_is_left_out(runs: Path, data: Path) -> None:
    (recipes.FOLDER / "lacking.yaml").write_text(
        "extends: small\nname: lacking\ndiffers: for a test\nweights: weights/none.safetensors\n"
    )
    lacking = Run("none", "Lacking", quick="lacking")
    said: list[str] = []
    run(replace(TABLE, runs=(lacking, *TABLE.runs)), "quick", runs, data_root=data, log=said.append)
    assert any("lacking is left out" in text and "weights/none.safetensors" in text for text in said)
    with pytest.raises(SecateurError, match="there are no weights"):
        run(replace(TABLE, runs=(lacking,)), "quick", runs, data_root=data)
