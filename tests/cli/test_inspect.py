"""`secateur inspect`: the table of groups, and the same as JSON."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from typer.testing import Result

import secateur as sc
from secateur.embedded import lenet5
from secateur.storage.checkpoint import read_info, read_plan
from support.command_line import run, width


def rows(result: Result) -> dict[str, list[str]]:
    """The table of groups, by name."""
    return {
        line.split()[0]: line.split() for line in result.stdout.splitlines() if "prunable" in line or " kept (" in line
    }


def test_inspect(file: Path) -> None:
    result = run("inspect", f"{file}:Net", "--input", "1x3x8x8")
    assert result.exit_code == 0, result.output
    # Its part of first (all but nothing), of norm (all) and of second's weight: 224 + 16 + 32 of 276 parameters.
    assert rows(result)["first"] == ["first", "8", "98.6%", "100.0%", "prunable"]
    assert rows(result)["second"][:2] == ["second", "4"]
    assert "Kept because" in result.stdout
    assert "input 1x3x8x8 (given)" in result.stdout
    assert "276 parameters, 15.87 k MACs" in result.stdout
    assert "\x1b" not in result.stdout  # no colours in a pipe
    assert width(result, file) <= 80


def test_json_has_the_groups_with_producers_consumers_and_slots(file: Path) -> None:
    found = json.loads(run("inspect", f"{file}:Net", "--input", "1x3x8x8", "--json").stdout)
    assert found["input"] == [[1, 3, 8, 8]]
    assert (found["params"], found["macs"], found["output"]) == (276, 64 * (27 * 8 + 8 * 4), "module")
    groups = {group["name"]: group for group in found["groups"]}
    first, second = groups["first"], groups["second"]
    assert (first["channels"], first["prunable"], first["reasons"]) == (8, True, [])
    assert (first["producers"], first["consumers"]) == (["first"], ["second"])
    assert first["params_share"] == pytest.approx(272 / 276)
    assert first["macs_share"] == 1
    slots = {(slot["parameter"], slot["axis"]) for slot in first["slots"]}
    assert {("first.weight", 0), ("norm.running_mean", 0), ("second.weight", 1)} <= slots
    assert not second["prunable"]
    assert set(second["reasons"][0]) == {"text", "op", "module", "source"}


def test_all_adds_the_indices_to_json(file: Path) -> None:
    found = json.loads(run("inspect", f"{file}:Net", "--input", "1x3x8x8", "--json", "--all").stdout)
    group = next(group for group in found["groups"] if group["name"] == "first")
    assert all(slot["indices"] == [[i] for i in range(8)] for slot in group["slots"])


def test_of_many_groups_the_largest_are_shown(file: Path) -> None:
    short, long = (run("inspect", f"{file}:Long", "--input", "1x3x8x8", *more) for more in ([], ["--all"]))
    assert "smaller groups are not shown; --all lists them." in short.stdout
    assert "not shown" not in long.stdout
    assert short.stdout.count("prunable") == 40 - short.stdout.count(" kept (")
    assert long.stdout.count("prunable") == 59
    assert width(long, file) <= 80


def test_keep(file: Path) -> None:
    result = run("inspect", f"{file}:Net", "--input", "1x3x8x8", "--keep", "fir*")
    assert "prunable" not in " ".join(rows(result)["first"])
    assert "keep='fir*'" in result.stdout
    assert "0 of" in result.stdout


def test_free_outputs_and_layers_that_never_run(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(
        """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.spare = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        features = self.first(x)
        return {"scores": self.second(features), "features": features}
