"""Points and selections from records with known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from secateur.errors import UsageError
from secateur.experiments.recipe import read
from secateur.report.records import read_records
from secateur.reproduction.points import in_words, results, selected
from support.reproduced_runs import write_run

PFP = [[(0.3, 4.8, 5.0), (0.3, 4.6, 5.2)], [(0.6, 5.3, 5.5), (0.6, 5.5, 5.9)], [(0.8, 7.0, 7.0), (0.8, 8.0, 8.0)]]


def run(tmp_path: Path, **steps: list[list[tuple[float, float, float]]]) -> Path:
    return write_run(tmp_path, "resnet20", [(5.0, 5.1), (5.0, 5.3)], steps or {"pfp": PFP}, error5=1.0)


def test_means_deviations_and_changes(tmp_path: Path) -> None:
    found = results("ResNet20", read_records(run(tmp_path)))
    assert (found.label, found.unit, found.networks, found.methods) == ("ResNet20", "%", 2, ["pfp"])
    assert found.original == pytest.approx(5.2) and found.original_spread == pytest.approx(0.1414, abs=1e-4)
    first = found.points[0]
    assert (first.method, first.target, first.networks, first.pr, first.fr) == ("pfp", 0.1, 2, 0.3, 0.15)
    assert first.error == pytest.approx(5.1) and first.spread == pytest.approx(0.1414, abs=1e-4)
    assert first.change == pytest.approx(-0.1) and first.validation_change == pytest.approx(-0.3)
    assert first.pruned == pytest.approx(15.1) and first.change5 == pytest.approx(0.0)


def test_changes_are_of_the_same_networks(tmp_path: Path) -> None:
    """Only the second network, whose original errs more, has been pruned with ft."""
    folder = run(tmp_path)
    for path in (folder / "network-0").rglob("step-*.json"):
        path.unlink()
    (point, *_) = results("x", read_records(folder)).points
    assert point.networks == 1 and point.change == pytest.approx(5.2 - 5.3)


@pytest.mark.parametrize(
    ("row", "pr"),
    [("within 0.5", 0.6), ("within 0.3", 0.3), ("within 4", 0.8), ("original", 0.3), ("lowest", 0.3)],
)
def test_selections_on_validation_data(tmp_path: Path, row: str, pr: float) -> None:
    found = results("ResNet20", read_records(run(tmp_path)))
    point = selected(found, "pfp", row)
    assert point is not None and point.pr == pr
    assert selected(found, "ft", row) is None


def test_where_none_is_near_the_nearest_counts(tmp_path: Path) -> None:
    found = results("x", read_records(run(tmp_path, ft=[[(0.5, 9.0, 9.0)] * 2, [(0.7, 8.0, 9.5)] * 2])))
    point = selected(found, "ft", "within 0.5")
    assert point is not None and point.pr == pytest.approx(0.7)


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no row 'best'"):
        selected(results("x", read_records(run(tmp_path))), "pfp", "best")


def test_the_protocol_in_one_line() -> None:
    import json

    words = in_words(json.loads(read("resnet20-short").to_json()))
    assert words == (
        "resnet20-short: 1 network from weights/resnet20-12fca82f.th, cascade, retrained for 5, selected on half of "
        "the test data"
    )
    assert in_words(json.loads(read("deepknight").to_json())).endswith("one shot, not retrained")
