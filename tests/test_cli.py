"""The command line: its output, its exit codes, and errors without a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from secateur import __version__
from secateur.cli import app

FILE = '''
import torch
from torch import nn

class Net(nn.Module):
    """One group to cut, the input and the classes to keep."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.last = nn.Linear(3, 6), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x, y):
        return self.last(torch.relu(self.left(x) + self.right(y)))

class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x

class Long(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3 if i == 0 else 4, 4, 1) for i in range(60)]
        self.a_rather_long_name_for_the_trunk_of_a_network_with_many_layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.a_rather_long_name_for_the_trunk_of_a_network_with_many_layers(x)
'''


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(FILE)
    return path


def rows(result: Result) -> dict[str, list[str]]:
    """The table of groups, by name."""
    return {
        line.split()[0]: line.split() for line in result.stdout.splitlines() if "prunable" in line or " kept (" in line
    }


def test_inspect(file: Path) -> None:
    result = run("inspect", f"{file}:Net", "--input", "1x3x8x8")
    assert result.exit_code == 0, result.output
    # Its part of first (all but nothing), of norm (all) and of second's weight: 224 + 16 + 32 of 276 parameters.
    assert rows(result)["first"] == ["first", "8", "98.6", "%", "100.0", "%", "prunable"]
    assert rows(result)["second"][:2] == ["second", "4"]
    assert "Kept, because" in result.stdout
    assert "input 1x3x8x8 (given)" in result.stdout
    assert "276 parameters, 15.87 k MACs" in result.stdout
    assert "\x1b" not in result.stdout  # no colours in a pipe
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_inspect_in_json(file: Path) -> None:
    result = run("inspect", f"{file}:Net", "--input", "1x3x8x8", "--json")
    found = json.loads(result.stdout)
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


def test_many_groups_with_long_names(file: Path) -> None:
    short, long = (run("inspect", f"{file}:Long", "--input", "1x3x8x8", *more) for more in ([], ["--all"]))
    assert "smaller groups are not shown; --all lists them." in short.stdout
    assert "not shown" not in long.stdout
    assert short.stdout.count("prunable") == 40 - short.stdout.count(" kept (")
    assert long.stdout.count("prunable") == 59
    assert max(map(len, long.stdout.splitlines())) <= 80


def test_keep(file: Path) -> None:
    result = run("inspect", f"{file}:Net", "--input", "1x3x8x8", "--keep", "fir*")
    assert "prunable" not in " ".join(rows(result)["first"])
    assert "keep='fir*'" in result.stdout
    assert "0 of" in result.stdout


def test_keep_that_matches_nothing(file: Path) -> None:
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


def test_the_default_input_is_said() -> None:
    result = run("inspect", "torchvision:resnet18")
    assert "input 1x3x224x224 (the default; set it with --input)" in result.stdout
    assert "11.69 M parameters, 1.814 G MACs" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["inspect", "torchvision:resnet_18"], "did you mean torchvision:resnet18"),
        (["inspect", "resnet18"], "'resnet18' is not the name of a model"),
        (["inspect", "nowhere.py:make"], "there is no file nowhere.py"),
        (["inspect", "torchvision:resnet18", "--input", "3x"], "'3x' is not a shape"),
        (["inspect", "torchvision:resnet18", "--output", "onnx"], "--output"),
        (["inspect"], "MODEL"),
        (["inspekt", "torchvision:resnet18"], "inspekt"),
    ],
)
def test_a_wrong_call_exits_with_2(args: list[Any], message: str) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("factory", "shape", "message"),
    [("Net", "1x4x8x8", "the model fails on an example of shape"), ("Choosing", "1x3", "remedy:")],
)
def test_a_failed_job_exits_with_1(file: Path, factory: str, shape: str, message: str) -> None:
    result = run("inspect", f"{file}:{factory}", "--input", shape)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"secateur {__version__}, torch ")


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert "inspect" in result.stdout
    assert "demo" in result.stdout