"""
    )
    words = ("inspect", f"{file}:Net", "--input", "1x3x8x8")
    assert "kept" in rows(run(*words))["first"]
    freed = run(*words, "--free-outputs", "features")
    assert rows(freed)["first"][-1] == "prunable"
    assert "1 layer never runs and stays as it is: spare" in freed.stdout
    found = json.loads(run(*words, "--free-outputs", "features", "--json").stdout)
    assert found["free_outputs"] == ["features"] and found["unused_layers"] == ["spare"]
    wrong = run(*words, "--free-outputs", "feats")
    assert wrong.exit_code == 2 and "there is no output 'feats'" in wrong.stderr


def test_keep_that_matches_nothing_is_refused(file: Path) -> None:
    result = run("inspect", f"{file}:Net", "--input", "1x3x8x8", "--keep", "frist")
    assert result.exit_code == 2
    assert "'frist' matches no layer" in result.stderr


def test_several_inputs(file: Path) -> None:
    result = run("inspect", f"{file}:Pair", "--input", "1x3", "--input", "1x5")
    assert result.exit_code == 0, result.output
    assert rows(result)["left"][1] == "6"
    assert "input 1x3, 1x5 (given)" in result.stdout


def test_graph_output(file: Path) -> None:
    result = run("inspect", f"{file}:Net", "--input", "1x3x8x8", "--output", "graph", "--json")
    assert json.loads(result.stdout)["output"] == "graph"


@pytest.mark.parametrize(
    ("model", "shape", "groups"),
    [
        ("torchvision:resnet18", [1, 3, 224, 224], 8),
        ("timm:test_resnet", [1, 3, 160, 160], 8),
        ("zoo:lenet5", [1, 1, 28, 28], 3),
    ],
)
def test_a_library_model_with_its_own_input(model: str, shape: list[int], groups: int) -> None:
    result = run("inspect", model, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["input"] == [shape]
    assert sum(group["prunable"] for group in found["groups"]) >= groups


def test_the_default_input_is_shown() -> None:
    result = run("inspect", "torchvision:resnet18")
    assert "input 1x3x224x224 (the default; set it with --input)" in result.stdout
    assert "11.69 M parameters, 1.814 G MACs" in result.stdout


def test_a_pruned_file_shows_its_groups_and_its_information(small: Path) -> None:
    result = run("inspect", small)
    assert result.exit_code == 0, result.output
    words = [line.split() for line in result.stdout.splitlines()]
    for group in read_plan(small).groups:
        assert [group.name, str(group.size), str(len(group.kept))] in words
    assert ["method", "residual"] in words and ["samples", "64"] in words
    assert "fingerprints" not in result.stdout
    assert width(result, small) <= 80


def test_a_pruned_file_in_json_and_csv(small: Path) -> None:
    found = json.loads(run("inspect", small, "--json", "--all").stdout)
    plan = read_plan(small)
    assert found["input"] == [[1, 1, 28, 28]] and found["output"] == "module"
    assert [group["kept"] for group in found["groups"]] == [list(group.kept) for group in plan.groups]
    assert found["info"] == read_info(small)
    lines = run("inspect", small, "--csv").stdout.splitlines()
    assert lines == ["name,before,after", *(f"{one.name},{one.size},{len(one.kept)}" for one in plan.groups)]


def test_information_with_control_characters_is_escaped(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    sc.save(path, sc.load(small, lenet5()), read_plan(small), info={"a\x1b[2J": "b\x1b[31m", "c": ["\x1b"]})
    result = run("inspect", path)
    assert result.exit_code == 0 and "\x1b" not in result.stdout
    assert "\\x1b[31m" in result.stdout


def test_files_that_cannot_be_inspected(small: Path, tmp_path: Path) -> None:
    for args, words in (
        ((small, "--keep", "conv1"), "is cut already"),
        ((small, "--input", "1x1x28x28"), "is cut already"),
        ((tmp_path / "none.safetensors",), "no file"),
        ((tmp_path / "none.onnx",), "there is no file"),
        ((tmp_path / "net.onnx", "--keep", "conv1"), "cannot be traced"),
    ):
        result = run("inspect", *args)
        assert (result.exit_code, words in " ".join(result.stderr.split())) == (2, True), result.output


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_onnx_file_shows_its_layers_inputs_and_outputs(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "net.onnx"
    net = sc.load(small, lenet5())
    sc.export(net, path, torch.zeros(1, 1, 28, 28), runs=20)
    found = json.loads(run("inspect", path, "--json").stdout)
    assert found["params"] == sum(parameter.numel() for parameter in net.parameters())
    assert [(one["weight"], one["operator"]) for one in found["layers"]] == [
        ("conv1.weight", "Conv"), ("conv2.weight", "Conv"), ("fc1.weight", "Gemm"), ("fc2.weight", "Gemm"),
    ]  # fmt: skip
    assert found["layers"][0]["shape"] == list(net.get_parameter("conv1.weight").shape)
    assert [shape[1:] for shape in found["inputs"].values()] == [[1, 28, 28]] and found["bytes"] == path.stat().st_size
    page = run("inspect", path)
    assert page.exit_code == 0 and "x1x28x28" in page.stdout and "fc2.weight" in page.stdout and width(page, path) <= 80
    lines = list(csv.DictReader(run("inspect", path, "--csv").stdout.splitlines()))
    assert lines[0]["shape"] == "x".join(map(str, found["layers"][0]["shape"]))
    path.write_bytes(b"no network")
    assert "cannot be read as ONNX" in run("inspect", path).stderr


def test_the_agreement_in_a_file_is_shown_in_words(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    agreement = {"samples": 200, "divergence": 0.01, "same": 150, "low": 0.68, "high": 0.81}
    for stored, words in (
        (agreement, "original's answer for 75.0% (95% interval 68.0 to 81.0)"),
        (agreement | {"same": "many"}, '"same": "many"'),
        (agreement | {"new": 1}, '"samples": 200'),
    ):
        sc.save(path, sc.load(small, lenet5()), read_plan(small), info={"agreement": stored})
        assert words in " ".join(run("inspect", path).stdout.split())


def test_csv_has_a_line_for_each_group(file: Path) -> None:
    lines = list(csv.DictReader(run("inspect", f"{file}:Net", "--input", "1x3x8x8", "--csv").stdout.splitlines()))
    groups = json.loads(run("inspect", f"{file}:Net", "--input", "1x3x8x8", "--json").stdout)["groups"]
    assert [line["name"] for line in lines] == [group["name"] for group in groups]
    first = next(line for line in lines if line["name"] == "first")
    assert (first["channels"], first["prunable"], first["reasons"]) == ("8", "True", "")
    assert all(line["reasons"] for line in lines if line["prunable"] == "False")


def test_json_and_csv_exclude_each_other(file: Path) -> None:
    result = run("inspect", f"{file}:Net", "--json", "--csv")
    assert result.exit_code == 2 and "--json and --csv" in result.stderr
