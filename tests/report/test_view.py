"""A sweep as an object."""

from __future__ import annotations

from pathlib import Path

import pytest

import secateur as sc
from secateur.errors import UsageError
from support.written_sweeps import write, write_sweep


def test_rows_text_and_page(tmp_path: Path) -> None:
    sweep = sc.read_sweep(write_sweep(tmp_path / "run"))
    frame = sweep.to_frame()
    assert len(frame) == 12 and frame["retrained_test_top1"][0] == pytest.approx(0.98 - 0.02 * 0.25**3)
    assert "unpruned test error" in str(sweep) and "<td" in sweep._repr_html_()
    assert sweep.report(tmp_path / "page.html").stat().st_size > 4e6


def test_a_sweep_without_a_trained_network(tmp_path: Path) -> None:
    write(tmp_path, "recipe.json", {"name": "new"})
    sweep = sc.read_sweep(tmp_path)
    with pytest.raises(UsageError, match="trained yet"):
        str(sweep)
    assert sweep.result.sections
