"""Commands for how far a network can be trusted: `secateur certify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from torch import Tensor
from torch.utils import _pytree as pytree

from secateur.calibration import Calibration, read_batches
from secateur.certify import Task
from secateur.certify import certify as certified_by
from secateur.checkpoint import load, read_info, read_plan
from secateur.cli.shared import (
    AsJson,
    BatchSize,
    Mean,
    Quiet,
    Std,
    Weights,
    interruptible,
    numbers,
    plain_errors,
)
from secateur.errors import UsageError
from secateur.models import build
from secateur.program import call_arguments, revive


def certify(
    small: Annotated[
        Path, typer.Argument(metavar="SMALL", help="The cut network, as secateur prune saved it.", show_default=False)
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="The original: zoo:NAME, torchvision:NAME, timm:NAME, or path/to/file.py:FACTORY.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Held-out data that nothing has seen before: a folder of images, a .npy, .npz, .safetensors or .pt "
            "file, path/to/file.py:FACTORY, or embedded:digits (here the 2,000 for testing).",
            show_default=False,
        ),
    ],
    weights: Weights = None,
    labels: Annotated[
        bool | None,
        typer.Option("--labels/--no-labels", help="Demand labels, or ignore them; used if there, otherwise."),
    ] = None,
    delta: Annotated[float, typer.Option(metavar="P", help="Probability that a statement is false.")] = 1e-3,
    eps: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Relative errors; how often is each exceeded? Like 0.1,0.2.")
    ] = None,
    beta: Annotated[
        float, typer.Option(metavar="P", help="Share of inputs that may exceed the smallest certified error.")
    ] = 0.05,
    task: Annotated[
        Task | None,
        typer.Option(metavar="NAME", help="classification or regression; told from the outputs if not given."),
    ] = None,
    range: Annotated[
        float | None, typer.Option(metavar="R", help="For regression: the largest change that an output can have.")
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Certify each layer that reads cut channels; slow.")] = False,
    chosen_from: Annotated[
        int, typer.Option(metavar="N", help="SMALL is the best of N networks on these very points.")
    ] = 1,
    points: Annotated[int, typer.Option(metavar="N", help="How many points of the data to use.")] = 10_000,
    batch: BatchSize = 128,
    mean: Mean = None,
    std: Std = None,
    seed: Annotated[int, typer.Option(metavar="N", help="For the choice of points.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say with a stated confidence how far SMALL is from the original, on data that nothing has seen."""
    with plain_errors(), interruptible(), Console(stderr=True, quiet=quiet).status("") as status:
        if weights is None and not (model.endswith(".py") or ".py:" in model):
            raise UsageError(
                f"{model} without weights is random, not the original", remedy="give --weights FILE, as for prune"
            )
        means, stds, errors = numbers("mean", mean), numbers("std", std), numbers("eps", eps)
        plan, info = read_plan(small), read_info(small)
        status.update(Text(f"making {model}"))
        original = build(model, weights)
        network = load(small, original)
        example = revive(plan.example)
        status.update(Text(f"reading {data}"))
        shape = next(iter(_shapes(example)), ())[1:]
        heldout = held_out(data, shape=shape, points=points, batch=batch, mean=means, std=stds, seed=seed)
        status.update(f"running both networks on {heldout.points:,} points")
        cert = certified_by(
            original,
            network,
            heldout,
            delta=delta,
            eps=errors or (),
            beta=beta,
            labels=labels,
            task=task,
            range=range,
            plan=plan,
            layers=layers,
            chosen_from=chosen_from,
            used=_used(info),
            example=example,
        )
        status.stop()
        head: dict[str, Any] = {"small": str(small), "model": model, "data": heldout.origin}
        if as_json:
            typer.echo(json.dumps(head | json.loads(cert.to_json()), indent=2))
            return
        console = Console(quiet=quiet)
        console.print(
            Text(str(small), "bold"), Text(f"beside {model}, on {heldout.origin}", "dim"), sep="\n", end="\n\n"
        )
        console.print(Text(str(cert)))
        if _used(info) is None:
            note = "the file does not tell which points it was made with, so that none could be refused"
            console.print(Text(f"Note: {note}."))


def _used(info: dict[str, Any]) -> str | None:
    """The fingerprints that were saved with a network."""
    found = info.get("fingerprints")
    return found if isinstance(found, str) else None


def _shapes(example: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in pytree.tree_leaves(call_arguments(example)) if isinstance(leaf, Tensor)]


def held_out(source: str, *, points: int, batch: int, mean: Any, std: Any, **more: Any) -> Calibration:
    """Data that nothing has seen: as for calibration, but `embedded:digits` are the test digits."""
    if source != "embedded:digits":
        return read_batches(source, points=points, batch=batch, mean=mean, std=std, **more)
    if mean is not None or std is not None:
        raise UsageError("the embedded digits are scaled already", remedy="leave mean and std out")
    return _digits(points, batch)


def _digits(points: int, batch: int) -> Calibration:
    """The digits that the embedded network was not trained on."""
    from secateur.embedded import digits

    if points < 1 or batch < 1:
        raise UsageError(f"{points} points in batches of {batch}", remedy="ask for at least 1 of each")
    x, y = (part[:points] for part in digits("test"))
    return Calibration(list(zip(x.split(batch), y.split(batch))), len(x), True, "embedded:digits (test)")
