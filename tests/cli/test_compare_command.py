"""The command `compare`: table, JSON, the file, Ctrl-C, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import secateur as sc
from secateur.cli import app
from secateur.cli import compare as command
from secateur.demo import accuracy
from secateur.embedded import FOLDER, digits, lenet5

LENET = ("zoo:lenet5", "--weights", FOLDER / "lenet5.safetensors", "--data", "embedded:digits", "--points", 32)
ON = ("--on", "embedded:digits", "--on-points", 200)


def run(*args: object) -> Result:
    runner = CliRunner(env={"COLUMNS": "80"})
    return runner.invoke(app, ["compare", *(str(arg) for arg in args)], catch_exceptions=False)


def test_compare(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    result = run(*LENET, *ON, "--methods", "ft, pfp:pivotal,thinet+repair", "--params", "50%,0.01%", "--out", out)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert ["zoo:lenet5"] == lines[0] and "judged on 200 of embedded:digits (test)" in result.stdout
    assert {"ft", "pfp:pivotal", "thinet+repair"} <= {word for line in lines for word in line[:2]}
    flat = " ".join(result.stdout.split())
    assert flat.count("the budget cannot be met") == 3 and f"Written: {out}".replace(" ", "") in flat.replace(" ", "")
    shown = [line for line in result.stdout.splitlines() if str(tmp_path) not in line]
    assert max(map(len, shown)) <= 80 and "\x1b" not in result.stdout
    record = json.loads(out.read_text())
    assert record["finished"] and record["model"] == "zoo:lenet5" and record["on"] == "embedded:digits (test)"
    images, labels = digits("test")
    assert record["original"] == pytest.approx(accuracy(lenet5(), images[:200], labels[:200]))


def test_json_has_the_figures_that_prune_gives() -> None:
    found = json.loads(run(*LENET, *ON, "--methods", "pfp", "--macs", "40%", "--seed", 3, "--json").stdout)
    pruned = CliRunner().invoke(
        app, ["prune", *map(str, LENET), "--method", "pfp", "--macs", "40%", "--seed", "3", "--json"]
    )
    after = json.loads(pruned.stdout)["after"]
    (row,) = found["rows"]
    assert (row["params"], row["macs"], row["draws"], row["why"]) == (after["params"], after["macs"], 1, None)
    assert found["resource"] == "macs" and found["points"] == 32 and len(row["cells"]) == 1


def test_all_methods_repaired_too_and_draws_without_labelled_data() -> None:
    found = json.loads(run(*LENET, "--methods", "ft,pfp", "--params", "30%", "--repair", "--draws", 2, "--json").stdout)
    assert found["methods"] == ["ft", "ft+repair", "pfp", "pfp+repair"]
    assert (found["measure"], found["original"], found["on"], found["draws"]) == ("movement", None, None, 2)
    assert found["judged"] == (2 * 32 + 256) // 4
    for row in found["rows"]:
        assert 0 < row["low"] <= row["figure"] <= row["high"]


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
    model = (f"{tmp_path / 'own.py'}:lenet5", "--input", "1x1x28x28", "--data", tmp_path / "bare.npy", "--points", 32)
    rest = ("--methods", "ft", "--params", "20%", "--json")
    arrays = json.loads(run(*model, "--on", tmp_path / "val.npz", *rest).stdout)
    pairs = json.loads(run(*model, "--on", f"{tmp_path / 'own.py'}:pairs", *rest).stdout)
    assert arrays["rows"][0]["figure"] == pairs["rows"][0]["figure"] and arrays["judged"] == 100
    assert "32 of the 100 points to judge by are calibration points too" in arrays["notes"][0]
    bare = run(*model, "--on", tmp_path / "bare.npy", *rest)
    assert bare.exit_code == 2 and "has no labels" in bare.stderr


def test_random_weights_are_pointed_out() -> None:
    found = run("zoo:lenet5", "--data", "embedded:digits", "--points", 16, "--methods", "ft", "--params", "50%")
    assert found.exit_code == 0 and "weights are random" in " ".join(found.stdout.split())


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = command.compared

    def interrupted(*args: Any, after_each: Any, **settings: Any) -> sc.Comparison:
        def after(so_far: sc.Comparison) -> None:
            after_each(so_far)
            if len(so_far.cells) == 2:
                raise KeyboardInterrupt

        return real(*args, after_each=after, **settings)

    monkeypatch.setattr(command, "compared", interrupted)
    out = tmp_path / "found.json"
    result = run(*LENET, *ON, "--methods", "ft,softnet,random", "--params", "50%", "--out", out)
    assert result.exit_code == 130 and f"the figures of 2 networks are in {out}" in result.stderr
    record = json.loads(out.read_text())
    assert not record["finished"] and [row["method"] for row in record["rows"]] == ["ft", "softnet"]
    assert list(tmp_path.iterdir()) == [out]


def test_ctrl_c_at_once_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "compared", interrupted)
    result = run(*LENET, "--methods", "ft", "--params", "50%", "--out", tmp_path / "found.json")
    assert result.exit_code == 130 and "networks are in" not in result.stderr and not list(tmp_path.iterdir())


def test_nothing_that_could_be_done_is_a_failed_job() -> None:
    result = run(*LENET, *ON, "--methods", "ft", "--params", "50", "--quiet")
    assert result.exit_code == 1 and "no method could do it" in result.stderr and not result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "there is no budget"),
        (("--params", "50%", "--macs", "50%"), "budgets in params and in MACs"),
        (("--params", "50%,"), "budget for params is ''"),
        (("--params", "150%"), "150%"),
        (("--params", "50%", "--methods", "ft,l1"), "the method 'l1'"),
        (("--params", "50%", "--methods", "ft,"), "the method ''"),
        (("--params", "50%", "--draws", 0), "0 draws"),
        (("--params", "50%", "--on-points", 0), "0 to judge by"),
        (("--params", "50%", "--draws", 2, "--points", 512, *ON), "every draw of 512"),
        (("--params", "50%", "--on", "nothing.npz"), "no file nothing.npz"),
        (("--params", "50%", "--out", "no/where.json"), "there is no folder"),
    ],
)
def test_wrong_calls(args: tuple[object, ...], message: str) -> None:
    result = run(*LENET, *args)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_a_file_that_is_there_is_overwritten_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    out.write_text("old")
    rest = (*LENET, *ON, "--methods", "ft", "--params", "50%", "--out", out)
    assert run(*rest).exit_code == 2 and out.read_text() == "old"
    assert run(*rest, "--force").exit_code == 0 and json.loads(out.read_text())["finished"]
