"""Exported files, read back by their own runtimes; they are written only if the outputs equal those of torch."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.errors import SecateurError, UsageError
from secateur.methods.pfp import native
from secateur.storage.export import To, export

ONNX = all(find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript"))
needs_onnx = pytest.mark.skipif(not ONNX, reason="no onnx")
EITHER = [pytest.param("onnx", marks=needs_onnx), "torch-export"]
# torch's own ONNX exporter and its .pt2 files use what torch or Python have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def small() -> sc.Pruned:
    return sc.prune(lenet5(), digits("calibration")[0], {"params": "30%"})


@pytest.fixture(scope="module")
def onnx_file(small: sc.Pruned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(small.model, tmp_path_factory.mktemp("onnx") / "small.onnx", torch.zeros(1, 1, 28, 28), runs=20).path


def read(path: Path, to: To, *inputs: Tensor) -> list[Tensor]:
    """Return the outputs of the file in its own runtime: the oracle."""
    if to == "torch-export":
        outputs = torch.export.load(path).module()(*inputs)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    fed = {one.name: tensor.numpy() for one, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(found) for found in session.run(None, fed)]


@pytest.mark.parametrize("to", EITHER)
@pytest.mark.parametrize("output", ["module", "graph"])
def test_a_pruned_network_runs_elsewhere_in_batches_of_any_size(tmp_path: Path, to: To, output: Any) -> None:
    images = digits("calibration")[0]
    res = sc.prune(lenet5(), images[:64], {"params": "30%"}, output=output)
    path, held = tmp_path / "small", digits("test")[0]
    made = export(res.model, path, images[:1], to, data=list(images[:40].split(16)), runs=20)
    for size in (1, 2, 5, 33):
        (found,), wanted = read(path, to, held[:size]), res.model(held[:size]).detach()
        assert found.shape == wanted.shape
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert (made.path, made.to, made.real, made.samples, made.batches) == (path, to, True, 48, (1, 2, 5, 8, 16))
    assert 0 <= made.difference < 1e-5
    assert made.bytes_after == path.stat().st_size
    # The file has the weights of the small network, not those of the original.
    assert made.bytes_before == 4 * sum(p.numel() for p in res.model.parameters())
    assert made.bytes_before <= made.bytes_after < made.bytes_before + 100_000
    assert (made.times.first.runs, made.times.second.runs) == (20, 20)
    assert "in batches of 1, 2, 5, 8, 16" in str(made)
    assert [file.name for file in tmp_path.iterdir()] == ["small"]


@needs_onnx
def test_the_free_axis_has_a_name(onnx_file: Path) -> None:
    import onnx

    graph = onnx.load(onnx_file).graph
    (given,), (made,) = graph.input, graph.output
    assert [dim.dim_param or dim.dim_value for dim in given.type.tensor_type.shape.dim] == ["batch", 1, 28, 28]
    assert [dim.dim_param or dim.dim_value for dim in made.type.tensor_type.shape.dim] == ["batch", 10]


class Many(nn.Module):
    """Keyword inputs, one of them unused and one not a tensor; outputs of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor, y: Tensor, unused: Tensor | None = None, factor: float = 1.0) -> dict[str, Any]:
        return {"sum": self.layer(x) - factor * y, "same": [x, None], "larger": y > 0}


@pytest.mark.parametrize("to", EITHER)
def test_keywords_in_any_order(tmp_path: Path, to: To) -> None:
    model = Many()
    example = {"y": torch.zeros(1, 4), "unused": torch.zeros(1, 7), "x": torch.zeros(1, 3), "factor": 2.0}
    batch = {"x": torch.randn(6, 3), "factor": 2.0, "y": torch.randn(6, 4), "unused": torch.zeros(6, 7)}
    made = sc.export(model, tmp_path / "many", example, to, data=[batch], runs=20)
    assert made.difference < 1e-6 and made.samples == 14


