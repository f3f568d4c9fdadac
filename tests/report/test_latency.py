"""Times of the networks of a sweep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import secateur as sc
from secateur.errors import SecateurError
from secateur.report.latency import measure_latency
from secateur.report.records import read_records
from secateur.report.study import study
from support.small_runs import small, write_digits

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_every_network_is_timed_once_beside_its_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(small(tmp_path), networks=1)
    folder = sc.sweep(recipe, tmp_path / "run", data_root=write_digits(tmp_path / "data"))
    path = measure_latency(read_records(folder), runs=20)
    found = json.loads(path.read_text())
    assert found["threads"] == 1 and found["runs"] == 20 and len(found["networks"]) == 2
    assert all(one["low"] <= one["kept"] <= one["high"] and one["ms"] > 0 for one in found["networks"].values())
    measure_latency(read_records(folder), runs=20)
    assert json.loads(path.read_text()) == found  # nothing is timed again
    assert "latency" in study(read_records(folder)).charts
    assert "was run by secateur" not in str(study(read_records(folder)))
    monkeypatch.setattr("secateur.report.study.__version__", "9.9")
    assert f"was run by secateur {sc.__version__}; this page was made by 9.9" in str(study(read_records(folder)))
    (folder / "network-0" / "pfp" / "step-01.safetensors").unlink()
    with pytest.raises(SecateurError, match="times need the networks"):
        measure_latency(read_records(folder), runs=21)
