"""A killed run resumes from its file and ends bit for bit like an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import secateur as sc
from secateur.errors import UsageError
from secateur.training import resume
from secateur.training.loop import OF_TEACHERS, Epoch, Training, train
from support.training_cases import CONTEXT, Epochs, network, run_until_killed, same, weights

SETTINGS = Training(epochs=4, lr=0.05, weight_decay=1e-3, milestones=(3,))


class Stop(Exception):
    pass


def stop_at(epoch: int) -> Any:
    def stop(record: Epoch) -> None:
        if record.epoch == epoch:
            raise Stop

    return stop


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nesterov": True, "memory_format": "channels_last"},
        {"momentum": 0.0},
        {"optimizer": "adam", "lr": 1e-3},
        {"amp": "fp16", "clip_norm": 1.0},
        {"warmup_epochs": 3},
    ],
)
@pytest.mark.parametrize("at", [1, 3, 4])
def test_a_run_resumes_bit_for_bit(tmp_path: Path, changes: dict[str, Any], at: int) -> None:
    settings, path = replace(SETTINGS, **changes), tmp_path / "state"
    uninterrupted, first, second = network(), network(), nn.Sequential(*network())
    wanted = train(uninterrupted, Epochs(), settings)
    with pytest.raises(Stop):
        train(first, Epochs(), settings, state_path=path, on_epoch=stop_at(at))
    with torch.no_grad():
        second[0].weight.fill_(9.0)
    result = train(second, Epochs(), settings, state_path=path)
    assert result.resumed == at and len(result.epochs) == 4
    assert [epoch.loss for epoch in result.epochs] == [epoch.loss for epoch in wanted.epochs]
    assert same(weights(second), weights(uninterrupted))
    assert [tensor.stride() for tensor in weights(second).values()] == [
        tensor.stride() for tensor in weights(uninterrupted).values()
    ]


def test_a_shuffling_loader_resumes_too(tmp_path: Path) -> None:
    x, y = (torch.cat(parts) for parts in zip(*Epochs().epoch(0)))
    found = []
    for stops in (False, True):
        model = network()
        loader = DataLoader(TensorDataset(x, y), 8, shuffle=True, generator=torch.Generator().manual_seed(3))
        if stops:
            with pytest.raises(Stop):
                train(model, loader, SETTINGS, state_path=tmp_path / "state", on_epoch=stop_at(2))
            loader = DataLoader(TensorDataset(x, y), 8, shuffle=True, generator=torch.Generator().manual_seed(4))
        train(model, loader, SETTINGS, state_path=tmp_path / "state" if stops else None)
        found.append(weights(model))
    assert same(*found)


def test_a_run_killed_at_random_moments_resumes(tmp_path: Path) -> None:
    state, log, settings = tmp_path / "state", tmp_path / "log", replace(SETTINGS, epochs=200)
    moments = random.Random(0)
    for _ in range(8):
        before = state.stat().st_mtime_ns if state.exists() else 0
        process = CONTEXT.Process(target=run_until_killed, args=(state, log, settings))
        process.start()
        while not state.exists() or state.stat().st_mtime_ns == before:  # at least one epoch further each time
            assert process.is_alive() or process.exitcode is None
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.03))
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    model, uninterrupted = network(), network()
    result = train(model, Epochs(), settings, state_path=state, log=log)
    wanted = train(uninterrupted, Epochs(), settings)
    assert 8 <= result.resumed < 200 and same(weights(model), weights(uninterrupted))
    assert [epoch.loss for epoch in result.epochs] == [epoch.loss for epoch in wanted.epochs]
    assert [json.loads(line)["epoch"] for line in log.read_text().splitlines()] == list(range(1, 201))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "state"]


def test_a_finished_run_can_get_more_epochs(tmp_path: Path) -> None:
    model, uninterrupted = network(), network()
    train(model, Epochs(), replace(SETTINGS, epochs=2), state_path=tmp_path / "state")
    assert train(model, Epochs(), SETTINGS, state_path=tmp_path / "state").resumed == 2
    train(uninterrupted, Epochs(), SETTINGS)
    assert same(weights(model), weights(uninterrupted))
    with pytest.raises(sc.SecateurError, match="has 4 epochs, epochs is 3"):
        train(model, Epochs(), replace(SETTINGS, epochs=3), state_path=tmp_path / "state")


def test_the_scale_of_half_precision_is_resumed(tmp_path: Path) -> None:
    settings, counts = replace(SETTINGS, amp="fp16"), []
    for epochs in (2, 4):
        train(network(), Epochs(), replace(settings, epochs=epochs), state_path=tmp_path / "state")
        state = resume.read(tmp_path / "state", _run(settings))
        assert state
        counts.append(state.scaler["_growth_tracker"])  # steps since the scale last changed
    assert counts[1] == counts[0] + 8


def test_a_finished_run_is_only_loaded(tmp_path: Path) -> None:
    model, again = network(), network()
    first = train(model, Epochs(), SETTINGS, state_path=tmp_path / "state", validation=list(Epochs().epoch(9)))
    second = train(again, Epochs(), SETTINGS, state_path=tmp_path / "state")
    assert second.epochs == first.epochs and second.resumed == 4 and same(weights(model), weights(again))


def test_the_file_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    train(network(), Epochs(), SETTINGS, state_path=path)
    before = path.read_bytes()
    with pytest.raises(sc.SecateurError, match=r"lr was 0.05 and is 0.1; milestones was \[3\] and is \[2\]"):
        train(network(), Epochs(), replace(SETTINGS, lr=0.1, milestones=(2,)), state_path=path)
    with pytest.raises(sc.SecateurError, match="batches was 4 and is 5"):
        train(network(), Epochs(5), SETTINGS, state_path=path)
    with pytest.raises(sc.SecateurError, match=r"1.bias: .* only the file"):
        train(network(norm=False), Epochs(), SETTINGS, state_path=path)
    wide = network()
    wide[5] = nn.Linear(64, 9)
    with pytest.raises(sc.SecateurError, match=r"5.weight: .*\(8, 64\) .*in the file, \(9, 64\)"):
        train(wide, Epochs(), SETTINGS, state_path=path)
    frozen = network()
    frozen[0].requires_grad_(False)
    with pytest.raises(sc.SecateurError, match=r"0.bias: .*trained and is now frozen"):
        train(frozen, Epochs(), SETTINGS, state_path=path)
    assert path.read_bytes() == before


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"nonsense")
    with pytest.raises(sc.SecateurError, match="cannot be read"):
        train(network(), Epochs(), SETTINGS, state_path=path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(sc.SecateurError, match="not the state of a training run"):
        train(network(), Epochs(), SETTINGS, state_path=path)
    with pytest.raises(UsageError, match="no folder"):
        train(network(), Epochs(), SETTINGS, state_path=tmp_path / "none" / "state")


def test_the_file_of_an_older_version_resumes(tmp_path: Path) -> None:
    """Steps were the only schedule then, and nothing was averaged or estimated again."""
    path, model, whole = tmp_path / "state", network(), network()
    train(model, Epochs(), replace(SETTINGS, epochs=2), state_path=path)
    with safetensors.safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()
    new = ("schedule", "total_epochs", "ema", "norm_batches")
    run = {name: value for name, value in json.loads(metadata["run"]).items() if name not in new}
    metadata.pop("averaged")
    save_file(tensors, path, metadata | {"run": json.dumps(run)})
    assert train(model, Epochs(), SETTINGS, state_path=path).resumed == 2
    train(whole, Epochs(), SETTINGS)
    assert same(weights(model), weights(whole))


def test_the_file_holds_no_pickle(tmp_path: Path) -> None:
    train(network(), Epochs(), SETTINGS, state_path=tmp_path / "state")
    with safetensors.safe_open(tmp_path / "state", framework="pt") as file:
        assert {"model/0.weight", "model/1.running_var", "optimizer/momentum_buffer/5.bias"} <= set(file.keys())
        assert json.loads(file.metadata()["run"])["lr"] == 0.05


class Counting(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def test_extra_state_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), Counting(36, 2))
    with pytest.raises(sc.SecateurError, match=r"1: .*not a tensor"):
        train(model, Epochs(), SETTINGS, state_path=tmp_path / "state")
    train(model, Epochs(), SETTINGS)


def test_tied_and_shared_tensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 36))
    model[3].weight = model[1].weight
    model.register_buffer("view", model[1].weight.detach()[:2])
    uninterrupted = train(model, Epochs(), SETTINGS, state_path=tmp_path / "state")
    state = resume.read(tmp_path / "state", _run(SETTINGS))
    assert state and "model/3.weight" not in state.tensors and len(uninterrupted.epochs) == 4
    assert torch.equal(state.tensors["model/view"], model[1].weight[:2])


def _run(settings: Training) -> dict[str, Any]:
    run = {**settings.__dict__, "batches": 4, "processes": 1}
    return {name: value for name, value in run.items() if name not in ("epochs", *OF_TEACHERS)}
