"""A model is built from its name, or the error says what to write instead."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from torch import nn

from secateur.errors import SecateurError, UsageError
from secateur.zoo import LeNet5, LeNet5Classic, LeNet300100
from secateur.zoo.libraries import matching_pair
from secateur.zoo.names import build, parse_shape

FILE = """
import torch
from torch import nn
from neighbour import WIDTH

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3)

def make():
    return Small()

def broken():
    raise ValueError("no such width")

def text():
    return "a model"

def sized(width):
    return nn.Conv2d(3, width, 3)

ready = Small()
width = WIDTH
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 5\n")
    (tmp_path / "network.py").write_text(FILE)
    yield tmp_path / "network.py"
    sys.modules.pop("neighbour", None)


def refusal(name: str, kind: type[SecateurError], weights: Any = None) -> str:
    with pytest.raises(SecateurError) as caught:
        build(name, weights)
    assert type(caught.value) is kind
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"), [("lenet5", LeNet5), ("lenet300100", LeNet300100), ("lenet5-classic", LeNet5Classic)]
)
def test_zoo(name: str, kind: type[nn.Module]) -> None:
    assert type(build(f"zoo:{name}")) is kind


def test_zoo_with_weights(tmp_path: Path) -> None:
    state = LeNet5().state_dict()
    safetensors.torch.save_file(state, tmp_path / "lenet5.safetensors")
    model = build("zoo:lenet5", tmp_path / "lenet5.safetensors")
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_torchvision() -> None:
    assert isinstance(build("torchvision:resnet18"), torchvision.models.ResNet)


@pytest.mark.parametrize("name", ["googlenet", "fcn_resnet50"])
def test_torchvision_models_that_would_warn_or_download(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **__: pytest.fail("a download"))
    assert isinstance(build(f"torchvision:{name}"), nn.Module)


def test_timm() -> None:
    assert isinstance(build("timm:resnet18"), timm.models.ResNet)


@pytest.mark.parametrize(
    ("source", "wrong", "right"),
    [("torchvision", "resnet_18", "resnet18"), ("timm", "resnet_18", "resnet18"), ("zoo", "lenet-5", "lenet5")],
)
def test_an_unknown_name_is_refused_with_the_nearest(source: str, wrong: str, right: str) -> None:
    text = refusal(f"{source}:{wrong}", UsageError)
    assert f"{source} has no model {wrong!r}" in text
    assert f"{source}:{right}" in text


@pytest.mark.parametrize("name", ["resnet18", "", ":", "torchvision", "huggingface:resnet18"])
def test_other_names_are_refused_with_the_known_forms(name: str) -> None:
    forms = "zoo:lenet5, torchvision:resnet18, timm:resnet18 or path/to/file.py:factory"
    assert forms in refusal(name, UsageError)


def test_a_name_unlike_any_in_the_zoo_is_refused_with_the_known_forms() -> None:
    text = refusal("zoo:transformer", UsageError)
    assert "zoo has no model 'transformer'" in text
    assert "zoo:lenet5" in text


@pytest.mark.parametrize("factory", ["make", "Small", "ready"])
def test_a_file(file: Path, factory: str) -> None:
    before = list(sys.path)
    model = build(f"{file}:{factory}")
    assert type(model).__name__ == "Small"
    assert model.conv.out_channels == 5
    assert sys.path == before


def test_two_files_with_one_name_are_two_modules(tmp_path: Path) -> None:
    for width in (2, 7):
        (tmp_path / str(width)).mkdir()
        (tmp_path / str(width) / "net.py").write_text(f"from torch import nn\nmodel = nn.Linear({width}, 1)\n")
    assert [build(f"{tmp_path}/{width}/net.py:model").in_features for width in (2, 7)] == [2, 7]


