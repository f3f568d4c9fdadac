"""How each method divides a budget among the groups of a network, and the errors of the layers (Figure 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from secateur.certificates.certify import certify
from secateur.channels.graph import ChannelGraph
from secateur.experiments.cascade import Parts, calibration, load_original, train_original
from secateur.experiments.lock import only_run
from secateur.experiments.protocol import protocol
from secateur.experiments.recipe import Recipe
from secateur.experiments.sweep import prepare
from secateur.network.modules import owner
from secateur.pruning.prune import prune
from secateur.pruning.result import Pruned
from secateur.report.charts import Axis, Chart, Series
from secateur.reproduction.render import method_name
from secateur.storage.files import read_json, write_json
from secateur.tracing.trace import trace

KEPT = "50%"  # of the parameters
HELDOUT, DELTA, BETA = 256, 1e-3, 0.05
FILE = "allocation.json"


def measure(
    recipe: Recipe, methods: Sequence[str], folder: Path, data_root: Path | None, *, progress: bool = False
) -> dict[str, Any]:
    """Return the allocation of each method, measured once and stored in the folder of the run."""
    path = folder / FILE
    if path.is_file():
        return dict(read_json(path))
    with only_run(folder):
        prepare(recipe, folder, resume=True)
        data = Parts.of(recipe, data_root)
        train_original(recipe, 0, folder, data, progress=progress)
        model = load_original(recipe, 0, folder)
        batches = calibration(data.train, recipe.prune.samples, recipe.seed)
        fresh = [data.validation.inputs(part) for part in torch.arange(min(HELDOUT, len(data.validation))).split(64)]
        graph = trace(model, batches[0][0][:1])
        found: dict[str, Any] = {"recipe": recipe.name, "kept": KEPT, "methods": {}}
        for method in methods:
            settings = replace(recipe.settings(method), seed=recipe.seed, samples=None)
            res = prune(model, batches, {"params": KEPT}, **vars(settings))
            certificate = certify(
                model, res.model, fresh, delta=DELTA, beta=BETA, labels=False, plan=res.plan, layers=True,
                used=res.fingerprints,
            )  # fmt: skip
            layers = {one.layer: one.bound for one in certificate.statements if one.kind == "layer"}
            found["methods"][method] = {
                "protocol": protocol(recipe, method),
                "groups": _groups(res, graph, layers),
                "certified": certificate["error"].bound,
            }
        write_json(path, found)
    return found


def _groups(res: Pruned, graph: ChannelGraph, layers: Mapping[str | None, float | None]) -> list[dict[str, Any]]:
    """Return the figures of every group; certified is the largest error of the layers that consume it."""
    found = []
    for row in res.rows:
        bounds = [layers.get(owner(slot.parameter)) for slot in graph[row.name].consumes]
        known = [bound for bound in bounds if bound is not None]
        found.append(
            {
                "group": row.name,
                "before": row.before,
                "after": row.after,
                "mass": _known(row.mass),
                "eps": _known(row.eps),
                "dropped": _known(row.dropped),
                "certified": max(known) if known else None,
            }
        )
    return found


def table(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row for each group and method."""
    return [
        {
            "method": method_name(method),
            "group": row["group"],
            "before": row["before"],
            "after": row["after"],
            "kept": round(row["after"] / row["before"], 4),
            "sensitivity mass": row["mass"],
            "a-priori eps": row["eps"],
            "a-priori dropped": row["dropped"],
            "certified eps": row["certified"],
            "protocol": f"{found['recipe']}, cut to {found['kept']} of the parameters, not retrained",
        }
        for method, one in found["methods"].items()
        for row in one["groups"]
    ]


def charts(name: str, label: str, found: Mapping[str, Any]) -> list[Chart]:
    """Return the units kept in each group by each method, the errors by theory and certified, and sensitivities."""
    bars, errors = list[Series](), list[Series]()
    for style, (method, one) in enumerate(found["methods"].items()):
        groups = [row["group"] for row in one["groups"]]
        kept = [row["after"] / row["before"] for row in one["groups"]]
        bars.append(Series(method_name(method), groups, kept, style=style))
        for kind in ("eps", "certified"):
            values = [row[kind] or None for row in one["groups"]]  # 0: nothing was cut, and the scale is logarithmic
            if any(value is not None for value in values):
                words = "certified" if kind == "certified" else "a priori"
                errors.append(Series(f"{method_name(method)}, {words}", groups, values, style=len(errors)))
    x = Axis("group", scale="category")
    kept_chart = Chart(
        f"{name}-kept", f"{label}: units kept in each group", x, Axis("units kept", percent=True), tuple(bars)
    )
    scale = Axis("relative error of the layer", scale="log")
    errors_chart = Chart(f"{name}-errors", f"{label}: errors of the layers", x, scale, tuple(errors))
    own = next((one["groups"] for one in found["methods"].values() if one["groups"][0]["mass"] is not None), None)
    if own is None:
        return [kept_chart, errors_chart]
    means = [row["mass"] / row["before"] for row in own]
    line = (Series("mean over the units", [row["group"] for row in own], means),)
    sensitivities = Chart(f"{name}-sensitivities", f"{label}: sensitivities", x, Axis("sensitivity"), line)
    return [kept_chart, errors_chart, sensitivities]


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
