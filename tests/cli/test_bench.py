"""`secateur bench`: the table, JSON, files and names, refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import secateur as sc
from secateur.embedded import lenet5
from secateur.storage.checkpoint import read_plan
from secateur.zoo.names import build
from support.command_line import TRAINED, run, width

EXPORTS = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_bench(file: Path) -> None:
    result = run("bench", f"{file}:deep", f"{file}:make", "--input", "1x6", "--batch", 8, "--threads", 1)
    assert result.exit_code == 0, result.output
    assert "input 8x6, 50 interleaved runs of each, 1 thread" in result.stdout
    speedup, _, interval = (
        " ".join(result.stdout.split()).partition("B compared with A: ")[2].partition(" times as fast")
    )
    assert float(speedup) > 2 and "interval" in interval
    assert width(result) <= 80


def test_json_has_the_costs_times_and_the_interval(small: Path) -> None:
    args = ("bench", "zoo:lenet5", small, "--model", "zoo:lenet5", "--runs", 20, "--json", "--seed", 3)
    found = json.loads(run(*args).stdout)
    assert (found["input"], found["seed"]) == ([[1, 1, 28, 28]], 3)
    original, less = found["networks"]
    assert (original["network"], original["params"], less["network"]) == ("zoo:lenet5", 431_080, str(small))
    assert less["params"] <= 0.3 * original["params"]
    assert found["speedup"] == pytest.approx(original["median_ms"] / less["median_ms"])
    assert found["low"] <= found["speedup"] <= found["high"]
    assert found["measurable"] == (not found["low"] <= 1 <= found["high"])


def test_a_file_may_name_its_original(small: Path, tmp_path: Path) -> None:
    result = run("bench", "zoo:lenet5", small)
    assert result.exit_code == 2 and "--model net.py:make" in result.stderr
    known = tmp_path / "known.safetensors"
    sc.save(known, sc.load(small, lenet5()), read_plan(small), architecture="zoo:lenet5")
    assert run("bench", known, known, "--runs", 20).exit_code == 0


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["zoo:lenet5", "nowhere.safetensors"], 2, "there is no file nowhere.safetensors"),
        (["zoo:lenet5", "zoo:resnet20"], 1, "the model fails on an example of shape"),
        (["zoo:lenet5", "zoo:lenet5", "--batch", "0"], 2, "0 is less than 1"),
        (["zoo:lenet5", "zoo:lenet5", "--runs", "2"], 2, "runs"),
        (["zoo:lenet5"], 2, "B"),
    ],
)
def test_refusals(args: list[str], code: int, message: str) -> None:
    result = run("bench", *args)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr and "Traceback" not in result.stderr


@pytest.fixture
def onnx(file: Path) -> Path:
    """A small network as ONNX, with a free batch size."""
    pytest.importorskip("onnxruntime")
    path = file.parent / "net.onnx"
    sc.export(build(f"{file}:make"), path, torch.zeros(1, 6), runs=20)
    return path


@EXPORTS
def test_an_onnx_file_is_timed_beside_a_network(file: Path, onnx: Path) -> None:
    args = ("--input", "1x6", "--batch", 4, "--runs", 20, "--threads", 1)
    found = json.loads(run("bench", f"{file}:make", onnx, *args, "--json").stdout)
    assert found["input"] == [[4, 6]] and found["threads"] == 1
    original, exported = found["networks"]
    assert original["params"] == 6 * 8 + 8 + 8 * 2 + 2
    assert (exported["params"], exported["macs"], exported["threads"]) == (None, None, 1)
    assert found["speedup"] == pytest.approx(original["median_ms"] / exported["median_ms"])
    page = run("bench", f"{file}:make", onnx, *args)
    assert next(line for line in page.stdout.splitlines() if line.startswith("B")).split().count("-") == 2


@EXPORTS
def test_two_onnx_files_are_timed_in_the_shape_that_they_name(onnx: Path) -> None:
    found = json.loads(run("bench", onnx, onnx, "--batch", 3, "--runs", 20, "--json").stdout)
    assert found["input"] == [[3, 6]]


@EXPORTS
def test_onnx_files_that_cannot_be_timed(file: Path, onnx: Path) -> None:
    for args, code, words in (
        ((onnx, "none.onnx"), 2, "there is no file none.onnx"),
        ((onnx, file.with_name("bad.onnx")), 1, "cannot be read as ONNX"),
        ((onnx, onnx, "--input", "1x5"), 1, "fails on an input of shape 1x5"),
        ((onnx, onnx, "--input", "1x6", "--input", "1x6"), 1, "takes 1 inputs, and there are 2"),
        ((onnx, onnx, "--weights", file), 2, "have their own weights"),
    ):
        file.with_name("bad.onnx").write_bytes(b"no network")
        result = run("bench", *args, "--runs", 20)
        assert (result.exit_code, words in " ".join(result.stderr.split())) == (code, True), result.output


def test_weights_are_read_for_networks_given_by_name(small: Path, tmp_path: Path) -> None:
    result = run("bench", *TRAINED, small, "--model", "zoo:lenet5", "--runs", 20, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["weights"] == str(TRAINED[2])
    torch.save({}, tmp_path / "none.pt")
    result = run("bench", "zoo:lenet5", "zoo:lenet5", "--weights", tmp_path / "none.pt")
    assert result.exit_code == 1 and "does not fit the model" in result.stderr


def test_csv_has_a_line_for_each_network(file: Path) -> None:
    result = run("bench", f"{file}:make", f"{file}:deep", "--input", "1x6", "--runs", 20, "--csv")
    lines = list(csv.DictReader(result.stdout.splitlines()))
    assert [line["network"] for line in lines] == [f"{file}:make", f"{file}:deep"]
    assert lines[0]["params"] == "74" and float(lines[1]["median_ms"]) > 0
