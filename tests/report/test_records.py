"""The files of a sweep's folder, whole, half written, damaged or of another version."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from secateur.errors import SecateurError, UsageError
from secateur.report.page import page
from secateur.report.records import read_curves, read_records
from secateur.report.sources import read_source
from secateur.report.study import study
from support.written_sweeps import figures, step, write, write_sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "run")


def texts(folder: Path) -> str:
    return page([read_source(folder)]).split('<script type="application/json"')[0]


def test_a_finished_sweep_misses_nothing(folder: Path) -> None:
    found = read_records(folder)
    assert (found.missing, found.problems, found.stopped) == ((), (), ())
    assert len(found.originals) == 2 and len(found.steps) == 12


def test_a_half_written_sweep_shows_what_is_there_and_says_what_is_missing(folder: Path) -> None:
    (folder / "network-1" / "original.json").unlink()
    for number in (2, 3):
        (folder / f"network-1/1-method/step-0{number}.json").unlink()
    shown = texts(folder)
    assert "1 of 2 networks are not trained yet" in shown and "ft: 2 of 6 results are not there yet" in shown
    assert "10 networks by ft, pfp" in shown


def test_a_sweep_that_has_just_begun(tmp_path: Path) -> None:
    write(tmp_path, "recipe.json", {"name": "new", "networks": 1, "methods": ["pfp"], "targets": [0.5]})
    shown = texts(tmp_path)
    assert "No network of this sweep is trained yet" in shown and "1 of 1 networks are not trained yet" in shown


def test_a_damaged_file_is_named_and_left_out(folder: Path) -> None:
    (folder / "network-0/0-method/step-01.json").write_text("{half")
    (folder / "network-0/0-method/step-02.json").write_text(json.dumps({"other": 1}))
    record = step(0, "pfp", 3, 0.9, 0.5, 0.5)
    del record["retrained"]
    (folder / "network-0/0-method/step-03.json").write_text(json.dumps(record))
    found = read_records(folder)
    assert len(found.steps) == 9 and len(found.problems) == 3
    assert "step-01.json cannot be read" in found.problems[0] and "another version" in found.problems[1]
    assert "step-02.json lacks network" in texts(folder)


def test_what_stopped_is_not_missing(folder: Path) -> None:
    for number in (2, 3):
        (folder / f"network-0/0-method/step-0{number}.json").unlink()
    stopped = {"network": 0, "method": "pfp", "step": 2, "target": 0.5, "stopped": "the <b>budget</b> cannot be met"}
    write(folder, "network-0/0-method/step-02.json", stopped)
    assert read_records(folder).missing == ()
    assert "network 0, pfp, step 2: the &lt;b&gt;budget&lt;/b&gt; cannot be met" in texts(folder)


def test_figures_that_are_nan_are_gaps(folder: Path) -> None:
    record = step(0, "pfp", 1, 0.25, None, None)
    record["retrained"] = {"validation": figures(None, math.nan), "test": figures(None, None)}
    write(folder, "network-0/0-method/step-01.json", record)
    result = study(read_records(folder))
    line = next(one for one in result.charts["params"].series if one.name == "pfp")
    assert any(math.isnan(value or 0.0) for value in line.y)
    page([result])  # JSON without NaN


def test_the_caption_says_how_many_networks_a_mean_has(folder: Path) -> None:
    assert "Means over 2 networks" in study(read_records(folder)).charts["params"].caption
    (folder / "network-1/0-method/step-01.json").unlink()
    assert "Means over up to 2 networks" in study(read_records(folder)).charts["params"].caption
    for path in folder.glob("network-1/*/step-*.json"):
        path.unlink()
    assert "Means over" not in study(read_records(folder)).charts["params"].caption  # of one each, beside two originals


def test_one_run(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "one", networks=1, methods=("pfp",), steps=1)
    charts = study(read_records(folder)).charts
    assert len(charts["params"].series[0].x) == 1 and charts["params"].series[0].low is None


def test_the_band_is_one_standard_deviation(folder: Path) -> None:
    line = study(read_records(folder)).charts["params"].series[0]
    half = (line.high[0] - line.low[0]) / 2  # type: ignore[index, operator]
    assert half == pytest.approx(100 * 0.002 / 2**0.5)  # of two networks that differ by 0.2 points


def test_the_charts_have_the_original_and_the_chosen_networks(folder: Path) -> None:
    chart = study(read_records(folder)).charts["macs"]
    kinds = [one.kind for one in chart.series]
    assert kinds.count("star") == 2 and kinds.count("level") == 1 and chart.series[-1].name == "original"
    assert chart.series[-1].y == [pytest.approx(97.9)] * 2


def test_latency_is_shown_where_it_was_measured(folder: Path) -> None:
    times = {f"network-{n}/0-method/step-01": {"kept": 0.5 + n / 10, "low": 0.4, "high": 0.7} for n in (0, 1)}
    write(folder, "latency.json", {"networks": times})
    charts = study(read_records(folder)).charts
    assert list(charts["latency"].series[0].x) == [pytest.approx(0.55)]


def test_curves_of_a_training_that_is_not_finished(folder: Path) -> None:
    path = folder / "network-0" / "original.jsonl"
    path.write_text(path.read_text() + '{"epoch": 4, "lo')
    assert [line["epoch"] for line in read_curves(folder)["network-0/original"]] == [1, 2, 3]
    assert study(read_records(folder)).charts["loss:originals"].series[0].y == [1.0, 0.5, pytest.approx(0.33333)]


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_a_folder_without_a_recipe_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="there is no run"):
        read_records(tmp_path)
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(SecateurError, match=r"recipe.json"):
        read_records(tmp_path)