class Passing(nn.Module):
    """A network whose forward does not name its keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        x = args[0] if args else kwargs["x"]
        found: Tensor = self.inner(x) * kwargs["mask"][:, None]
        return found


@pytest.mark.parametrize("to", EITHER)
def test_keywords_that_forward_does_not_name(tmp_path: Path, to: To) -> None:
    network, x, mask = Passing(), torch.randn(5, 4), torch.rand(5)
    export(network, tmp_path / "file", {"x": torch.zeros(1, 4), "mask": torch.ones(1)}, to, runs=20)
    if to == "onnx":
        (found,) = read(tmp_path / "file", to, x, mask)
    else:
        found = torch.export.load(tmp_path / "file").module()(x=x, mask=mask)
    torch.testing.assert_close(found, network(x=x, mask=mask))
    assert "forward" not in vars(network)
    assert sc.trace(network, {"x": torch.zeros(1, 4), "mask": torch.ones(1)}).notes == ()


@pytest.mark.parametrize("to", EITHER)
def test_a_network_with_a_fixed_batch_size(tmp_path: Path, to: To) -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(2, 12) * 2

    x = torch.randn(2, 3, 4)
    with pytest.raises(SecateurError, match="--fixed-batch"):
        export(Fixed(), tmp_path / "fixed", x, to)
    assert list(tmp_path.iterdir()) == []
    made = export(Fixed(), tmp_path / "fixed", x, to, dynamic=False, runs=20)
    assert made.batches == (2,) and torch.equal(read(tmp_path / "fixed", to, x)[0], x.reshape(2, 12) * 2)


@pytest.mark.parametrize("to", EITHER)
def test_different_outputs_leave_the_old_file(tmp_path: Path, to: To) -> None:
    class Dice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    path = tmp_path / "dice"
    path.write_text("mine")
    with pytest.raises(SecateurError, match=r"outputs differ by .* more than 1e-04"):
        export(Dice(), path, torch.zeros(1, 5), to)
    assert path.read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


@needs_onnx
def test_nan_in_the_runtime_only_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["secateur.storage.export"]
    monkeypatch.setattr(module, "_onnx", lambda *_: (b"", lambda call: [torch.full((len(call[0][0]), 2), torch.nan)]))
    with pytest.raises(SecateurError, match="onnxruntime gives NaN or infinity"):
        export(nn.Linear(3, 2), tmp_path / "x", torch.zeros(1, 3))


def test_invalid_weights_and_inputs_are_refused(tmp_path: Path) -> None:
    broken = nn.Linear(3, 2)
    nn.init.constant_(broken.weight, torch.nan)
    with pytest.raises(SecateurError, match="NaN or infinite"):
        export(broken, tmp_path / "x", torch.zeros(1, 3), "torch-export")
    sound = nn.Linear(3, 2)
    with pytest.raises(SecateurError, match=r"torch.export cannot follow it"):
        export(sound, tmp_path / "x", torch.zeros(1, 4), "torch-export")
    with pytest.raises(SecateurError, match="one batch, or several"):
        export(sound, tmp_path / "x", torch.zeros(1, 3), "torch-export", data=torch.zeros(4, 3).split(2))
    with pytest.raises(SecateurError, match="there is no data"):
        export(sound, tmp_path / "x", torch.zeros(1, 3), "torch-export", data=[])
    with pytest.raises(SecateurError, match=r"a batch has the inputs \['z'\], the example \['x', 'y'\]"):
        keywords = {"x": torch.zeros(1, 3), "y": torch.zeros(1, 4)}
        export(Many(), tmp_path / "x", keywords, "torch-export", data=[{"z": torch.zeros(1, 3)}])
    with pytest.raises(SecateurError, match="there is no folder"):
        export(sound, tmp_path / "nowhere" / "x", torch.zeros(1, 3))
    with pytest.raises(UsageError, match="cannot export to 'tflite'"):
        export(sound, tmp_path / "x", torch.zeros(1, 3), "tflite")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
@needs_onnx
def test_a_missing_package_is_named_with_its_extra(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SecateurError, match=rf"{package} is not installed\n  remedy: pip install 'secateur\[onnx\]'"):
        export(nn.Linear(3, 2), tmp_path / "x.onnx", torch.zeros(1, 3))


def test_an_interruption_while_it_is_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export(nn.Linear(3, 2), tmp_path / "x.pt2", torch.zeros(1, 3), "torch-export", runs=20)
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_half_precision(tmp_path: Path) -> None:
    example = torch.zeros(1, 3)
    assert export(nn.Linear(3, 2).half(), tmp_path / "x", example, runs=20).difference < 1e-2
    with pytest.raises(SecateurError, match=r"onnxruntime cannot run it.*\n.*model.float\(\)"):
        export(nn.Linear(3, 2).bfloat16(), tmp_path / "x", example)


def test_the_model_is_unchanged(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout())
    model[2].eval()
    tracked = model[1].num_batches_tracked.clone()
    export(torch.compile(model), tmp_path / "x", torch.zeros(1, 3), "torch-export", runs=20)
    assert [module.training for module in model] == [True, True, False]
    assert model[1].num_batches_tracked == tracked


# docs/export.md shows these uses of a pruned network.


def test_it_can_be_pruned_again(small: sc.Pruned) -> None:
    again = sc.prune(small.model, digits("calibration")[0], {"params": "50%"})
    assert again.after.params <= small.after.params / 2


@needs_onnx
def test_it_can_be_quantized(onnx_file: Path, tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    images, labels = digits("test")
    int8 = tmp_path / "int8.onnx"
    quantize_dynamic(onnx_file, int8)
    assert int8.stat().st_size < 0.35 * onnx_file.stat().st_size
    before, after = (
        float((read(path, "onnx", images)[0].argmax(1) == labels).double().mean()) for path in (onnx_file, int8)
    )
    assert after > before - 0.01


@pytest.mark.skipif(isinstance(native.library("shares"), str), reason="no compiler")
def test_it_can_be_compiled(small: sc.Pruned) -> None:
    images = digits("test")[0][:8]
    with torch.no_grad():
        wanted = small.model.eval()(images)
        found = torch.compile(small.model)(images)
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_an_export_leaves_no_fake_tensors_in_the_model(tmp_path: Path) -> None:
    class Grid(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "grid"):
                self.grid = torch.arange(x.shape[-1], dtype=x.dtype)
            return x + self.grid

    network = nn.Sequential(nn.Linear(4, 4), Grid()).eval()
    export(network, tmp_path / "net.pt2", torch.zeros(1, 4), to="torch-export", runs=20)
    assert type(network(torch.zeros(1, 4))) is type(network[1].grid) is Tensor
