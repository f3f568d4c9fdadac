"""`secateur certify`: text, JSON, refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.storage.checkpoint import read_plan
from support.command_line import TRAINED, run, width

ORIGINAL = ("--model", *TRAINED)
EPS = ("--eps", "0.5,0.9")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    images, labels = digits("test")
    np.savez(tmp_path / "heldout.npz", x=images[:500].numpy(), y=labels[:500].numpy())
    return tmp_path / "heldout.npz"


def test_certify(small: Path, data: Path) -> None:
    result = run("certify", small, *ORIGINAL, "--data", data, *EPS)
    assert result.exit_code == 0, result.output
    flat = " ".join(result.stdout.split())
    for words in (
        "500 held-out samples",
        "onfidence 99.9",
        "accuracy drops by at most",
        "error of the outputs exceeds 90",
        "if the samples",
    ):
        assert words in flat
    assert width(result, small, data) <= 80


def test_certify_in_json_is_a_certificate(small: Path, data: Path) -> None:
    result = run(
        "certify", small, *ORIGINAL, "--data", data, "--json", "--layers", "--samples", 100, "--delta", 0.05, *EPS
    )
    found = json.loads(result.stdout)
    head = {name: found.pop(name) for name in ("small", "model", "data")}
    assert head["model"] == "zoo:lenet5"
    cert = sc.Certificate.from_json(json.dumps(found))
    assert [one.eps for one in cert.statements if one.kind == "error above"] == [0.5, 0.9]
    assert cert.samples == 100 and cert["drop"].bound is not None and cert["layer"].bound is not None


def test_a_file_that_names_its_original_needs_no_model(small: Path, data: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.safetensors"
    sc.save(
        known, sc.load(small, lenet5()), read_plan(small), architecture="zoo:lenet5", info={"weights": "trained.pt"}
    )
    with_weights = ("--data", data, *TRAINED[1:], "--json")
    named, given = (json.loads(run("certify", known, *more, *with_weights).stdout) for more in ((), ORIGINAL[:2]))
    assert named == given and named["model"] == "zoo:lenet5"
    result = run("certify", known, "--data", data)
    assert result.exit_code == 2
    assert "zoo:lenet5 without weights is random" in result.stderr and "prune read trained.pt" in result.stderr


def test_a_file_that_does_not_name_its_original_asks_for_it(small: Path, data: Path, tmp_path: Path) -> None:
    result = run("certify", small, "--data", data)
    assert result.exit_code == 2
    assert "does not name its original" in result.stderr and "--model net.py:make" in result.stderr
    mine = tmp_path / "mine.safetensors"
    sc.save(mine, sc.load(small, lenet5()), read_plan(small), architecture="net.py:make")
    result = run("certify", mine, "--data", data)
    assert result.exit_code == 2 and "was cut from net.py:make, whose code is run only if you name it" in result.stderr


def test_samples_that_were_used_are_refused(small: Path, tmp_path: Path) -> None:
    images, labels = digits("calibration")
    np.savez(tmp_path / "used.npz", x=images.numpy(), y=labels.numpy())
    result = run("certify", small, *ORIGINAL, "--data", tmp_path / "used.npz")
    assert result.exit_code == 1
    assert "were used before" in result.stderr


def test_the_embedded_digits_are_those_for_testing(small: Path) -> None:
    result = run("certify", small, *ORIGINAL, "--data", "embedded:digits", "--no-labels")
    assert result.exit_code == 0, result.output
    assert "2,000 held-out samples" in result.stdout and "accuracy" not in result.stdout
    assert "calibration samples" not in result.stdout


def test_a_file_without_its_calibration_samples_is_noted(small: Path, data: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.safetensors"
    network = sc.cut(lenet5(), read_plan(small))  # a network from sc.load would remember the samples
    network.load_state_dict(sc.load(small, lenet5()).state_dict())
    sc.save(bare, network, read_plan(small))
    result = run("certify", bare, *ORIGINAL, "--data", data)
    assert result.exit_code == 0, result.output
    assert "the file does not name its calibration samples" in " ".join(result.stdout.split())


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


def test_folders_of_classes_are_labels(small: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    images, labels = digits("test")
    for number, (pixels, label) in enumerate(zip(images[:60], labels[:60].tolist(), strict=True)):
        path = tmp_path / "heldout" / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray((pixels[0] * 255).round().byte().numpy()).save(path)
    result = run("certify", small, *ORIGINAL, "--data", tmp_path / "heldout", "--json", "--delta", 0.1)
    found = json.loads(result.stdout)
    assert "(labels: 10 folders, numbered in the order of their names)" in found["data"]
    drop = next(one for one in found["statements"] if one["kind"] == "drop")
    old, new = (network(images[:60]).argmax(1) == labels[:60] for network in (lenet5(), sc.load(small, lenet5())))
    assert drop["observed"] == pytest.approx((int(old.sum()) - int(new.sum())) / 60)
    paths = sorted(path.relative_to(tmp_path) for path in (tmp_path / "heldout").glob("*/*.png"))  # the same batches
    rows = [f"{path},{path.parent.name}" for path in paths]
    (tmp_path / "heldout.csv").write_text("\n".join(["path,label", *rows]))
    table = run("certify", small, *ORIGINAL, "--data", tmp_path / "heldout.csv", "--json", "--delta", 0.1)
    assert json.loads(table.stdout)["statements"] == found["statements"]


def test_statements_as_csv(small: Path, data: Path) -> None:
    found = json.loads(run("certify", small, *ORIGINAL, "--data", data, "--json").stdout)["statements"]
    rows = list(csv.DictReader(run("certify", small, *ORIGINAL, "--data", data, "--csv").stdout.splitlines()))
    assert [(row["kind"], float(row["bound"])) for row in rows] == [(one["kind"], one["bound"]) for one in found]


def test_a_detector_pruned_in_parts(tmp_path: Path) -> None:
    file, out = tmp_path / "net.py", tmp_path / "small.safetensors"
    file.write_text(
        "from support.detectors import detector, pictures\n\n"
        "def data():\n    return pictures(12)\n\ndef unseen():\n    return pictures(20, seed=7)\n"
    )
    made = run("prune", f"{file}:detector", "--data", f"{file}:data", "--samples", 32, "--scope", "backbone",
               "--macs", "80%", "--method", "ft", "--out", out)  # fmt: skip
    assert made.exit_code == 0, made.output
    words = ("certify", out, "--model", f"{file}:detector", "--task", "detection", "--threshold", 0.3, "--delta", 0.05)
    found = json.loads(run(*words, "--data", f"{file}:unseen", "--json").stdout)
    assert [one["kind"] for one in found["statements"]] == ["recall", "precision"] and found["samples"] == 80
    again = run(*words, "--data", f"{file}:data")
    assert again.exit_code == 1 and "were used before" in again.stderr
    plain = run("certify", out, "--model", f"{file}:detector", "--data", f"{file}:unseen")
    assert plain.exit_code == 1 and "task='segmentation' or 'detection'" in plain.stderr
