"""Files that several commands are tested with."""

from __future__ import annotations

from pathlib import Path

import pytest

import secateur as sc
from secateur.embedded import digits, lenet5
from support.command_line import write_networks


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A Python file with networks and data."""
    return write_networks(tmp_path)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pruned LeNet-5 that does not name its original."""
    path = tmp_path_factory.mktemp("small") / "small.safetensors"
    sc.save(path, sc.prune(lenet5(), digits("calibration")[0][:64], {"params": "30%"}))
    return path
