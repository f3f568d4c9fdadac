"""The command `certify`: text, JSON, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import secateur as sc
from secateur import fingerprints
from secateur.cli import app
from secateur.embedded import FOLDER, digits, lenet5

ORIGINAL = ("--model", "zoo:lenet5", "--weights", FOLDER / "lenet5.safetensors")


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    images = digits("calibration")[0][:64]
    res = sc.prune(lenet5(), images, budget={"params": "30%"})
    sc.save(tmp_path / "small.safetensors", res, info={"fingerprints": fingerprints.pack(fingerprints.of(images))})
    return tmp_path / "small.safetensors"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    images, labels = digits("test")
    np.savez(tmp_path / "heldout.npz", x=images[:500].numpy(), y=labels[:500].numpy())
    return tmp_path / "heldout.npz"


def test_certify(small: Path, data: Path) -> None:
    result = run("certify", small, *ORIGINAL, "--data", data, "--eps", "0.5,0.9")
    assert result.exit_code == 0, result.output
    flat = " ".join(result.stdout.split())
    for words in (
        "500 held-out points",
        "99.9 %",
        "accuracy drops by at most",
        "off by more than 90 %",
        "if the points",
    ):
        assert words in flat
    paths = (str(small), str(data))
    assert max(len(line) for line in result.stdout.splitlines() if not any(path in line for path in paths)) <= 80


def test_certify_in_json_is_a_certificate(small: Path, data: Path) -> None:
    result = run("certify", small, *ORIGINAL, "--data", data, "--json", "--layers", "--points", 100, "--delta", 0.05)
    found = json.loads(result.stdout)
    head = {name: found.pop(name) for name in ("small", "model", "data")}
    assert head["model"] == "zoo:lenet5"
    cert = sc.Certificate.from_json(json.dumps(found))
    assert cert.points == 100 and cert["drop"].bound is not None and cert["layer"].bound is not None


def test_points_that_were_used_are_refused(small: Path, tmp_path: Path) -> None:
    images, labels = digits("calibration")
    np.savez(tmp_path / "used.npz", x=images.numpy(), y=labels.numpy())
    result = run("certify", small, *ORIGINAL, "--data", tmp_path / "used.npz")
    assert result.exit_code == 1
    assert "were used before" in result.stderr


def test_the_embedded_digits_are_those_for_testing(small: Path) -> None:
    result = run("certify", small, *ORIGINAL, "--data", "embedded:digits", "--no-labels")
    assert result.exit_code == 0, result.output
    assert "2,000 held-out points" in result.stdout and "accuracy" not in result.stdout
    assert "which points" not in result.stdout


def test_wrong_calls(small: Path, data: Path, tmp_path: Path) -> None:
    for args, words in (
        (("--model", "zoo:lenet5", "--data", data), "without weights is random"),
        ((*ORIGINAL, "--data", data, "--eps", "much"), "--eps is 'much'"),
        ((*ORIGINAL, "--data", data, "--delta", 2), "delta is 2.0"),
        ((*ORIGINAL, "--data", tmp_path / "none.npy"), "no file"),
    ):
        result = run("certify", small, *args)
        assert result.exit_code == 2, result.output
        assert words in result.stderr
    assert run("certify", tmp_path / "none.safetensors", *ORIGINAL, "--data", data).exit_code == 2
