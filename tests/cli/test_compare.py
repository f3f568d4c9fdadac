"""`secateur compare`: table, JSON, the file, Ctrl-C, refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

import secateur as sc
from secateur.cli.demo import accuracy
from secateur.embedded import digits, lenet5
from support.command_line import DIGITS, TRAINED, width
from support.command_line import run as run_command

LENET = (*TRAINED, *DIGITS, "--samples", 32)
ON = ("--on", "embedded:digits", "--on-samples", 200)


def run(*args: object) -> Result:
    return run_command("compare", *args)


def test_compare(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    result = run(*LENET, *ON, "--methods", "ft, pfp:pivotal,thinet+repair", "--params", "50%,0.01%", "--out", out)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert ["zoo:lenet5"] == lines[0] and "evaluated on 200 of embedded:digits (test)" in result.stdout
    assert {"ft", "pfp:pivotal", "thinet+repair"} <= {word for line in lines for word in line[:2]}
    flat = " ".join(result.stdout.split())
    assert flat.count("the budget cannot be met") == 3 and f"Saved: {out}" in result.stdout.splitlines()
    assert width(result, tmp_path) <= 80 and "\x1b" not in result.stdout
    record = json.loads(out.read_text())
    assert record["finished"] and record["model"] == "zoo:lenet5" and record["on"] == "embedded:digits (test)"
    images, labels = digits("test")
    assert record["original"] == pytest.approx(accuracy(lenet5(), images[:200], labels[:200]))


def test_json_has_the_figures_that_prune_gives() -> None:
    found = json.loads(run(*LENET, *ON, "--methods", "pfp", "--macs", "40%", "--seed", 3, "--json").stdout)
    pruned = run_command("prune", *LENET, "--method", "pfp", "--macs", "40%", "--seed", "3", "--json")
    after = json.loads(pruned.stdout)["after"]
    (row,) = found["rows"]
    assert (row["params"], row["macs"], row["repeats"], row["error"]) == (after["params"], after["macs"], 1, None)
    assert found["resource"] == "macs" and found["samples"] == 32 and len(row["cells"]) == 1
    assert not any("in their order" in note for note in found["notes"])  # the samples are drawn at random


def test_csv_has_a_line_for_each_method_and_budget() -> None:
    result = run(*LENET, *ON, "--methods", "ft,random", "--params", "50%,0.01%", "--csv")
    lines = list(csv.DictReader(result.stdout.splitlines()))
    assert {(line["method"], line["budget"]) for line in lines} == {
        (method, budget) for method in ("ft", "random") for budget in ("50%", "0.01%")
    }
    for line in lines:
        assert bool(line["value"]) == (line["budget"] == "50%") == (not line["error"])


def test_repeats_with_and_without_repair_on_samples_that_are_held_out() -> None:
    found = json.loads(
        run(*LENET, "--methods", "ft,pfp", "--params", "30%", "--repair", "--repeats", 2, "--json").stdout
    )
    assert found["methods"] == ["ft", "ft+repair", "pfp", "pfp+repair"]
    assert (found["measure"], found["original"], found["on"], found["repeats"]) == ("divergence", None, None, 2)
    assert found["evaluated"] == (2 * 32 + 256) // 4
    for row in found["rows"]:
        assert 0 < row["low"] <= row["value"] <= row["high"]


def test_arrays_with_labels_and_own_files(tmp_path: Path) -> None:
    images, labels = digits("test")
    np.savez(tmp_path / "val.npz", x=images[:100].numpy(), y=labels[:100].numpy())
    np.save(tmp_path / "bare.npy", images[:100].numpy())
    (tmp_path / "own.py").write_text(
        "from secateur.embedded import digits, lenet5\n"
        "def pairs():\n"
        "    x, y = digits('test')\n"
        "    return list(zip(x[:100].split(50), y[:100].split(50)))\n"
    )
    model = (f"{tmp_path / 'own.py'}:lenet5", "--input", "1x1x28x28", "--data", tmp_path / "bare.npy", "--samples", 32)
    rest = ("--methods", "ft", "--params", "20%", "--json")
    arrays = json.loads(run(*model, "--on", tmp_path / "val.npz", *rest).stdout)
    pairs = json.loads(run(*model, "--on", f"{tmp_path / 'own.py'}:pairs", *rest).stdout)
    assert arrays["rows"][0]["value"] == pairs["rows"][0]["value"] and arrays["evaluated"] == 100
    assert "32 of the 100 evaluation samples are calibration samples too" in arrays["notes"][0]
    bare = run(*model, "--on", tmp_path / "bare.npy", *rest)
    assert bare.exit_code == 2 and "has no labels" in bare.stderr


def test_random_weights_are_noted() -> None:
    found = run("zoo:lenet5", "--data", "embedded:digits", "--samples", 16, "--methods", "ft", "--params", "50%")
    assert found.exit_code == 0 and "weights are random" in " ".join(found.stdout.split())


def test_ctrl_c_keeps_finished_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sc.compare

    def interrupted(*args: Any, after_each: Any, **settings: Any) -> sc.Comparison:
        def after(so_far: sc.Comparison) -> None:
            after_each(so_far)
            if len(so_far.cells) == 2:
                raise KeyboardInterrupt

        return real(*args, after_each=after, **settings)

    monkeypatch.setattr(sc, "compare", interrupted)
    out = tmp_path / "found.json"
    result = run(*LENET, *ON, "--methods", "ft,softnet,random", "--params", "50%", "--out", out)
    assert result.exit_code == 130 and f"{out} has the figures of 2 networks" in result.stderr
    record = json.loads(out.read_text())
    assert not record["finished"] and [row["method"] for row in record["rows"]] == ["ft", "softnet"]
    assert list(tmp_path.iterdir()) == [out]


def test_ctrl_c_at_once_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sc, "compare", interrupted)
    result = run(*LENET, "--methods", "ft", "--params", "50%", "--out", tmp_path / "found.json")
    assert result.exit_code == 130 and "networks" not in result.stderr and not list(tmp_path.iterdir())


def test_a_comparison_in_which_every_method_fails_is_a_failed_job() -> None:
    result = run(*LENET, *ON, "--methods", "ft", "--params", "50", "--quiet")
    assert result.exit_code == 1 and "every method failed" in result.stderr and not result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "there is no budget"),
        (("--params", "50%", "--macs", "50%"), "budgets in params and in MACs"),
        (("--params", "50%,"), "budget for params is ''"),
        (("--params", "150%"), "150%"),
        (("--params", "50%", "--methods", "ft,l1"), "'l1'"),
        (("--params", "50%", "--methods", "ft,"), "the method ''"),
        (("--params", "50%", "--repeats", 0), "0 is less than 1"),
        (("--params", "50%", "--on-samples", 0), "0 is less than 1"),
        (("--params", "50%", "--repeats", 2, "--samples", 512, *ON), "512"),
        (("--params", "50%", "--on", "nothing.npz"), "no file nothing.npz"),
        (("--params", "50%", "--out", "no/where.json"), "there is no folder"),
    ],
)
def test_wrong_calls(args: tuple[object, ...], message: str) -> None:
    result = run(*LENET, *args)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_an_existing_file_is_overwritten_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    out.write_text("old")
    rest = (*LENET, *ON, "--methods", "ft", "--params", "50%", "--out", out)
    assert run(*rest).exit_code == 2 and out.read_text() == "old"
    assert run(*rest, "--force").exit_code == 0 and json.loads(out.read_text())["finished"]
