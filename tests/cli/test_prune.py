"""`secateur prune`: the saved network, the page, JSON, refusals."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import secateur as sc
from secateur.cli import COMMANDS, inputs
from secateur.embedded import digits, lenet5
from secateur.storage.checkpoint import read_info, read_plan
from secateur.zoo.names import build
from support.command_line import DIGITS, TRAINED, run, width

LENET = (*TRAINED, *DIGITS, "--samples", 64)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.npy"
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
    assert "64 samples of embedded:digits, input 1x1x28x28" in result.stdout
    assert "Verified: the cut network equals the original" in result.stdout
    lines = result.stdout.splitlines()
    assert f"  small = sc.load({str(path)!r})" in lines  # a path is not wrapped, so that it can be copied
    assert any(line.startswith(f"Saved: {path} (") for line in lines)
    assert width(result, path) <= 80
    info = read_info(path)
    assert (info["model"], info["data"], info["budget"]) == ("zoo:lenet5", "embedded:digits", {"params": "30%"})


def test_csv_has_a_line_for_each_group(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    result = run("prune", *LENET, "--params", "30%", "--out", path, "--csv", "--quiet")
    lines = list(csv.DictReader(result.stdout.splitlines()))
    sizes = [(line["name"], int(line["before"]), int(line["after"])) for line in lines]
    assert [row[0] for row in sizes] == ["conv1", "conv2", "fc1"]
    cut = [row for row in sizes if row[1] > row[2]]
    assert cut == [(group.name, group.size, len(group.kept)) for group in read_plan(path).groups]
    assert all((float(line["divergence"]) > 0) == (line["before"] != line["after"]) for line in lines)
    assert all(line["eps"] == "" for line in lines)


def test_the_same_seed_and_threads_give_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    args = [*map(str, LENET), "--params", "30%", "--seed", "3", "--out"]
    assert run("prune", *args, tmp_path / "here").exit_code == 0
    variables = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-m", "secateur", "prune", *args, str(tmp_path / "there")]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | variables)
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


def test_agreement_with_the_original_is_measured_on_other_samples(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    result = run("prune", *LENET, "--method", "ft", "--params", "30%", "--json", "--out", path)
    assert result.exit_code == 0, result.output
    images, labels = digits("calibration")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[64 : 64 + 256]
    small = sc.load(path).eval()
    with torch.no_grad():
        old, new = (net(images[order]).argmax(1) for net in (lenet5(), small))
    found = json.loads(result.stdout)["agreement"]
    assert (found["samples"], found["same"]) == (256, int((old == new).sum()))
    assert found["accuracy"] == int((new == labels[order]).sum()) / 256
    assert read_info(path)["agreement"] == found


def test_prune_as_far_as_held_out_data_certifies(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    drop = ("--method", "ft", "--drop", "3%", "--heldout", "embedded:digits", "--json")
    result = run("prune", *LENET, *drop, "--out", path)
    assert result.exit_code == 0, result.output
    (note,) = (note for note in json.loads(result.stdout)["notes"] if note.startswith("certified"))
    assert "accuracy drops by at most 3.00%, with confidence 0.999" in note and "2000 held-out samples" in note
    images, labels = digits("test")
    small = sc.load(path, build("zoo:lenet5")).eval()
    right = [(net(images).argmax(1) == labels).float().mean().item() for net in (lenet5(), small)]
    assert right[0] - right[1] <= 0.03


def test_the_failure_probability_of_a_certificate_had_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stop(*_: object, **settings: object) -> None:
        asked.append((settings["certificate_delta"], settings["delta"]))
        raise sc.SecateurError("stopped")

    monkeypatch.setattr(sc, "prune", stop)
    drop = ("prune", *LENET, "--drop", "3%", "--heldout", "embedded:digits")
    old, new = run(*drop, "--delta", "0.01"), run(*drop, "--certificate-delta", "0.01")
    assert asked == [(0.01, sc.PruneSettings().delta)] * 2
    assert "--delta with --drop is deprecated" in old.stderr and "use --certificate-delta" in old.stderr
    assert "deprecated" not in new.stderr


def test_a_drop_needs_held_out_data() -> None:
    alone = run("prune", *LENET, "--drop", "3%")
    assert alone.exit_code == 2 and "--drop and --heldout go together" in alone.stderr


def test_prune_in_json_and_without_a_file(file: Path, samples: Path) -> None:
    args = (f"{file}:Net", "--input", "1x3x8x8", "--data", samples, "--macs", "60%", "--json")
    args = (*args, "--method", "pfp", "--select", "pivotal")
    result = run("prune", *args)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["model"], found["data"], found["out"]) == (f"{file}:Net", str(samples), None)
    assert (found["select"], found["samples"], found["input"]) == ("pivotal", 40, [[1, 3, 8, 8]])
    assert found["after"]["macs"] <= 0.6 * found["before"]["macs"]
    assert found["groups"][0]["name"] == "first"
    assert [path.name for path in file.parent.iterdir() if path.suffix == ".safetensors"] == []
    assert json.loads(run("prune", *args).stdout)["groups"] == found["groups"]  # the seed decides


def test_prune_without_a_file_says_so(file: Path, samples: Path) -> None:
    result = run("prune", f"{file}:Net", "--input", "1x3x8x8", "--data", samples, "--params", "60%")
    assert "Nothing was saved; --out FILE saves the network." in result.stdout
    assert "the weights are random" not in result.stdout  # those of one's own model may well be trained


@pytest.mark.parametrize(
    ("factory", "shapes"), [("pairs", [[1, 3], [1, 5]]), ("by_keyword", {"x": [1, 3], "y": [1, 5]})]
)
def test_several_inputs_from_a_factory(file: Path, factory: str, shapes: object) -> None:
    inputs = ("--input", "1x3", "--input", "1x5")
    result = run("prune", f"{file}:Pair", *inputs, "--data", f"{file}:{factory}", "--params", "70%", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["samples"], found["input"]) == (18, shapes)
    assert not any("the first" in note for note in found["notes"])
    first = run("prune", f"{file}:Pair", *inputs, "--data", f"{file}:{factory}", "--params", "70%", "--samples", 10)
    assert "Note: the first 10 samples of" in first.stdout
    refused = run("prune", f"{file}:Pair", *inputs, "--data", "x.npy", "--params", "70%")
    assert (refused.exit_code, "x.npy holds one input, and the network takes 2" in refused.stderr) == (2, True)


def test_prune_to_a_latency_shows_the_times(file: Path, samples: Path) -> None:
    result = run(
        "prune", f"{file}:Net", "--input", "1x3x8x8", "--data", samples, "--latency", "100s", "--params", "90%"
    )
    assert result.exit_code == 0, result.output
    assert "latency, median" in result.stdout


def test_random_weights_are_noted() -> None:
    args = ("--data", "embedded:digits", "--samples", 8, "--params", "50%", "--json", "--round-to", 4, "--at-least", 8)
    found = json.loads(run("prune", "zoo:lenet5", *args).stdout)
    assert any("the weights are random" in note for note in found["notes"])
    sizes = [(group["before"], group["after"]) for group in found["groups"]]
    assert all(after >= 8 and (after % 4 == 0 or after == before) for before, after in sizes)


def test_an_existing_file_is_overwritten_only_by_force(file: Path, samples: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    path.write_text("mine")
    args = ("prune", f"{file}:Net", "--input", "1x3x8x8", "--data", samples, "--params", "60%", "--out", path)
    refused = run(*args)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{path} exists" in refused.stderr and "--force" in refused.stderr
    assert path.read_text() == "mine"
    assert run(*args, "--force").exit_code == 0
    assert read_info(path)["model"] == f"{file}:Net"


def test_places_that_cannot_be_written_are_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "build", lambda *_: pytest.fail("the work began"))
    os.mkfifo(tmp_path / "pipe")
    for place, message in (
        (tmp_path / "nowhere" / "x", "there is no folder"),
        (tmp_path, "is a folder"),
        (tmp_path / "pipe", "is a device, pipe or socket"),
    ):
        result = run("prune", *LENET, "--params", "30%", "--out", place, "--force")
        assert (result.exit_code, message in result.stderr) == (2, True)


def test_an_interrupted_prune_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sc, "prune", interrupt)
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
        (["--params", "40%", "--method", "magic"], 2, "there is no method 'magic'"),
        (["--params", "40%", "--select", "magic"], 2, "--select"),
        (["--params", "40%", "--select", "rand"], 2, "select='rand' belongs to the method pfp"),
        (["--params", "40%", "--delta", "2"], 2, "delta is 2"),
        (["--params", "40%", "--samples", "0"], 2, "0 is less than 1"),
        (["--params", "40%", "--steps", "0"], 2, "0 is less than 1"),
        (["--params", "40%", "--weights", "nowhere.pt"], 2, "there is no weights file nowhere.pt"),
        (["--params", "40%", "--keep", "conv9"], 2, "'conv9' matches no layer"),
    ],
)
def test_refusals(more: list[str], code: int, message: str) -> None:
    result = run("prune", *LENET, *more)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_prune_needs_data() -> None:
    result = run("prune", "zoo:lenet5", "--params", "40%")
    assert (result.exit_code, "--data" in result.stderr) == (2, True)


def test_options_that_mirror_a_setting_have_its_default() -> None:
    (prune,) = (command for command in COMMANDS if command.__name__ == "prune")
    options = inspect.signature(prune).parameters
    settings = {field.name: getattr(sc.PruneSettings(), field.name) for field in dataclasses.fields(sc.PruneSettings)}
    assert {name: options[name].default for name in settings if name in options} == {
        name: value for name, value in settings.items() if name != "C"
    }


def test_all_settings_reach_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def stop(*_: object, **settings: object) -> None:
        asked.update(settings)
        raise sc.SecateurError("stopped")

    monkeypatch.setattr(sc, "prune", stop)
    given = {
        "method": "pfp",
        "select": "rand",
        "allocation": "uniform",
        "sensitivity": "mean",
        "delta": 1e-3,
        "certificate_delta": 0.01,
        "seed": 5,
        "steps": 2,
        "round_to": 4,
        "at_least": 3,
        "output": "graph",
    }
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    result = run("prune", *LENET, "--params", "40%", "--repair", "--keep", "conv1", "--keep", "fc*", *words)
    assert result.exit_code == 1
    # The samples were drawn when the data was read.
    wanted = sc.PruneSettings(**given, repair=True, keep=("conv1", "fc*"), samples=None)  # type: ignore[arg-type]
    assert {name: asked[name] for name in vars(wanted)} == vars(wanted)


def test_a_part_of_a_larger_model(tmp_path: Path) -> None:
    file, out = tmp_path / "net.py", tmp_path / "small.safetensors"
    file.write_text("from support.detectors import detector, pictures\n\ndef data():\n    return pictures(16)\n")
    words = ("prune", f"{file}:detector", "--data", f"{file}:data", "--samples", "32", "--macs", "60%")
    refused = run(*words)
    assert refused.exit_code == 1 and "scope='backbone'" in refused.stderr
    result = run(*words, "--scope", "backbone", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["settings"]["scope"] == ["backbone"] and found["samples"] == 32
    assert found["agreement"]["samples"] == 32
    assert any("only backbone was pruned" in note for note in found["notes"])
    shown = run("inspect", out, "--json")
    assert json.loads(shown.stdout)["groups"][0]["name"].startswith("backbone.")
    wrong = run(*words, "--scope", "backbnoe")
    assert wrong.exit_code == 2 and "nearest: backbone" in wrong.stderr
    traced = run("inspect", f"{file}:detector", "--scope", "backbone", "--input", "2x3x16x16")
    assert traced.exit_code == 0 and "backbone.3" in traced.stdout
    onnx = run(
        "export", out, "--model", f"{file}:detector", "--scope", "backbone", "--to", "torch-export", "--input",
        "2x3x16x16", "--out", tmp_path / "part.pt2", "--runs", 20,
    )  # fmt: skip
    assert onnx.exit_code == 0, onnx.output
