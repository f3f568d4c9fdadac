"""`secateur certify`: how far a smaller network can be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_args

from rich.text import Text
from torch import nn

import secateur as sc
from secateur.certificates import fingerprints
from secateur.certificates.certify import Task
from secateur.cli import options
from secateur.cli.inputs import Reading, example_of_file, is_onnx, note_operators, numbers, trained, trained_original_of
from secateur.cli.onnx import onnx_example
from secateur.cli.options import ADVANCED, CERTIFICATE, DATA, MODELS, SOURCES, argument, count, option
from secateur.cli.screen import TableScreen, heading
from secateur.pruning.settings import CERTIFICATE_DELTA
from secateur.storage.checkpoint import read_info, read_plan
from secateur.tables import paragraphs
from secateur.zoo.names import build

READING = Reading(samples=10_000, batch=128)


def certify(
    *,
    small: Annotated[Path, argument("SMALL", "The pruned network, a file that prune or export wrote.")],
    data: Annotated[str, option(DATA, "SOURCE", f"Held-out data that nothing has seen: {SOURCES}.")],
    model: Annotated[
        str | None, option(DATA, "MODEL", f"The original: {MODELS}.", show_default="the one that SMALL names")
    ] = None,
    weights: options.Weights = None,
    reading: Reading = READING,
    delta: Annotated[float, option(CERTIFICATE, "P", "Probability that a statement is false.")] = CERTIFICATE_DELTA,
    eps: Annotated[
        str | None, option(CERTIFICATE, "NUMBERS", "Relative errors; bound how often each is exceeded.")
    ] = None,
    beta: Annotated[float, option(CERTIFICATE, "P", "Share of inputs that may exceed the error.")] = 0.05,
    task: Annotated[
        Task | None,
        option(CERTIFICATE, "NAME", f"{', '.join(get_args(Task))}.", show_default="by the outputs"),
    ] = None,
    range: Annotated[float | None, option(CERTIFICATE, "R", "For regression: largest change of an output.")] = None,
    threshold: Annotated[float, option(CERTIFICATE, "S", "For detection: score from which a box counts.")] = 0.5,
    layers: Annotated[bool, option(CERTIFICATE, "", "Certify each layer with cut inputs; slow.", "--layers")] = False,
    chosen_from: Annotated[int, count(CERTIFICATE, "SMALL is the best of N networks on this data.")] = 1,
    labels: Annotated[
        bool | None, option(ADVANCED, "", "Require labels, or ignore them.", show_default="if any")
    ] = None,
    screen: TableScreen,
) -> None:
    """Bound the difference between SMALL and its original, with a stated confidence, from held-out data."""
    errors = numbers("eps", eps)
    network: nn.Module
    if is_onnx(str(small)):
        network, plan = sc.load_onnx(small), None
        model = trained(model, weights, small)
        used = fingerprints.pack(fingerprints.remembered(network)) or None
        with screen.status(f"building {model}"):
            original = build(model, weights)
        example: Any = onnx_example(str(small), network.session)
    else:
        model = trained_original_of(small, model, weights)
        plan, used = read_plan(small), read_info(small).get("fingerprints")
        with screen.status(f"building {model}"):
            original = build(model, weights)
            network = sc.load(small, original)
        example = example_of_file(small, original)
    note_operators(screen, model)
    with screen.status(f"reading {data}"):
        heldout = reading.read_unseen(data, example)
    with screen.status(f"running both networks on {heldout.samples:,} samples"):
        cert = sc.certify(
            original,
            network,
            heldout,
            delta=delta,
            eps=errors or (),
            beta=beta,
            labels=labels,
            task=task,
            range=range,
            threshold=threshold,
            plan=plan,
            layers=layers,
            chosen_from=chosen_from,
            used=used if isinstance(used, str) else None,
            example=example,
        )
    unknown = [] if isinstance(used, str) else ["the file does not name its calibration samples, so none were refused"]
    head: dict[str, Any] = {"small": str(small), "model": model, "data": heldout.origin}
    plain = json.loads(cert.to_json())
    screen.show_table(
        head | plain,
        plain["statements"],
        *heading(str(small), f"compared with {model}, on {heldout.origin}"),
        Text(str(cert)),
        *paragraphs("Note: ", unknown),
    )