def test_a_relative_path(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert isinstance(build("network.py:make"), nn.Module)


@pytest.mark.parametrize(
    ("factory", "kind", "parts"),
    [
        ("mak", UsageError, ["has no 'mak'", "did you mean make?"]),
        ("zzz", UsageError, ["has no 'zzz'", "use one of Small, make, broken, text, sized, ready"]),
        ("", UsageError, ["has no ''", "use one of Small"]),
        ("width", UsageError, ["expected a factory or an nn.Module"]),
        ("broken", SecateurError, ["ValueError: no such width (line 15)", "a factory without arguments"]),
        ("sized", SecateurError, ["missing 1 required positional argument: 'width'", "a factory without arguments"]),
        ("text", SecateurError, ["returned a str", "return an nn.Module"]),
    ],
)
def test_invalid_factories_are_refused(file: Path, factory: str, kind: type[SecateurError], parts: list[str]) -> None:
    text = refusal(f"{file}:{factory}", kind)
    assert all(part in text for part in parts), text


def test_invalid_files_are_refused(file: Path) -> None:
    assert "use one of Small" in refusal(str(file), UsageError)
    assert "did you mean network.py?" in refusal(f"{file.parent}/netwrk.py:make", UsageError)
    assert "there is no file" in refusal(f"{file.parent}/nowhere/zzz.py:make", UsageError)
    file.write_text("import torch\nx = 1 +\n")
    assert "SyntaxError: invalid syntax (network.py, line 2)" in refusal(f"{file}:make", SecateurError)
    file.write_text("import torch\n\nundefined\n")
    assert "NameError: name 'undefined' is not defined (line 3)" in refusal(f"{file}:make", SecateurError)
    file.write_text("")
    assert "define a function there" in refusal(f"{file}:make", UsageError)


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_package_that_is_not_installed(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    text = refusal(f"{package}:resnet18", SecateurError)
    assert f"{package} is not installed" in text
    assert "pip install 'secateur[zoo]'" in text


def test_a_torchvision_for_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def failing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::deform_conv2d does not exist")
        return real(name, *args, **kwargs)

    monkeypatch.setattr("importlib.import_module", failing)
    text = refusal("torchvision:resnet18", SecateurError)
    assert "installed but cannot be imported" in text
    assert f"install a matching pair: {matching_pair()}" in text


@pytest.mark.parametrize("kind", ["state.safetensors", "state.pt", "checkpoint.pt"])
def test_weights(file: Path, kind: str) -> None:
    path, state = file.parent / kind, {"conv.weight": torch.rand(5, 3, 3, 3), "conv.bias": torch.rand(5)}
    if kind.endswith("safetensors"):
        safetensors.torch.save_file(state, path)
    else:
        torch.save({"state_dict": state, "epoch": 3} if kind.startswith("checkpoint") else state, path)
    model = build(f"{file}:make", weights=path)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_weights_of_a_parallel_wrapper_in_half_precision(file: Path) -> None:
    state = nn.DataParallel(build(f"{file}:make")).state_dict()
    state = {name: torch.rand_like(tensor).half() for name, tensor in state.items()}
    assert all(name.startswith("module.") for name in state)
    torch.save({"state_dict": state}, file.parent / "state.th")
    model = build(f"{file}:make", weights=file.parent / "state.th")
    assert model.conv.weight.dtype == torch.float32
    assert all(torch.equal(tensor, state[f"module.{name}"].float()) for name, tensor in model.state_dict().items())


def test_weights_of_a_model_that_is_itself_a_wrapper(file: Path) -> None:
    file.write_text("from torch import nn\ndef make():\n    return nn.DataParallel(nn.Linear(2, 2))\n")
    state = nn.DataParallel(nn.Linear(2, 2)).state_dict()
    torch.save(state, file.parent / "state.pt")
    model = build(f"{file}:make", weights=file.parent / "state.pt")
    assert torch.equal(model.module.weight, state["module.weight"])


def test_a_checkpoint_of_an_older_torch_has_no_batch_counts(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in build("zoo:resnet20").state_dict().items() if "num_batches" not in name}
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "old.th")
    model = build("zoo:resnet20", tmp_path / "old.th")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())


class Trap:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_weights_that_would_run_code_are_not_opened(file: Path) -> None:
    path, trace = file.parent / "state.pt", file.parent / "ran"
    torch.save({"state_dict": {}, "args": Trap(trace)}, path)
    text = refusal(f"{file}:make", SecateurError, path)
    assert "has more than tensors" in text and "torch.save its state dict alone" in text
    assert not trace.exists()


def test_weights_that_do_not_fit(file: Path) -> None:
    path = file.parent / "state.pt"
    assert "no weights file" in refusal(f"{file}:make", UsageError, path)
    path.write_bytes(b"PK truncated")
    assert "cannot be read as weights" in refusal(f"{file}:make", SecateurError, path)
    torch.save({"conv.weight": torch.rand(4, 3, 3, 3)}, path)
    assert "does not fit the model" in refusal(f"{file}:make", SecateurError, path)
    torch.save([1, 2], path)
    assert "does not fit the model: it is not a state dict" in refusal(f"{file}:make", SecateurError, path)


def test_weights_of_another_network_are_counted_and_five_tensors_named(tmp_path: Path) -> None:
    path = tmp_path / "wide.pt"
    torch.save(build("torchvision:resnet18").state_dict(), path)
    lines = refusal("torchvision:densenet121", SecateurError, path).splitlines()
    assert lines[0].endswith(
        "606 of the model's 727 tensors are not in the file, 122 of the file's 122 are not in the model"
    )
    assert len(lines) == 7
    assert "features.conv0.weight is not in the file, the nearest is layer" in lines[1]


def test_weights_with_other_names_and_shapes_say_which(file: Path) -> None:
    path = file.parent / "state.pt"
    torch.save({"conv.weight": torch.rand(4, 3, 3, 3), "conv1.bias": torch.rand(5)}, path)
    text = refusal(f"{file}:make", SecateurError, path)
    assert "conv.weight is 4x3x3x3 in the file, 5x3x3x3 here" in text
    assert "conv.bias is not in the file, the nearest is conv1.bias" in text
    torch.save({"conv.weight": torch.rand(5, 3, 3, 3), "conv.bias": torch.rand(5), "head": torch.rand(1)}, path)
    assert "1 of the file's 3 are not in the model\n    head is not in the model" in refusal(
        f"{file}:make", SecateurError, path
    )


def test_shapes() -> None:
    assert parse_shape("1x3x224x224") == (1, 3, 224, 224)
    assert parse_shape("7") == (7,)
    assert parse_shape("2X5") == (2, 5)


@pytest.mark.parametrize("text", ["", "x", "1xx3", "1x-3", "1x0", "1x3.5", "1,3", "axb", "1x²", " 1x3"])
def test_not_shapes(text: str) -> None:
    with pytest.raises(UsageError, match="is not a shape"):
        parse_shape(text)
