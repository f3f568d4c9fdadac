"""The command line: its output, its exit codes, and errors without a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import secateur as sc
from secateur import __version__
from secateur.checkpoint import read_info, read_plan
from secateur.cli import app, networks
from secateur.embedded import FOLDER, digits, lenet5
from secateur.models import build

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


LENET = ("zoo:lenet5", "--weights", FOLDER / "lenet5.safetensors", "--data", "embedded:digits", "--points", 64)


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


# prune


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.npy"
    np.save(path, np.random.default_rng(0).normal(size=(40, 3, 8, 8)).astype(np.float32))
    return path


def test_prune_saves_a_network_that_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    result = run("prune", *LENET, "--params", "30%", "--no-repair", "--out", path)
    assert result.exit_code == 0, result.output
    small = sc.load(path).eval()
    images = digits("test")[0][:50]
    assert torch.equal(small(images), sc.cut(lenet5(), read_plan(path))(images))
    assert sum(p.numel() for p in small.parameters()) <= 0.3 * 431_080
    assert "64 points of embedded:digits, input 1x1x28x28" in result.stdout
    assert "Verified: the cut network equals the original" in result.stdout
    assert f"sc.load({str(path)!r})" in result.stdout
    wrapped = [line for line in result.stdout.splitlines() if str(path) not in line]
    assert max(map(len, wrapped)) <= 80
    info = read_info(path)
    assert (info["model"], info["data"], info["budget"]) == ("zoo:lenet5", "embedded:digits", {"params": "30%"})


def test_prune_as_far_as_held_out_data_certifies(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    result = run("prune", *LENET, "--drop", "3%", "--heldout", "embedded:digits", "--out", path)
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert "certified: accuracy drops by at most 3.00%, with confidence 0.999, by 2000 held-out points" in words
    images, labels = digits("test")
    small = sc.load(path, build("zoo:lenet5")).eval()
    right = [(net(images).argmax(1) == labels).float().mean().item() for net in (lenet5(), small)]
    assert right[0] - right[1] <= 0.03
    alone = run("prune", *LENET, "--drop", "3%")
    assert alone.exit_code == 2 and "--drop and --heldout go together" in alone.output


def test_prune_in_json_and_without_a_file(file: Path, points: Path) -> None:
    args = (f"{file}:Net", "--input", "1x3x8x8", "--data", points, "--macs", "60%", "--select", "pivotal", "--json")
    result = run("prune", *args)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["model"], found["data"], found["out"]) == (f"{file}:Net", str(points), None)
    assert (found["select"], found["points"], found["input"]) == ("pivotal", 40, [[1, 3, 8, 8]])
    assert found["after"]["macs"] <= 0.6 * found["before"]["macs"]
    assert found["groups"][0]["name"] == "first"
    assert [path.name for path in file.parent.iterdir() if path.suffix == ".safetensors"] == []
    assert json.loads(run("prune", *args).stdout)["groups"] == found["groups"]  # the seed decides


def test_prune_without_a_file_says_so(file: Path, points: Path) -> None:
    result = run("prune", f"{file}:Net", "--input", "1x3x8x8", "--data", points, "--params", "60%")
    assert "Nothing was written; --out FILE saves it." in result.stdout
    assert "the weights are random" not in result.stdout  # those of one's own model may well be trained


def test_prune_with_several_inputs_from_a_factory(file: Path) -> None:
    data = file.with_name("pairs.py")
    data.write_text("import torch\n\ndef make():\n    return [(torch.randn(9, 3), torch.randn(9, 5))] * 2\n")
    shapes = ("--input", "1x3", "--input", "1x5")
    result = run("prune", f"{file}:Pair", *shapes, "--data", f"{data}:make", "--params", "70%", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["points"] == 18
    refused = run("prune", f"{file}:Pair", *shapes, "--data", "x.npy", "--params", "70%")
    assert (refused.exit_code, "x.npy holds one input, the network takes 2" in refused.stderr) == (2, True)


def test_prune_to_a_latency_tells_the_time(file: Path, points: Path) -> None:
    result = run("prune", f"{file}:Net", "--input", "1x3x8x8", "--data", points, "--latency", "100s", "--params", "90%")
    assert result.exit_code == 0, result.output
    assert "latency, median" in result.stdout


def test_random_weights_are_pointed_out() -> None:
    args = ("--data", "embedded:digits", "--points", 8, "--params", "50%", "--json", "--round-to", 4, "--at-least", 8)
    found = json.loads(run("prune", "zoo:lenet5", *args).stdout)
    assert any("the weights are random" in note for note in found["notes"])
    sizes = [(group["before"], group["after"]) for group in found["groups"]]
    assert all(after >= 8 and (after % 4 == 0 or after == before) for before, after in sizes)


def test_an_existing_file_is_overwritten_only_by_force(file: Path, points: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    path.write_text("mine")
    args = ("prune", f"{file}:Net", "--input", "1x3x8x8", "--data", points, "--params", "60%", "--out", path)
    refused = run(*args)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{path} is already there" in refused.stderr and "--force" in refused.stderr
    assert path.read_text() == "mine"
    assert run(*args, "--force").exit_code == 0
    assert read_info(path)["model"] == f"{file}:Net"


def test_places_that_cannot_be_written_are_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "build", lambda *_: pytest.fail("the work began"))
    for place, message in ((tmp_path / "nowhere" / "x", "there is no folder"), (tmp_path, "is a folder")):
        result = run("prune", *LENET, "--params", "30%", "--out", place)
        assert (result.exit_code, message in result.stderr) == (2, True)


def test_an_interrupted_prune_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(networks, "pruned_by", interrupt)
    result = run("prune", *LENET, "--params", "30%", "--out", tmp_path / "small.safetensors")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "interrupted" in result.stderr and "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ([], 2, "there is no budget"),
        (["--params", "0.4"], 2, "write '40%'"),
        (["--latency", "8"], 2, "write '50%' or '8ms'"),
        (["--params", "0.01%"], 1, "the budget cannot be met"),
        (["--params", "40%", "--data", "nowhere.npy"], 2, "there is no file nowhere.npy"),
        (["--params", "40%", "--input", "1x1x32x32"], 1, "the network's input has (1, 32, 32)"),
        (["--params", "40%", "--input", "1x"], 2, "'1x' is not a shape"),
        (["--params", "40%", "--mean", "a"], 2, "--mean is 'a'"),
        (["--params", "40%", "--mean", "0.5"], 2, "mean and std belong together"),
        (["--params", "40%", "--method", "magic"], 2, "method is 'magic'"),
        (["--params", "40%", "--select", "magic"], 2, "--select"),
        (["--params", "40%", "--delta", "2"], 2, "delta is 2"),
        (["--params", "40%", "--points", "0"], 2, "0 points"),
        (["--params", "40%", "--weights", "nowhere.pt"], 2, "there is no weights file nowhere.pt"),
        (["--params", "40%", "--keep", "conv9"], 2, "'conv9' matches no layer"),
    ],
)
def test_what_prune_refuses(more: list[str], code: int, message: str) -> None:
    result = run("prune", *LENET, *more)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_prune_needs_data() -> None:
    result = run("prune", "zoo:lenet5", "--params", "40%")
    assert (result.exit_code, "--data" in result.stderr) == (2, True)


# Errors and the rest


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
    assert all(command in result.stdout for command in ("inspect", "prune", "demo"))
