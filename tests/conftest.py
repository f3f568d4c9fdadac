"""One thread per test process, reproducible examples, and a torchvision that can be imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import hypothesis
import pytest
import torch

from secateur.channels.rules import RULES
from secateur.cli import app
from secateur.data import DATASETS
from secateur.errors import SecateurError
from secateur.methods import METHODS
from secateur.report.sources import JSON_KINDS
from secateur.zoo.libraries import library

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # the docs show figures that other instructions round otherwise
torch.set_num_threads(1)
with suppress(SecateurError):  # not installed; where it lacks operators, they are declared
    library("torchvision")

hypothesis.settings.register_profile("secateur", deadline=None, derandomize=True)
hypothesis.settings.load_profile("secateur")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Take back what a test registers: methods, op rules, data sets, kinds of results, commands."""
    before = [(registry, dict(registry)) for registry in (METHODS, RULES, DATASETS, JSON_KINDS)]
    commands = list(app.registered_commands)
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)
    app.registered_commands[:] = commands
