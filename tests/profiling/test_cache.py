"""Tables are kept: one for each machine, network and input; what cannot be read or written is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import secateur as sc
from secateur.errors import UsageError
from secateur.profiling import cache
from secateur.profiling.table import LatencyTable, Segment


def network(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3)).eval()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Count the measurements, which are replaced by a quick one; the cache is in an empty folder."""
    found: list[str] = []

    def quick(model: nn.Module, graph: sc.ChannelGraph, example: torch.Tensor, **rest: object) -> LatencyTable:
        found.append(type(model).__name__)
        shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
        segments = tuple(Segment(n, (s[0], s[1]), 1.0, 0.1, 0.1, 0.01) for n, s in shapes.items() if len(s) > 1)
        return LatencyTable(segments, 1.0, 1, type(model).__name__, shapes, [list(example.shape)], error=0.0)

    monkeypatch.setattr(cache, "measure_torch", quick)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return found


def kept(model: nn.Module, samples: int = 1) -> tuple[LatencyTable, tuple[str, ...]]:
    x = torch.zeros(samples, 6)
    return cache.kept_table(model, sc.trace(model, x), x, "torch")


def test_a_table_is_measured_once(measured: list[str]) -> None:
    first, notes = kept(network())
    again, more = kept(network())
    assert first == again and notes == more == () and len(measured) == 1


def test_another_network_input_or_number_of_threads_has_its_own(measured: list[str]) -> None:
    kept(network())
    kept(network(9))
    kept(network(), samples=2)
    kept(network().double())  # runs in another precision
    assert len(measured) == 4


@pytest.mark.parametrize("content", ["", "{}", '{"latency_table": 0}'])
def test_a_stored_table_that_cannot_be_read_is_measured_again(
    measured: list[str], tmp_path: Path, content: str
) -> None:
    first, _ = kept(network())
    (file,) = (tmp_path / "cache" / "secateur" / "latency").iterdir()
    file.write_text(content)
    again, notes = kept(network())
    assert again == first and len(measured) == 2 and "measured again" in notes[0]
    assert kept(network())[1] == ()


def test_a_folder_that_cannot_be_written_is_reported(measured: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    table, notes = kept(network())
    assert table.segments and "could not be kept" in notes[0]


def test_a_full_disk_is_reported(measured: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LatencyTable, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LatencyTable, "save", full)
    assert "No space left" in kept(network())[1][0]


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="engine is 'abacus'"):
        sc.latency_table(network(), torch.zeros(1, 6), engine="abacus")  # type: ignore[arg-type]
