"""ONNX files as networks: the same numbers as in torch, any batch size, and the samples that made them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import secateur as sc
from secateur.certificates import fingerprints
from secateur.embedded import digits, lenet5
from secateur.errors import SecateurError, UsageError

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[sc.Pruned, Path]:
    images = digits("calibration")[0]
    res = sc.prune(lenet5(), images, {"params": "30%"}, samples=128, method="ft")
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    sc.export(res.model, path, images[:1], runs=20)
    return res, path


def test_a_file_gives_what_its_network_gives_and_can_be_certified(exported: tuple[sc.Pruned, Path]) -> None:
    res, path = exported
    network, (images, labels) = sc.load_onnx(path), digits("test")
    assert torch.allclose(network(images[:7]), res.model(images[:7]), atol=1e-4)
    held = [(images[:300], labels[:300])]
    one, other = (sc.certify(lenet5(), small, held) for small in (network, res.model))
    assert one["disagreement"] == other["disagreement"] and one["drop"] == other["drop"]


def test_a_file_remembers_the_samples_that_made_its_network(exported: tuple[sc.Pruned, Path]) -> None:
    res, path = exported
    used = fingerprints.remembered(sc.load_onnx(path))
    assert used == fingerprints.unpack(res.fingerprints) and len(used) == 128
    with pytest.raises(SecateurError, match="were used before"):
        sc.certify(lenet5(), sc.load_onnx(path), digits("calibration")[0], used=used)


def test_a_file_for_a_fixed_batch_size_runs_on_any_number_of_samples(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, 2 * y

    path = tmp_path / "pair.onnx"
    sc.export(Pair(), path, (torch.zeros(4, 3), torch.zeros(4, 2)), dynamic=False, runs=20)
    network = sc.load_onnx(path)
    for samples in (1, 4, 9):
        x, y = torch.randn(samples, 3), torch.randn(samples, 2)
        found = network(x, y)
        assert torch.equal(found[0], x + 1) and torch.equal(found[1], 2 * y)
    with pytest.raises(SecateurError, match="takes 2 inputs, and there are 1"):
        network(x)


def test_what_is_no_onnx_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        sc.load_onnx(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no network")
    with pytest.raises(SecateurError, match="cannot be read as ONNX"):
        sc.load_onnx(tmp_path / "text.onnx")
