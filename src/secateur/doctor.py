"""What of secateur works on this machine, tried rather than assumed, and what to do about the rest."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from secateur import native
from secateur.data import NAMES, data_root, dataset
from secateur.data.cifar import ARCHIVE, FOLDER
from secateur.data.idx import DIGITS, FASHION
from secateur.embedded import digits, lenet5
from secateur.errors import SecateurError
from secateur.export import export
from secateur.program import first_line, silence
from secateur.prune import prune
from secateur.sensitivity import sensitivity

State = Literal["works", "absent", "broken"]
PLACES = {
    "mnist": (DIGITS.folder,),
    "fashion-mnist": (FASHION.folder,),
    "cifar10": (FOLDER, ARCHIVE.path),
    "driving": ("driving",),
}


@dataclass(frozen=True)
class Finding:
    """One part: whether it works, what was seen, and what to do if it does not."""

    part: str
    state: State
    detail: str
    remedy: str = ""
    required: bool = False


class _Absent(Exception):
    """A part that is simply not there."""


def examine(root: str | Path | None = None) -> Iterator[Finding]:
    """Try every part in turn.

    >>> all(finding.state == "works" for finding in examine() if finding.required)
    True

    root: the folder that data sets lie in; if not given, the one in SECATEUR_DATA, else one in the user's cache.
    """
    yield Finding("python", "works", f"{platform.python_version()} on {platform.platform()}", required=True)
    yield _tried("packages", _packages, "pip install --force-reinstall secateur", required=True)
    yield _tried("pruning", _pruning, "reinstall torch and secateur in a fresh environment", required=True)
    yield _tried("threads", _threads, "set OMP_NUM_THREADS to the number of cores at most")
    yield _tried(
        "compiled loop", _compiled, f"install g++ or clang++ and do not set {native.OFF}; or go without, slower"
    )
    mismatch = f"install the torchvision that belongs to torch {torch.__version__}"
    yield _tried("torchvision", lambda: _imported("torchvision"), "pip install 'secateur[zoo]'", broken=mismatch)
    yield _tried("timm", lambda: _imported("timm"), "pip install 'secateur[zoo]'", broken=mismatch)
    yield _tried("pictures", lambda: _imported("PIL", "pillow"), "pip install 'secateur[images]'")
    yield _tried("onnx", _onnx, "pip install 'secateur[onnx]'")
    yield _tried("ray", lambda: _imported("ray"), "pip install 'secateur[ray]'")
    yield _tried("tensorboard", lambda: _imported("tensorboard"), "pip install 'secateur[tensorboard]'")
    yield _tried("cuda", _cuda, "nothing, without such a GPU; with one, install a torch that is built for it")
    folder = data_root(root)
    remedy = "name it in SECATEUR_DATA, or let a first `secateur train` make it"
    yield _tried("data", lambda: _data_folder(folder), remedy)
    for name in NAMES:
        yield _data_set(name, folder)


def _tried(
    part: str, check: Callable[[], str], remedy: str, *, broken: str | None = None, required: bool = False
) -> Finding:
    """What a check says, or why it fails; `broken` is the remedy for what is there but does not work."""
    try:
        with silence():
            return Finding(part, "works", check(), required=required)
    except ModuleNotFoundError as error:
        return Finding(part, "absent", f"{error.name} is not installed", remedy, required)
    except _Absent as error:
        return Finding(part, "absent", str(error), remedy, required)
    except SecateurError as error:
        absent = isinstance(error.__cause__, ModuleNotFoundError)
        return Finding(part, "absent" if absent else "broken", error.cause, error.remedy or remedy, required)
    except Exception as error:
        return Finding(part, "broken", first_line(error), broken or remedy, required)


def _packages() -> str:
    """The versions of what secateur cannot do without."""
    names = {"numpy": "numpy", "scipy": "scipy", "safetensors": "safetensors", "yaml": "pyyaml", "typer": "typer"}
    for name in names:
        importlib.import_module(name)
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names.values())
    return f"torch {torch.__version__}, {found}"


def _pruning() -> str:
    """Prune the trained network of the package; prune itself proves the cut."""
    res = prune(lenet5(), digits("calibration")[0][:16], {"params": "30%"})
    if not 0 < res.after.params <= 0.3 * res.before.params:
        raise SecateurError(f"30% were asked for, {res.after.params} of {res.before.params} parameters are left")
    return f"LeNet-5 cut to 30 % of its parameters, equal to the masked network to {res.verification:.0e}"


def _threads() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    load = f", load {os.getloadavg()[0]:.1f} now" if hasattr(os, "getloadavg") else ""
    found = f"torch uses {threads} of {cores} cores{load}"
    if threads > cores:
        raise SecateurError(found)
    return found


def _compiled() -> str:
    """Sensitivities by the compiled loop, beside the definition."""
    library = native.library("shares")
    if not isinstance(library, ctypes.CDLL):
        raise SecateurError(library) if "failed" in library else _Absent(library)
    first, last = nn.Linear(4, 6), nn.Linear(6, 3)
    model = nn.Sequential(first, nn.ReLU(), last)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.normal_()
        x = torch.randn(8, 4)
        parts = last.weight * torch.relu(first(x))[:, None, :]  # point, output, channel
        sums = [part.sum(2, keepdim=True) for part in (parts.clamp(min=0), (-parts).clamp(min=0))]
        wanted = torch.where(parts > 0, parts / sums[0], -parts / sums[1]).nan_to_num(0).amax((0, 1)).double()
    gap = float((sensitivity(model, x)["0"] - wanted).abs().max())
    if not gap <= 1e-5:
        raise SecateurError(
            f"its sensitivities are off by {gap:.1e}", remedy=f"set {native.OFF}=1, and report the compiler"
        )
    return f"compiled, right to {gap:.0e}"


def _imported(module: str, package: str | None = None) -> str:
    importlib.import_module(module)
    return importlib.metadata.version(package or module)


def _onnx() -> str:
    """Write a small network, and run it in onnxruntime."""
    with tempfile.TemporaryDirectory() as folder:
        made = export(nn.Linear(3, 2), Path(folder) / "linear.onnx", torch.zeros(1, 3), runs=20)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnx", "onnxscript", "onnxruntime"))
    return f"{versions}; a layer written and run, equal to {made.difference:.0e}"


def _cuda() -> str:
    if not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
        raise _Absent(f"{built}, and sees no such GPU" if torch.version.cuda else built)
    found: Any = torch.ones(2, 2, device="cuda").sum().item()
    if found != 4:
        raise SecateurError(f"the sum of four ones is {found} there")
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def _data_folder(folder: Path) -> str:
    if not folder.is_dir():
        raise _Absent(f"there is no folder {folder}")
    return str(folder.resolve())


def _data_set(name: str, folder: Path) -> Finding:
    """Read the test part, where there is something to read."""

    def check() -> str:
        if not any((folder / place).exists() for place in PLACES[name]):
            raise _Absent(f"not in {folder}")
        return f"{len(dataset(name, 'test', folder, download=False)):,} test images"

    remedy = "put driving/frames.csv and driving/images there" if name == "driving" else "it is fetched when needed"
    return _tried(f"data: {name}", check, remedy)
