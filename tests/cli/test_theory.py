"""`secateur theory`: the three statements, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from secateur.embedded import digits
from support.command_line import TRAINED, run, width


def prune(out: Path, *more: object) -> Path:
    result = run("prune", *TRAINED, "--data", "embedded:digits", "--params", "60%", "--out", out, *more)
    assert result.exit_code == 0, result.output
    return out


def test_theory_beside_the_certificate(tmp_path: Path) -> None:
    small = prune(tmp_path / "small.safetensors", "--method", "pfp", "--samples", 64)
    np.save(tmp_path / "heldout.npy", digits("test")[0][:150].numpy())
    command = ("theory", small, "--model", *TRAINED, "--data", tmp_path / "heldout.npy", "--delta", 0.05)
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert "main theorem, largest condition numbers" in result.stdout and "certified from" in result.stdout
    assert width(result, small, tmp_path / "heldout.npy") <= 80
    found = json.loads(run(*command, "--json").stdout)
    assert found["model"] == "zoo:lenet5" and found["certified"] < found["propagated"] < found["theorem_largest"]
    assert found["samples"] == 150 and found["layers"]


def test_another_method_is_refused(tmp_path: Path) -> None:
    small = prune(tmp_path / "small.safetensors", "--method", "ft", "--samples", 64)
    result = run("theory", small, "--model", *TRAINED, "--data", "embedded:digits")
    assert result.exit_code == 2 and "guarantees nothing before the cut" in result.stderr


def test_budgets_in_error_on_the_command_line() -> None:
    more = ("--method", "pfp", "--samples", 64)
    found = json.loads(run("prune", *TRAINED, "--data", "embedded:digits", "--eps", 0.9, "--json", *more).stdout)
    cut = [row for row in found["groups"] if row["after"] < row["before"]]
    assert cut and all(row["eps"] <= 0.9 for row in cut) and found["budget"] == {"eps": 0.9}
    result = run("prune", *TRAINED, "--data", "embedded:digits", "--eps", 1.5, *more)
    assert result.exit_code == 2 and "the budget for eps is 1.5" in result.stderr
