"""`secateur theory`: what theory alone guarantees about a smaller network, beside what held-out data certify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import secateur as sc
from secateur.cli import options
from secateur.cli.inputs import Reading, original_of
from secateur.cli.options import CERTIFICATE, DATA, MODELS, SOURCES, argument, option
from secateur.cli.screen import TableScreen, heading
from secateur.network.examples import revive
from secateur.pruning.settings import CERTIFICATE_DELTA
from secateur.storage.checkpoint import read_info, read_plan
from secateur.zoo.names import build

READING = Reading(samples=500, batch=128)


def theory(
    *,
    small: Annotated[Path, argument("SMALL", "A network pruned by pfp, a file that secateur prune saved.")],
    data: Annotated[str, option(DATA, "SOURCE", f"Held-out data that nothing has seen: {SOURCES}.")],
    model: Annotated[
        str | None, option(DATA, "MODEL", f"The original: {MODELS}.", show_default="the one that SMALL names")
    ] = None,
    weights: options.Weights = None,
    reading: Reading = READING,
    eps: Annotated[float, option(CERTIFICATE, "E", "Error of the output for which sizes are asked.")] = 0.5,
    beta: Annotated[float, option(CERTIFICATE, "P", "Share of inputs that may exceed the bounds.")] = 0.05,
    delta: Annotated[float, option(CERTIFICATE, "P", "Probability that a statement is false.")] = CERTIFICATE_DELTA,
    screen: TableScreen,
) -> None:
    """Show the main theorem, the propagated error bound and the certified error of SMALL."""
    info, plan = read_info(small), read_plan(small)
    model = model or original_of(small)
    example = revive(plan.example)
    with screen.status(f"building {model}"):
        original = build(model, weights)
        network = sc.load(small, original)
    with screen.status(f"reading {data}"):
        heldout = reading.read_unseen(data, example)
    with screen.status(f"following errors through {model} on {heldout.samples:,} samples"):
        found = sc.theory(
            original, info, heldout, eps=eps, beta=beta, delta=delta, small=network, plan=plan, example=example
        )
    head: dict[str, Any] = {"small": str(small), "model": model, "data": heldout.origin}
    plain = found.as_dict()
    title = heading(str(small), f"cut from {model}, on {heldout.origin}")
    screen.show_table(head | plain, plain["layers"], *title, found.table())
