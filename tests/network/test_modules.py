"""Modules: names of tensors, modes, copies."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import secateur as sc
from secateur.errors import SecateurError, UsageError
from secateur.network.modules import (
    check_finite,
    duplicate,
    exclusive,
    meta_copy,
    mode,
    named_tensors,
    owner,
    stand_in,
    unwrap,
)


def test_wrappers_are_taken_off() -> None:
    model = nn.Linear(2, 2)
    assert unwrap(model) is model
    assert unwrap(torch.compile(nn.DataParallel(model), backend="eager")) is model


def test_a_tied_tensor_stands_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    found = named_tensors(model)
    assert "0.weight" in found and "1.weight" not in found and "2.running_mean" in found


def test_the_owner_of_a_tensor() -> None:
    layer = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    assert {owner(name) for name in named_tensors(layer)} == {"0"}
    assert owner("scale") == ""


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    check_finite(model)
    check_finite(model.to("meta"))
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].bias[1] = bad
    with pytest.raises(SecateurError, match=r"1 of 2 values of 0\.bias") as error:
        check_finite(model)
    assert error.value.layer == "0"


def test_every_mode_comes_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[1].eval()
    with pytest.raises(ZeroDivisionError), mode(model, False):
        assert not any(module.training for module in model.modules())
        raise ZeroDivisionError
    assert [module.training for module in model.modules()] == [True, True, False]


def test_a_copy_without_storage_has_the_same_shapes_and_ties() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    found = meta_copy(model)
    assert found[1].weight is found[0].weight and not found[0].bias.requires_grad
    for name, tensor in named_tensors(model).items():
        other = named_tensors(found)[name]
        assert other.is_meta and not tensor.is_meta and other.shape == tensor.shape


def test_a_duplicate_shares_no_tensor_and_a_model_that_cannot_be_copied_is_refused() -> None:
    model = nn.Linear(2, 2)
    found = duplicate(model)
    assert torch.equal(found.weight, model.weight) and found.weight is not model.weight
    model.lock = threading.Lock()
    with pytest.raises(SecateurError, match="cannot be copied"):
        duplicate(model)


def test_computed_tensors_are_copied_by_value() -> None:
    model = nn.Linear(2, 2)
    model.double_weight, model.cache = model.weight * 2, {"sums": [], "sum": model.weight.sum()}
    found = duplicate(model)
    assert torch.equal(found.double_weight, model.double_weight) and not found.double_weight.requires_grad
    assert found.cache["sum"] == model.cache["sum"]
    assert model.double_weight.requires_grad


def test_a_stand_in_shares_the_tensors_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    model.sizes = [1, 2]
    found = stand_in(model).train()
    found.sizes.append(3)
    found[0].register_forward_hook(lambda *_: None)
    assert all(named_tensors(found)[name] is tensor for name, tensor in named_tensors(model).items())
    assert model.sizes == [1, 2] and not model.training and not model[0]._forward_hooks


def test_an_exclusive_block_restores_every_random_generator() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with pytest.raises(ZeroDivisionError), exclusive():
        torch.rand(1), random.random(), np.random.rand()
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1] and (np.random.get_state()[1] == before[2]).all()


def test_one_thread_at_a_time_is_in_an_exclusive_block_and_it_may_enter_again() -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with exclusive(), exclusive():
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_while_another_thread_traces_is_not_locked() -> None:
    entered, done = threading.Event(), threading.Event()

    def hold() -> None:
        with exclusive():
            entered.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with exclusive():
            os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0


@pytest.mark.parametrize(
    ("given", "message", "remedy"),
    [
        (nn.Linear(2, 2).state_dict(), "found a state dict", "load_state_dict"),
        ("net.pt", "found the path 'net.pt'", "sc.load"),
        (Path("net.pt"), "found the path 'net.pt'", "sc.load"),
        (nn.Linear, "found Linear, a class or function", "call it"),
        (None, "found an object of type NoneType", "pass the network itself"),
        (nn.LazyLinear(2), "weight: the parameter has no shape yet", "run one forward pass"),
        (torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)), "an exported program", "exported from"),
        (torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)).module(), "an exported program", "exported from"),
    ],
    ids=["state", "name", "path", "class", "none", "lazy", "program", "exported"],
)
def test_what_is_no_network_is_refused_by_every_entry(given: Any, message: str, remedy: str) -> None:
    x = torch.zeros(4, 2)
    entries: list[Callable[[], object]] = [
        lambda: unwrap(given),
        lambda: sc.trace(given, x),
        lambda: sc.cost(given, x),
        lambda: sc.prune(given, x, budget={"macs": "50%"}),
        lambda: sc.certify(given, given, x),
    ]
    if not isinstance(given, nn.Module):
        entries.append(lambda: sc.latency(given, x))
    for entry in entries:
        with pytest.raises(UsageError, match=message) as caught:
            entry()
        assert remedy in str(caught.value)
