"""All commands: help, errors without a traceback, old names of options, JSON, quiet, Ctrl-C."""

from __future__ import annotations

import inspect
import io
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fuzz_cli
import secateur as sc
from secateur import __version__
from secateur.cli import COMMANDS, app, demo
from secateur.zoo.names import BUILDERS
from support.command_line import DIGITS, TRAINED, run, shell, width
from support.small_runs import write_digits, write_recipe

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

# Help


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_help_has_an_example_and_fits_80_columns(command: Callable[..., None]) -> None:
    result = run(command.__name__, "--help")
    assert {"as_json", "quiet"} <= inspect.signature(command).parameters.keys()
    assert COMMANDS[command] in result.stdout, "the example is cut in two"
    assert COMMANDS[command].startswith(f"secateur {command.__name__}")
    assert "--json" in result.stdout and "--quiet" in result.stdout
    assert width(result) <= 80
    assert "\x1b" not in result.stdout


def test_the_first_screen_of_prune_shows_the_essentials() -> None:
    """In a terminal of 80 x 40."""
    lines = run("prune", "--help").stdout.splitlines()
    first = "\n".join(lines[:40])
    for word in ("MODEL", "--params", "--macs", "--latency", "--data", "--out", "--help", "runs that file's code"):
        assert word in first
    assert [line.split()[1] for line in lines if line.startswith("╭")] == [
        "Arguments",
        "Budget",
        "Data",
        "Output",
        "Method",
        "Advanced",
    ]


@pytest.mark.parametrize("name", ["prune", "compare", "certify", "export", "bench"])
def test_help_texts_have_room(name: str) -> None:
    """No panel squeezes its texts into a narrow column, and no word is cut off."""
    text = run(name, "--help").stdout
    assert "…" not in text
    for panel in text.split("╭")[1:]:
        rows = [line[2:-2] for line in panel.splitlines()[1:] if line.startswith("│")]
        # Continued lines begin where the texts do.
        starts = [len(row) - len(row.lstrip()) for row in rows if row.startswith(" " * 8)]
        assert all(76 - start >= 35 for start in starts), panel


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert all(f" {command.__name__} " in result.stdout for command in COMMANDS)
    assert "bool" not in result.stdout  # a flag takes no value
    assert width(result) <= 80


def test_examples_can_be_parsed() -> None:
    """Options are read before --help is obeyed, so an unknown one exits with 2."""
    assert run("inspect", "x", "--nonsense", "--help").exit_code == 2
    for example in COMMANDS.values():
        assert run(*example.split()[1:], "--help").exit_code == 0


# Old names


def test_old_names_of_options_work_and_warn() -> None:
    new = run("compare", *TRAINED, *DIGITS, "--samples", 16, "--repeats", 2, "--on-samples=8", *COMPARED)
    old = run("compare", *TRAINED, *DIGITS, "--points", 16, "--draws", 2, "--on-points=8", *COMPARED)
    assert (new.exit_code, old.exit_code, new.stderr) == (0, 0, "")
    assert without_times(json.loads(old.stdout)) == without_times(json.loads(new.stdout))
    assert [line.split()[1:4] + line.split()[-2:] for line in old.stderr.splitlines()] == [
        ["--points", "is", "deprecated", "use", "--samples"],
        ["--draws", "is", "deprecated", "use", "--repeats"],
        ["--on-points", "is", "deprecated", "use", "--on-samples"],
    ]


@pytest.mark.parametrize("name", ["prune", "certify", "export"])
def test_points_is_an_old_name_everywhere(name: str) -> None:
    assert "--points" not in run(name, "--help").stdout
    result = run(name, "x", "--points", "0")
    assert (
        result.exit_code == 2 and "use --samples" in result.stderr and "Invalid value for '--samples'" in result.stderr
    )


def test_an_old_name_that_a_command_never_had_is_unknown() -> None:
    result = run("inspect", "zoo:lenet5", "--points", "3")
    assert result.exit_code == 2 and "No such option: --points" in result.stderr and "deprecated" not in result.stderr


COMPARED = ("--on", "embedded:digits", "--methods", "ft", "--params", "50%", "--json")


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    """The figures of a comparison that do not vary from run to run."""
    for row in found["rows"]:
        for part in (row, *row["cells"]):
            del part["seconds"]
    return found


# Errors


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["inspect", "torchvision:resnet_18"], "did you mean torchvision:resnet18"),
        (["inspect", "resnet18"], "'resnet18' is not the name of a model"),
        (["inspect", "nowhere.py:make"], "there is no file nowhere.py"),
        (["inspect", "torchvision:resnet18", "--input", "3x"], "'3x' is not a shape"),
        (["inspect", "torchvision:resnet18", "--output", "onnx"], "--output"),
        (["inspect"], "NETWORK"),
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


# JSON, quiet, Ctrl-C, completion


def test_a_lack_of_memory_is_an_error_of_every_command(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sc, "cost", lambda *_: torch.empty(1 << 62, dtype=torch.uint8))
    result = run("bench", f"{file}:make", f"{file}:make", "--input", "1x6")
    assert (result.exit_code, "error: memory: memory ran out" in result.stderr) == (1, True), result.output


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"secateur {__version__}, torch ")


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
        end = time.monotonic() + 300
        while not Path("ready").exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert Path("ready").exists() and process.poll() is None  # past the imports, where Ctrl-C ends Python itself
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert "interrupted: no half-written file is left" in err and "Traceback" not in err
    assert "\x1b" not in err  # nor colours in a pipe
    assert {path.name for path in file.parent.iterdir()} <= {"net.py", "ready", "__pycache__"}


def test_the_message_after_ctrl_c_is_printed_where_stderr_was(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        sys.stderr = io.StringIO()  # as if the interrupt came between the redirection and its note
        raise KeyboardInterrupt

    monkeypatch.setattr(sc, "trace", interrupted)
    result = run("inspect", f"{file}:make", "--input", "1x6")
    assert (result.exit_code, result.stderr) == (130, "interrupted: no half-written file is left\n")


# Options without their value


@pytest.mark.parametrize("words", [("--out", "--json"), ("--out", "--force"), ("--runs", "--out", "x.pt2")])
def test_an_option_is_not_taken_for_the_value_of_another(
    words: tuple[str, ...], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    result = run("export", f"{file}:make", "--input", "1x6", *words)
    assert result.exit_code == 2 and result.stdout == ""
    assert f"'{words[0]}' requires a value, found the option '{words[1]}'" in result.stderr
    assert not Path(words[1]).exists()


def test_an_option_is_a_value_if_it_is_meant_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    result = run("profile", f"{file}:make", "--input", "1x6", "--out=--json", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) and Path("--json").exists()


# Random command lines


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the random command lines name."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("fuzz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its own exporter
        fuzz_cli.write_inputs(folder)
    return folder


@pytest.mark.parametrize("seed", range(30))
def test_random_command_lines_end_without_a_traceback(seed: int, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs)
    found = fuzz_cli.run(fuzz_cli.command_line(seed))
    assert not found.wrong, found


def test_random_command_lines_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzz_cli.run(("--version",)).wrong == ""
    assert fuzz_cli.run(("inspect",)).code == 2
    assert fuzz_cli._unreadable(("--json",), "{") and not fuzz_cli._unreadable(("--json",), "{}")
    assert fuzz_cli._unreadable(("--csv",), "a,b\n1\n") and not fuzz_cli._unreadable(("--csv",), "a,b\n1,2\n")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(BUILDERS, "zoo", fail)
    assert "ZeroDivisionError" in fuzz_cli.run(("inspect", "zoo:lenet5")).wrong
