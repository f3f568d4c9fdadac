"""`secateur export`: the file, the table, JSON, refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import secateur as sc
from secateur.embedded import digits, lenet5
from support.command_line import TRAINED, run, width

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_export_of_a_pruned_file(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.pt2"
    args = ("export", small, "--model", "zoo:lenet5", "--to", "torch-export", "--out", out, "--runs", 20)
    result = run(*args, "--data", "embedded:digits", "--samples", 16)
    assert result.exit_code == 0, result.output
    images = digits("test")[0][:7]
    wanted = sc.load(small, lenet5()).eval()(images)
    assert torch.allclose(torch.export.load(out).module()(images), wanted, atol=1e-5)
    assert "input 1x1x28x28, 20 interleaved runs of each" in result.stdout
    words = " ".join(result.stdout.split())
    assert "on 24 inputs from embedded:digits, in batches of 1, 2, 5, 16." in words
    assert f"torch (file) {small.stat().st_size / 1e3:,.0f} kB" in words
    assert f"torch.export {out.stat().st_size / 1e3:,.0f} kB" in words
    assert f"Saved: {out}" in result.stdout.splitlines()
    assert width(result, small, out) <= 80
    again = run(*args)
    assert (again.exit_code, f"{out} exists" in again.stderr) == (2, True)


def test_a_missing_file_is_not_taken_for_one_without_its_original(tmp_path: Path) -> None:
    result = run("export", tmp_path / "none.safetensors", "--out", tmp_path / "net.onnx")
    assert result.exit_code == 2 and "there is no file" in result.stderr and "--model" not in result.stderr


def test_export_to_onnx_in_json(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "net.onnx"
    result = run("export", f"{file}:make", "--input", "1x6", "--out", out, "--runs", 20, "--json", "--threads", 1)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["to"], found["runtime"], found["input"], found["data"]) == ("onnx", "onnxruntime", [[1, 6]], None)
    assert (found["samples"], found["batches"], found["real"]) == (8, [1, 2, 5], False)
    assert found["difference"] < 1e-5 and found["path"] == str(out)
    assert (found["bytes_before"], found["bytes_after"]) == (4 * (6 * 8 + 8 + 8 * 2 + 2), out.stat().st_size)
    assert found["times"]["first"]["threads"] == 1


def test_weights_of_a_network_given_by_name(small: Path, tmp_path: Path) -> None:
    args = ("--to", "torch-export", "--runs", 20, "--json")
    found = json.loads(run("export", *TRAINED, *args, "--out", tmp_path / "trained.pt2").stdout)
    assert found["weights"] == str(TRAINED[2]) and found["notes"] == []
    images = digits("test")[0][:7]
    trained = torch.export.load(tmp_path / "trained.pt2").module()
    assert torch.allclose(trained(images), lenet5().eval()(images), atol=1e-5)
    found = json.loads(run("export", "zoo:lenet5", *args, "--out", tmp_path / "random.pt2").stdout)
    assert "the weights are random" in found["notes"][0]
    result = run("export", small, "--model", "zoo:lenet5", *TRAINED[1:], *args, "--out", tmp_path / "x.pt2")
    assert result.exit_code == 2 and "has its own weights" in result.stderr


def test_csv_has_a_line_for_each_runtime(file: Path) -> None:
    args = ("--input", "1x6", "--to", "torch-export", "--out", file.parent / "x.pt2", "--runs", 20)
    lines = list(csv.DictReader(run("export", f"{file}:make", *args, "--csv").stdout.splitlines()))
    assert [line["runtime"] for line in lines] == ["torch (tensors)", "torch.export"]
    assert lines[1]["bytes"] == str((file.parent / "x.pt2").stat().st_size)


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--to", "tflite"], 2, "--to"),
        (["--threads", "0"], 2, "0 is less than 1"),
        (["--runs", "3"], 2, "runs"),
        (["--mean", "a"], 2, "--mean is 'a'"),
        (["--data", "nowhere.npy"], 2, "there is no file nowhere.npy"),
        (["--input", "1x5"], 1, "torch.export cannot"),
        (["--out", "nowhere/x.pt2"], 2, "there is no folder"),
    ],
)
def test_refusals(more: list[str], code: int, message: str, file: Path) -> None:
    args = ("--input", "1x6", "--to", "torch-export", "--out", file.parent / "x")
    result = run("export", f"{file}:make", *args, *more)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr and "Traceback" not in result.stderr
    assert not (file.parent / "x").exists()


def test_int8_and_its_certificate(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "small.onnx"
    words = ("export", small, "--model", "zoo:lenet5", "--out", out, "--runs", 20, "--int8")
    refused = run(*words)
    assert refused.exit_code == 2 and "calibration samples" in refused.stderr and not out.exists()
    result = run(*words, "--data", "embedded:digits", "--samples", 64)
    assert result.exit_code == 0, result.output
    assert "the error of int8" in " ".join(result.stdout.split()) and width(result, small, out) <= 80
    held = ("--data", "embedded:digits", "--samples", 300, "--json")
    found = json.loads(run("certify", out, "--model", *TRAINED, *held).stdout)
    assert found["samples"] == 300 and found["statements"][0]["kind"] == "disagreement"
    assert run("certify", out, *held).exit_code == 2, "an .onnx file does not name its original"
    assert run("certify", out, "--model", "zoo:lenet5", *held).exit_code == 2, "random weights"
