"""`secateur export`, `bench` and `doctor`, and what all commands have in common."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from small_runs import write_digits, write_recipe
from typer.testing import CliRunner, Result

import secateur as sc
from secateur import demo
from secateur.checkpoint import read_plan
from secateur.cli import COMMANDS, app, devices
from secateur.doctor import Finding
from secateur.embedded import digits, lenet5

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

FILE = """
from pathlib import Path
import torch
from torch import nn

def make():
    Path(__file__).with_name("ready").touch()
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

def deep():
    return nn.Sequential(*[nn.Linear(6, 6) for _ in range(60)])

def batches():
    return [torch.randn(32, 6)]
"""


def run(*args: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.safetensors"
    sc.save(path, sc.prune(lenet5(), digits("calibration")[0][:32], {"params": "30%"}))
    return path


def wide(result: Result, *without: object) -> int:
    """The width of the widest line, apart from those with a path in them."""
    lines = [line for line in result.stdout.splitlines() if not any(str(path) in line for path in without)]
    return max(map(len, lines))


# export


def test_export_of_a_pruned_file(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.pt2"
    args = ("export", small, "--model", "zoo:lenet5", "--to", "torch-export", "--out", out, "--runs", 20)
    result = run(*args, "--data", "embedded:digits", "--points", 16)
    assert result.exit_code == 0, result.output
    images = digits("test")[0][:7]
    wanted = sc.load(small, lenet5()).eval()(images)
    assert torch.allclose(torch.export.load(out).module()(images), wanted, atol=1e-5)
    assert "input 1x1x28x28, 20 runs of each in turn" in result.stdout
    words = " ".join(result.stdout.split())
    assert "on 24 inputs of embedded:digits, in batches of 1, 2, 5, 16." in words
    assert f"torch (file) {small.stat().st_size / 1e3:,.0f} kB" in words
    assert f"torch.export {out.stat().st_size / 1e3:,.0f} kB" in words
    assert wide(result, small, out) <= 80
    again = run(*args)
    assert (again.exit_code, f"{out} is already there" in again.stderr) == (2, True)


def test_export_to_onnx_in_json(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "net.onnx"
    result = run("export", f"{file}:make", "--input", "1x6", "--out", out, "--runs", 20, "--json", "--threads", 1)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["to"], found["runtime"], found["input"], found["data"]) == ("onnx", "onnxruntime", [[1, 6]], None)
    assert (found["points"], found["batches"], found["real"]) == (8, [1, 2, 5], False)
    assert found["difference"] < 1e-5 and found["path"] == str(out)
    assert (found["bytes_before"], found["bytes_after"]) == (4 * (6 * 8 + 8 + 8 * 2 + 2), out.stat().st_size)
    assert found["times"]["first"]["threads"] == 1


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--to", "tflite"], 2, "--to"),
        (["--threads", "0"], 2, "cannot run on 0 threads"),
        (["--runs", "3"], 2, "cannot compare by 3 runs"),
        (["--mean", "a"], 2, "--mean is 'a'"),
        (["--data", "nowhere.npy"], 2, "there is no file nowhere.npy"),
        (["--input", "1x5"], 1, "torch.export cannot follow it"),
        (["--out", "nowhere/x.pt2"], 2, "there is no folder"),
    ],
)
def test_what_export_refuses(more: list[str], code: int, message: str, file: Path) -> None:
    args = ("--input", "1x6", "--to", "torch-export", "--out", file.parent / "x")
    result = run("export", f"{file}:make", *args, *more)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr and "Traceback" not in result.stderr
    assert not (file.parent / "x").exists()


# bench


def test_bench(file: Path) -> None:
    result = run("bench", f"{file}:deep", f"{file}:make", "--input", "1x6", "--batch", 8, "--threads", 1)
    assert result.exit_code == 0, result.output
    assert "input 8x6, 50 runs of each in turn, 1 thread" in result.stdout
    verdict = " ".join(result.stdout.split()).partition("B beside A: ")[2]
    assert float(verdict.split()[0]) > 2 and "95 % interval" in verdict
    assert wide(result) <= 80


def test_bench_of_a_network_with_itself_and_of_a_file(small: Path) -> None:
    args = ("bench", "zoo:lenet5", small, "--model", "zoo:lenet5", "--runs", 20, "--json", "--seed", 3)
    found = json.loads(run(*args).stdout)
    assert (found["input"], found["seed"]) == ([[1, 1, 28, 28]], 3)
    whole, less = found["networks"]
    assert (whole["network"], whole["params"], less["network"]) == ("zoo:lenet5", 431_080, str(small))
    assert less["params"] <= 0.3 * whole["params"]
    assert found["speedup"] == pytest.approx(whole["median_ms"] / less["median_ms"])
    assert found["low"] <= found["speedup"] <= found["high"]
    assert found["measurable"] == (not found["low"] <= 1 <= found["high"])


def test_a_file_may_know_its_original(small: Path, tmp_path: Path) -> None:
    result = run("bench", "zoo:lenet5", small)
    assert (result.exit_code, "does not say which network was cut" in result.stderr) == (2, True)
    assert "--model" in result.stderr
    known = tmp_path / "known.safetensors"
    sc.save(known, sc.load(small, lenet5()), read_plan(small), architecture="zoo:lenet5")
    assert run("bench", known, known, "--runs", 20).exit_code == 0


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["zoo:lenet5", "lenet"], 2, "'lenet' is not the name of a model"),
        (["zoo:lenet5", "nowhere.safetensors"], 2, "there is no file nowhere.safetensors"),
        (["zoo:lenet5", "zoo:resnet20"], 1, "the model fails on an example of shape"),
        (["zoo:lenet5", "zoo:lenet5", "--batch", "0"], 2, "a batch of 0 points"),
        (["zoo:lenet5", "zoo:lenet5", "--runs", "2"], 2, "cannot compare by 2 runs"),
        (["zoo:lenet5"], 2, "B"),
    ],
)
def test_what_bench_refuses(args: list[str], code: int, message: str) -> None:
    result = run("bench", *args)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr and "Traceback" not in result.stderr


# doctor


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = [Finding("python", "works", "3.11", required=True), Finding("ray", "absent", "not installed", "pip it")]
    monkeypatch.setattr(devices, "examine", lambda root: sound)
    result = run("doctor")
    words = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "ray absent not installed remedy: pip it" in words
    assert "Everything that is required works; 1 optional parts do not." in words
    monkeypatch.setattr(devices, "examine", lambda root: [*sound, Finding("pruning", "broken", "x", "y", True)])
    result = run("doctor", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["sound"], len(found["findings"])) == (1, False, 3)
    assert "does not work, and is required: pruning" in result.stderr


# What all commands have in common


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_every_command_has_an_example_json_and_quiet(command: object) -> None:
    name = command.__name__  # type: ignore[attr-defined]
    result = run(name, "--help")
    assert {"as_json", "quiet"} <= inspect.signature(command).parameters.keys()  # type: ignore[arg-type]
    assert COMMANDS[command] in result.stdout, "the example is cut in two"  # type: ignore[index]
    assert COMMANDS[command].startswith(f"secateur {name}")  # type: ignore[index]
    assert "--json" in result.stdout and "--quiet" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\x1b" not in result.stdout


def test_examples_can_be_parsed() -> None:
    """Options are read before --help is obeyed, so one that is none exits with 2."""
    assert run("inspect", "x", "--nonsense", "--help").exit_code == 2
    for example in COMMANDS.values():
        assert run(*example.split()[1:], "--help").exit_code == 0


@pytest.mark.parametrize("json_too", [False, True])
def test_quiet_says_nothing_but_json(file: Path, small: Path, json_too: bool) -> None:
    more = ["--quiet", *(["--json"] if json_too else [])]
    net = (f"{file}:make", "--input", "1x6")
    for args in (
        ("inspect", *net),
        ("prune", *net, "--data", f"{file}:batches", "--params", "60%"),
        ("export", *net, "--to", "torch-export", "--out", file.parent / "x", "--force", "--runs", 20),
        ("bench", *net[:1], *net, "--runs", 20),
    ):
        result = run(*args, *more)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        assert json.loads(result.stdout) if json_too else result.stdout == ""


def test_demo_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run", partial(demo.run, runs=1, trials=1))
    found = json.loads(run("demo", "--json").stdout)
    assert found["after"]["params"] <= 0.3 * found["before"]["params"] and found["same_after_loading"]
    assert 0 < found["accuracy"]["after"] <= found["accuracy"]["before"] <= 1


def test_train_in_json_and_quietly(tmp_path: Path) -> None:
    recipe, root = write_recipe(tmp_path), write_digits(tmp_path / "data")
    args = ("train", recipe, "--data", root, "--set", "train.epochs=1", "--out")
    found = json.loads(run(*args, tmp_path / "one", "--json").stdout)
    assert (found["recipe"], found["network"], found["out"]) == ("small", 0, str(tmp_path / "one"))
    assert 0 < found["test"]["top1"] <= 1
    assert run(*args, tmp_path / "two", "--quiet").output == ""


def shell(*args: object) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-m", "secateur", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "80", "TERM": "xterm-256color"},
    )


def test_completion() -> None:
    asked = {"_SECATEUR_COMPLETE": "complete_bash", "COMP_WORDS": "secateur ex", "COMP_CWORD": "1"}
    result = CliRunner(env=asked).invoke(app, prog_name="secateur")
    assert result.stdout.split() == ["export"]
    asked |= {"COMP_WORDS": "secateur export x --fi", "COMP_CWORD": "3"}
    assert CliRunner(env=asked).invoke(app, prog_name="secateur").stdout.split() == ["--fixed-batch"]


@pytest.mark.parametrize(
    "args",
    [
        ("prune", "--data", "net.py:batches", "--params", "60%", "--steps", 1_000_000),
        ("export", "--to", "torch-export", "--runs", 1_000_000),
    ],
    ids=["prune", "export"],
)
def test_ctrl_c_leaves_nothing_half_written(
    args: tuple[object, ...], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    command, *more = args
    process = shell(command, "net.py:make", "--input", "1x6", "--out", "made", *more)
    try:
        end = time.monotonic() + 120
        while not Path("ready").exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert "interrupted: no half-written file is left" in err and "Traceback" not in err
    assert "\x1b" not in err  # nor colours in a pipe
    assert {path.name for path in file.parent.iterdir()} <= {"net.py", "ready", "__pycache__"}
