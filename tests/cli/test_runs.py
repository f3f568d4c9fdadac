"""`secateur train`, `sweep` and `report`."""

from __future__ import annotations

import csv
import json
import re
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secateur.cli import app
from support.small_runs import write_digits, write_recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    write_digits(folder / "data")
    write_recipe(folder)
    return folder


def call(place: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "80", "SECATEUR_DATA": str(place / "data")}).invoke(app, arguments)
    return result.exit_code, result.output


def test_train_then_sweep_then_report(place: Path) -> None:
    recipe, out = str(place / "small.yaml"), str(place / "run")
    short = ["--set", "train.epochs=1", "--set", "retrain.epochs=0"]
    code, text = call(place, "train", recipe, "--out", out, *short)
    assert code == 0 and "small, network 0: test error" in text
    code, text = call(place, "sweep", recipe, "--out", out, *short)
    assert code == 2 and "--resume" in text
    code, text = call(place, "sweep", recipe, "--out", out, "--resume", *short)
    assert code == 0 and "done: network 0, pfp" in text and "parameters removed" in text
    code, again = call(place, "report", out)
    assert code == 0 and "unpruned test error" in again
    code, text = call(place, "report", out, "--json")
    rows = json.loads(text)["rows"]
    assert code == 0 and len(rows) == 2
    code, text = call(place, "report", out, "--csv")
    lines = list(csv.DictReader(text.splitlines()))
    assert code == 0 and lines == [{key: str(value) for key, value in row.items()} for row in rows]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["sweep", "lenet-5"], "did you mean lenet5"),
        (["sweep", "lenet5", "--set", "train.epoch=3"], "there is no setting 'epoch'"),
        (["sweep", "lenet5", "--set", "nonsense"], "is not an assignment"),
        (["report", "nowhere"], "there is no run in nowhere"),
        (["sweep", "lenet5", "--engine", "cloud"], "--engine"),
    ],
)
def test_wrong_calls(place: Path, arguments: list[str], text: str) -> None:
    code, output = call(place, *arguments)
    assert code == 2 and text in " ".join(output.split())


def test_a_shortened_recipe_says_so(place: Path, tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(
        f"extends: {place / 'small.yaml'}\ndiffers: one epoch\nname: quick\ntrain: {{epochs: 1}}\n"
        "retrain: {epochs: 0}\ntargets: [0.5]\n"
    )
    code, text = call(place, "sweep", str(tmp_path / "quick.yaml"), "--out", str(tmp_path / "run"), "--json")
    assert code == 0 and "quick differs from the full recipe: one epoch" in " ".join(text.split())


def test_a_live_sweep_prints_its_address_and_ends_with_the_sweep(place: Path) -> None:
    out = place / "live"
    code, text = call(
        place, "sweep", str(place / "small.yaml"), "--out", str(out), "--live", "--set", "train.epochs=1",
        "--set", "retrain.epochs=0",
    )  # fmt: skip
    address = re.search(r"live: (http://127\.0\.0\.1:\d+/)", text)
    assert code == 0 and address and "unpruned test error" in text
    with pytest.raises(OSError):
        urllib.request.urlopen(address[1], timeout=5)
    code, text = call(place, "report", str(out), "--time", "--out", str(place / "timed.html"))
    assert code == 0 and "latency kept" in (place / "timed.html").read_text()
