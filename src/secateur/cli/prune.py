"""`secateur prune`: make a network smaller until it fits a budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

import secateur as sc
from secateur.cli import options
from secateur.cli.command import deprecated
from secateur.cli.inputs import DEFAULTS, Cutting, Subject, check_out, input_text, runs_code
from secateur.cli.options import ADVANCED, BUDGET, METHOD, OUTPUT, count, option
from secateur.cli.screen import TableScreen, heading, unwrapped
from secateur.errors import UsageError
from secateur.methods import METHODS
from secateur.methods.pfp.method import SELECTS, Select
from secateur.network.batches import with_labels
from secateur.network.processes import distributed
from secateur.pruning import budget as budgets
from secateur.pruning.agreement import UNUSED
from secateur.pruning.allocation import NAMES as ALLOCATIONS
from secateur.pruning.estimate import estimate
from secateur.pruning.prune import with_agreement
from secateur.pruning.settings import EFFORTS, Effort, PruneSettings
from secateur.storage.files import write_atomic
from secateur.tables import ROWS, paragraphs

EVERY = 10**9  # samples: all that there are


def prune(
    *,
    subject: Subject,
    params: Annotated[str | None, option(BUDGET, "LIMIT", "Parameters that may remain: 40%, 300k, 2.1M.")] = None,
    macs: Annotated[str | None, option(BUDGET, "LIMIT", "Multiply-accumulates that may remain: 50%, 2.1G.")] = None,
    latency: Annotated[str | None, option(BUDGET, "LIMIT", "Time of a forward pass on this machine: 50%, 8ms.")] = None,
    drop: Annotated[str | None, option(BUDGET, "LIMIT", "Accuracy that may be lost: 1%; needs --heldout.")] = None,
    heldout: Annotated[str | None, option(BUDGET, "SOURCE", "Labelled data for --drop that nothing has seen.")] = None,
    out: Annotated[Path | None, option(OUTPUT, "FILE", "File for the pruned network; without it, a preview.")] = None,
    force: options.Force = False,
    all: options.ShowAll = False,
    screen: TableScreen,
    method: Annotated[str, option(METHOD, "NAME", f"How channels are chosen: {', '.join(METHODS)}.")] = DEFAULTS.method,
    select: Annotated[
        Select | None, option(METHOD, "NAME", f"For pfp: {', '.join(SELECTS)}.", show_default="derand")
    ] = DEFAULTS.select,
    allocation: Annotated[
        str | None, option(METHOD, "NAME", f"Group sizes by {', '.join(ALLOCATIONS)}.", show_default="the method's own")
    ] = DEFAULTS.allocation,
    repair: Annotated[
        bool | None, option(METHOD, "", "Refit layers by least squares.", show_default="for residual")
    ] = DEFAULTS.repair,
    sensitivity: Annotated[str, option(METHOD, "KIND", "For pfp: max, mean, rms or q0.99.")] = DEFAULTS.sensitivity,
    eps: Annotated[
        float | None, option(ADVANCED, "E", "For pfp, as budget: relative error of every layer, between 0 and 1.")
    ] = None,
    output_eps: Annotated[
        float | None, option(ADVANCED, "E", "For pfp, as budget: relative error of the output, by the main theorem.")
    ] = None,
    delta: Annotated[float, option(ADVANCED, "P", "Failure probability of pfp's guarantee.")] = DEFAULTS.delta,
    certificate_delta: Annotated[
        float, option(ADVANCED, "P", "Failure probability of the certificate.")
    ] = DEFAULTS.certificate_delta,
    effort: Annotated[
        Effort, option(METHOD, "NAME", f"Time for a better network: {', '.join(EFFORTS)}.")
    ] = DEFAULTS.effort,
    steps: Annotated[int, count(ADVANCED, "Cut in N steps, measuring after each.")] = DEFAULTS.steps,
    latency_table: options.LatencyTableFile = DEFAULTS.latency_table,
    engine: options.TimedEngine = DEFAULTS.engine,
    profile: Annotated[
        Path | None, option(OUTPUT, "FILE", "Print the time of each stage, and write it to FILE as JSON.")
    ] = None,
    cutting: Cutting,
) -> None:
    """Prune MODEL until it fits a budget, and save it."""
    budget = _budget(params=params, macs=macs, latency=latency, drop=drop, eps=eps, output_eps=output_eps)
    if latency is None and (latency_table is not None or engine != DEFAULTS.engine):
        raise UsageError(
            "--latency-table and --engine belong to --latency", remedy="pass --latency 70%, or leave them out"
        )
    if (drop is None) != (heldout is None):
        raise UsageError("--drop and --heldout go together", remedy="pass both: --drop 1% --heldout val.npz")
    if drop is not None and delta != DEFAULTS.delta and method != "pfp":
        deprecated("--delta with --drop", "--certificate-delta")
        certificate_delta, delta = delta, DEFAULTS.delta
    settings = PruneSettings.among(locals() | vars(subject) | cutting.settings)
    for path in (out, profile):
        if path is not None:
            check_out(path, force)
    with distributed() as process:  # under torchrun, the first process prints and writes
        loaded = subject.load(screen, unused=UNUSED)
        network, example = loaded.network, loaded.example
        unseen = None if heldout is None else subject.read_unseen(heldout, example, EVERY)
        live = screen.live and process.first
        if live:  # the progress bars say the rest
            with screen.status("timing a forward pass"):
                expected = estimate(network, example, loaded.data.samples, settings)
            screen.log(f"tracing, measuring and cutting: {expected}")
        # The samples were drawn when the data was read; those of a scope are drawn when the whole model runs.
        drawn = None if not settings.scope else loaded.data.samples
        res = sc.prune(
            network,
            [*loaded.data, *loaded.data.unused] if settings.scope else loaded.data,
            budget,
            heldout=unseen and unseen.batches,
            example=example,
            progress=live,
            **vars(replace(settings, samples=drawn)),
        )
        if loaded.data.unused and not settings.scope:
            res = with_agreement(res, network, list(with_labels(loaded.data.unused, example=example)))
        times = None
        if latency is not None and latency_table is None and engine == "torch":
            with screen.status("timing both networks"):
                times = sc.latency(network, example), sc.latency(res.model, example)
        if not process.first:
            return
        head = loaded.head | {"budget": budget}
        if out is not None:
            sc.save(out, res, architecture=subject.model, info=head)
        if profile is not None:
            stages = json.dumps({"command": "prune", **head, "stages": res.profile}, indent=1)
            write_atomic(profile, stages + "\n")
        record: dict[str, Any] = head | res.info | {"notes": [*res.notes, *loaded.notes], "out": out and str(out)}
        if times:
            record["latency_ms"] = {"before": times[0].median_ms, "after": times[1].median_ms}
        screen.show_table(
            record,
            res.info["groups"],
            *heading(subject.model, f"{loaded.data.samples} samples of {loaded.data.origin}, {input_text(example)}"),
            res.table(rows=None if all else ROWS, times=times),
            *paragraphs("Note: ", loaded.notes),
            *(() if profile is None else ("", res.profile_table())),
            "",
            *_where(out, subject.model),
        )


def _budget(**limits: str | float | None) -> dict[str, object]:
    """Return the limits that were given, checked before anything takes time."""
    budget: dict[str, object] = {name: limit for name, limit in limits.items() if limit is not None}
    if not budget:
        remedy = "say what may remain: --params 40%, --macs 2.1G or --latency 8ms; or what may be lost: --drop 1%"
        raise UsageError("there is no budget", remedy=remedy)
    if "drop" in budget:
        budgets.parse_drop(budget)
    else:
        budgets.parse(budget)
    return budget


def _where(out: Path | None, model: str) -> list[Text]:
    if out is None:
        return [Text("Nothing was saved; --out FILE saves the network.")]
    build, argument = ("build the model and ", ", model") if runs_code(model) else ("", "")
    size = f"{out.stat().st_size / 1e3:,.0f} kB"
    return [
        unwrapped(f"Saved: {out} ({size}). To load it, {build}call"),
        unwrapped(f"  small = sc.load({str(out)!r}{argument})"),
    ]
