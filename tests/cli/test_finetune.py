"""`secateur finetune`: with labels and without, files of the same kind, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import secateur as sc
from secateur.certificates import fingerprints
from secateur.cli.finetune import Labelled
from secateur.embedded import digits, lenet5
from secateur.storage.checkpoint import read_info, read_plan
from support.command_line import TRAINED, run, width

ORIGINAL = ("--model", *TRAINED)


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LeNet-5 with a tenth of its parameters, not repaired, so that fine-tuning has something to do; certified."""
    path = tmp_path_factory.mktemp("pruned") / "pruned.safetensors"
    res = sc.prune(lenet5(), digits("calibration")[0][:64], {"params": "10%"}, repair=False)
    sc.save(path, res, certificate={"delta": 0.001})
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images, labels = digits("calibration")
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    np.savez(path, x=images[:200].numpy(), y=labels[:200].numpy())
    return path


def test_without_labels(pruned: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned.safetensors"
    result = run("finetune", pruned, *ORIGINAL, "--data", data, "--epochs", 2, "--out", out)
    assert result.exit_code == 0, result.output
    flat = " ".join(result.stdout.split())
    for words in ("on 50 held-out samples", "steps on 150 samples without labels", "images are shifted", "Saved:"):
        assert words in flat
    assert width(result, pruned, data, out) <= 80
    network, before = sc.load(out, lenet5()), sc.load(pruned, lenet5())
    assert [p.shape for p in network.parameters()] == [p.shape for p in before.parameters()]


def test_with_labels_the_file_is_of_the_same_kind(pruned: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned.safetensors"
    result = run("finetune", pruned, *ORIGINAL, "--data", data, "--labels", "--epochs", 6, "--out", out, "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["losses"][:2] == ["cross-entropy", "KL divergence from the teacher, temperature 4"]
    assert found["after"]["loss"] < found["before"]["loss"] and found["after"]["samples"] == 20
    note = "dropped, since it was measured with the weights before fine-tuning: certificate"
    assert found["notes"][0].startswith(note)
    assert read_plan(out) == read_plan(pruned)
    old, new = read_info(pruned), read_info(out)
    assert "certificate" in old and "certificate" not in new and "agreement" not in new
    assert new["method"] == old["method"] and new["groups"] == old["groups"]
    assert new["finetuned"]["labels"] is True and any(one.startswith(note) for one in new["notes"])
    seen = {*fingerprints.unpack(old["fingerprints"]), *fingerprints.of(digits("calibration")[0][:200])}
    assert set(fingerprints.unpack(new["fingerprints"])) == seen
    again = run("certify", out, *ORIGINAL, "--data", data)
    assert again.exit_code == 1 and "were used before" in again.stderr


@pytest.mark.parametrize("more", [("--labels",), ("--labels", "--teacher", "none"), ()])
def test_a_time_limit(pruned: Path, data: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    out = tmp_path / "tuned.safetensors"
    result = run("finetune", pruned, *ORIGINAL, "--data", data, "--minutes", 0.02, *more, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert out.exists() and found["seconds"] < 30 and ("KL" in found["losses"][-2:][0]) == ("none" not in more)


def test_an_interrupted_run_is_resumed(
    pruned: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("finetune", pruned, *ORIGINAL, "--data", data, "--labels", "--epochs", 4)
    whole, out = tmp_path / "whole.safetensors", tmp_path / "tuned.safetensors"
    assert run(*words, "--out", whole).exit_code == 0 and not whole.with_name("whole.safetensors.state").exists()
    state = out.with_name("tuned.safetensors.state")
    epoch = Labelled.epoch

    def interrupted(batches: Labelled, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        if number == 2:
            raise KeyboardInterrupt
        return epoch(batches, number)

    with monkeypatch.context() as patch:
        patch.setattr(Labelled, "epoch", interrupted)
        assert run(*words, "--out", out).exit_code == 130 and state.exists() and not out.exists()
    again = run(*words, "--out", out)
    assert again.exit_code == 2 and "--resume" in again.stderr
    assert run(*words, "--out", out, "--resume").exit_code == 0 and not state.exists()
    old, new = sc.load(whole, lenet5()), sc.load(out, lenet5())
    assert all(torch.equal(a, b) for a, b in zip(old.state_dict().values(), new.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--resume",), "--resume needs --labels"),
        (("--amp", "fp16"), "--amp fp16 needs --labels"),
        (("--labels", "--resume"), "to resume from"),
        (("--labels", "--resume", "--minutes", 1), "cannot be resumed"),
        (("--labels", "--amp", "half"), "--amp is 'half'"),
        (("--epochs", 2, "--minutes", 1), "both given"),
        (("--minutes", 0), "--minutes is 0"),
        (("--epochs", 0), "less than 1"),
        (("--teacher", "none"), "nothing to learn from"),
        (("--teacher", "zoo:resnet20"), "--teacher is 'zoo:resnet20'"),
        (("--labels", "--lr", -1), "lr is -1"),
        (("--lr", -1), "lr is -1"),
    ],
)
def test_wrong_options_are_refused(
    pruned: Path, data: Path, tmp_path: Path, more: tuple[Any, ...], message: str
) -> None:
    out = tmp_path / "tuned.safetensors"
    result = run("finetune", pruned, *ORIGINAL, "--data", data, "--out", out, *more)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split()) and not out.exists()


def test_wrong_data_is_refused(pruned: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned.safetensors"
    for name, arrays, message in (
        ("unlabelled", {"x": np.load(data)["x"]}, "labels"),
        ("few", {"x": np.load(data)["x"][:5], "y": np.load(data)["y"][:5]}, "too few"),
        ("nan", {"x": np.load(data)["x"] * np.nan, "y": np.load(data)["y"]}, "NaN"),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        result = run("finetune", pruned, *ORIGINAL, "--data", tmp_path / f"{name}.npz", "--labels", "--out", out)
        assert result.exit_code in (1, 2) and message in result.stderr, name
    assert not out.exists()


def test_an_existing_file_and_a_random_original_are_refused(pruned: Path, data: Path, tmp_path: Path) -> None:
    result = run("finetune", pruned, *ORIGINAL, "--data", data, "--out", pruned)
    assert result.exit_code == 2 and "--force" in result.stderr
    result = run("finetune", pruned, "--model", "zoo:lenet5", "--data", data, "--out", tmp_path / "tuned.safetensors")
    assert result.exit_code == 2 and "random" in result.stderr
