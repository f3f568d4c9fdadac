"""`secateur doctor`: which parts of secateur work on this machine, and how to fix the others."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.text import Text
from torch import nn

import secateur as sc
from secateur.channels.program import suppress_output
from secateur.cli.options import DATA, option
from secateur.cli.screen import TableScreen
from secateur.data import data_root, dataset
from secateur.data.cifar import ARCHIVE, FOLDER
from secateur.data.idx import DIGITS, FASHION
from secateur.embedded import digits, lenet5
from secateur.errors import SecateurError, first_line
from secateur.methods.pfp import native
from secateur.tables import table
from secateur.zoo.libraries import library, matching_pair, missing_operators

State = Literal["works", "missing", "broken"]
COLOURS = {"works": "green", "missing": "yellow", "broken": "red"}
PLACES = {
    "mnist": (DIGITS.folder,),
    "fashion-mnist": (FASHION.folder,),
    "cifar10": (FOLDER, ARCHIVE.path),
    "driving": ("driving",),
}


@dataclass(frozen=True)
class Finding:
    """One part: whether it works, a detail, and the remedy if it does not."""

    part: str
    state: State
    detail: str
    remedy: str = ""
    required: bool = False


def doctor(
    *,
    data: Annotated[Path | None, option(DATA, "DIR", "Folder of the data sets; by default SECATEUR_DATA.")] = None,
    screen: TableScreen,
) -> None:
    """Check every part of this installation by running it, and say how to fix those that fail."""
    with screen.status("checking every part"):
        findings = list(examine(data))
    made = table("part", last=["state"])
    made.add_column("detail", overflow="fold")
    for finding in findings:
        remedy = f"\nremedy: {finding.remedy}" if finding.state != "works" else ""
        detail = Text.assemble(finding.detail, (remedy, "dim"))
        made.add_row(finding.part, Text(finding.state, COLOURS[finding.state]), detail)
    failed = [finding.part for finding in findings if finding.state != "works" and finding.required]
    without = sum(finding.state != "works" and not finding.required for finding in findings)
    required = "not all required parts work" if failed else "all required parts work"
    summary = f"Summary: {required}; {without} optional parts are not available."
    record: dict[str, Any] = {"sound": not failed, "findings": [asdict(finding) for finding in findings]}
    screen.show_table(record, record["findings"], made, "", Text(summary))
    if failed:
        typer.echo(f"error: required, but not working: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def examine(root: str | Path | None = None) -> Iterator[Finding]:
    """Check one part after the other.

    >>> all(finding.state == "works" for finding in examine() if finding.required)
    True

    Args:
        root: the folder of the data sets; by default the one in SECATEUR_DATA, else one in the user's cache.
    """
    yield Finding("python", "works", f"{platform.python_version()} on {platform.platform()}", required=True)
    yield _check("packages", _packages, "pip install --force-reinstall secateur", required=True)
    yield _check("pruning", _pruning, "reinstall torch and secateur in a fresh environment", required=True)
    yield _check("threads", _threads, "set OMP_NUM_THREADS to the number of cores at most")
    yield _check("compiled loop", _compiled, f"install g++ or clang++ and unset {native.OFF}; without it pfp is slower")
    for name in ("torchvision", "timm"):
        yield _check(name, lambda name=name: _library(name), "pip install 'secateur[zoo]'")  # type: ignore[misc]
    yield _check("torchvision ops", _operators, matching_pair())
    yield _check("images", lambda: _imported("PIL", "pillow"), "pip install 'secateur[images]'")
    yield _check("onnx", _onnx, "pip install 'secateur[onnx]'")
    yield _check("ray", lambda: _imported("ray"), "pip install 'secateur[ray]'")
    yield _check("tensorboard", lambda: _imported("tensorboard"), "pip install 'secateur[tensorboard]'")
    yield _check("cuda", _cuda, "none without an NVIDIA GPU; with one, install a torch build for CUDA")
    folder = data_root(root)
    yield _check("data", lambda: _data_folder(folder), "set SECATEUR_DATA, or let `secateur train` create it")
    for name in PLACES:
        remedy = "put driving/frames.csv and driving/images there" if name == "driving" else "downloaded when needed"
        yield _check(f"data: {name}", lambda name=name: _data_set(name, folder), remedy)  # type: ignore[misc]


def _check(
    part: str, check: Callable[[], str], remedy: str, *, broken: str | None = None, required: bool = False
) -> Finding:
    """Return the finding of a check; `broken` is the remedy for a part that is installed but fails."""
    try:
        with suppress_output():
            return Finding(part, "works", check(), required=required)
    except ModuleNotFoundError as error:
        return Finding(
            part, "missing", f"{error.name} is not installed" if error.name else str(error), remedy, required
        )
    except SecateurError as error:
        missing = isinstance(error.__cause__, ModuleNotFoundError)
        return Finding(part, "missing" if missing else "broken", error.cause, error.remedy or remedy, required)
    except Exception as error:
        return Finding(part, "broken", first_line(error), broken or remedy, required)


def _packages() -> str:
    names = ("torch", "numpy", "scipy", "safetensors", "pyyaml", "typer")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def _pruning() -> str:
    """Prune the embedded LeNet-5; `prune` itself verifies the cut."""
    res = sc.prune(lenet5(), digits("calibration")[0][:16], {"params": "30%"})
    if not 0 < res.after.params <= 0.3 * res.before.params:
        raise SecateurError(f"the budget was 30%, and {res.after.params} of {res.before.params} parameters remain")
    return f"LeNet-5 cut to 30% of its parameters, equal to the masked network to {res.verification:.0e}"


def _threads() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    load = f", load {os.getloadavg()[0]:.1f} now" if hasattr(os, "getloadavg") else ""
    found = f"torch uses {threads} threads on {cores} cores{load}"
    if threads > cores:
        raise SecateurError(found)
    return found


def _compiled() -> str:
    """Compare the sensitivities of the compiled loop with their definition."""
    library = native.library("shares")
    if not isinstance(library, ctypes.CDLL):
        raise SecateurError(library) if "failed" in library else ModuleNotFoundError(library)
    first, last = nn.Linear(4, 6), nn.Linear(6, 3)
    model = nn.Sequential(first, nn.ReLU(), last)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.normal_()
        x = torch.randn(8, 4)
        parts = last.weight * torch.relu(first(x))[:, None, :]  # sample, output, channel
        sums = [part.sum(2, keepdim=True) for part in (parts.clamp(min=0), (-parts).clamp(min=0))]
        expected = torch.where(parts > 0, parts / sums[0], -parts / sums[1]).nan_to_num(0).amax((0, 1)).double()
    gap = float((sc.sensitivity(model, x)["0"] - expected).abs().max())
    if not gap <= 1e-5:
        raise SecateurError(
            f"its sensitivities are off by {gap:.1e}", remedy=f"set {native.OFF}=1, and report the compiler"
        )
    return f"compiled, correct to {gap:.0e}"


def _imported(module: str, package: str | None = None) -> str:
    importlib.import_module(module)
    return importlib.metadata.version(package or module)


def _library(name: str) -> str:
    library(name)
    return importlib.metadata.version(name)


def _operators() -> str:
    """Look for the compiled operators of torchvision, and compare its version with torch's."""
    version = _library("torchvision")
    if lacking := missing_operators():
        raise ModuleNotFoundError(lacking)
    return f"compiled for torch {torch.__version__}, in torchvision {version}"


def _onnx() -> str:
    """Export a small network, and run it in onnxruntime."""
    with tempfile.TemporaryDirectory() as folder:
        made = sc.export(nn.Linear(3, 2), Path(folder) / "linear.onnx", torch.zeros(1, 3), runs=20)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnx", "onnxscript", "onnxruntime"))
    return f"{versions}; a layer exported and run, equal to {made.difference:.0e}"


def _cuda() -> str:
    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}, and finds no GPU" if torch.version.cuda else "without CUDA"
        raise ModuleNotFoundError(f"torch is built {built}")
    found: Any = torch.ones(2, 2, device="cuda").sum().item()
    if found != 4:
        raise SecateurError(f"the sum of four ones is {found} there")
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def _data_folder(folder: Path) -> str:
    if not folder.is_dir():
        raise ModuleNotFoundError(f"there is no folder {folder}")
    return str(folder.resolve())


def _data_set(name: str, folder: Path) -> str:
    """Read the test part, if there are files to read."""
    if not any((folder / place).exists() for place in PLACES[name]):
        raise ModuleNotFoundError(f"not in {folder}")
    return f"{len(dataset(name, 'test', folder, download=False)):,} test images"
