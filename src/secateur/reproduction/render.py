"""Tables and charts of an item from its results; every row says by which protocol it was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from secateur.experiments.protocol import learning_rate_decay, targets
from secateur.experiments.recipe import Recipe
from secateur.report.charts import Axis, Chart, Series
from secateur.reproduction.items import Item, Published
from secateur.reproduction.points import Point, Results, selected

NAMES = {
    "pfp": "PFP",
    "pfp+inputs": "PFP, inputs too",
    "residual": "residual (ours)",
    "residual+inputs": "residual (ours), inputs too",
    "ft": "FT",
    "softnet": "SoftNet",
    "thinet": "ThiNet",
}
STAGES = {"pruned": "before retraining", "retrained": "after retraining"}


def method_name(method: str) -> str:
    """Return the name of a method in a table."""
    return NAMES.get(method, method)


def table(item: Item, found: Sequence[Results]) -> list[dict[str, Any]]:
    """Return the rows of a table: for each network, method and selection ours beside the published one."""
    rows = []
    for one in found:
        methods = [name for name in one.methods if not item.methods or name in item.methods]
        rows += [_row(item, one, method, row) for method in methods for row in _rows(item, one.label)]
    return rows + list(_not_run(item, found))


def _rows(item: Item, label: str) -> list[str]:
    """Return the selections for a network: those that the paper has for it, else all of the item."""
    own = [row for row in item.rows if any((one.network, one.row) == (label, row) for one in item.published)]
    return own or list(item.rows)


def _row(item: Item, found: Results, method: str, row: str) -> dict[str, Any]:
    point = selected(found, method, row)
    assert point is not None
    paper = next((p for p in item.published if (p.network, p.method, p.row) == (found.label, method, row)), None)
    top5 = point.change5 if any(p.original5 is not None for p in item.published) else None
    return _cells(found.label, method_name(method), row) | {
        "original": round(point.error - point.change, 2 if found.unit else 6),
        "change": round(point.change, 2 if found.unit else 6),
        "sd": round(point.spread, 2 if found.unit else 6),
        "PR": round(100 * point.pr, 2),
        "FR": round(100 * point.fr, 2),
        **({} if top5 is None else {"top-5 change": round(top5, 2)}),
        **_paper(paper),
        "PR - paper": None if paper is None or paper.pr is None else round(100 * point.pr - paper.pr, 2),
        "networks": point.networks,
        "protocol": found.protocol,
    }


def _not_run(item: Item, found: Sequence[Results]) -> Iterator[dict[str, Any]]:
    """Yield the published rows that have no run of ours beside them, each with its source."""
    ours = {(one.label, method) for one in found for method in one.methods}
    for paper in item.published:
        if (paper.network, paper.method) not in ours:
            source = paper.source or "the paper; not run here"
            name = paper.method if paper.source else method_name(paper.method)
            yield _cells(paper.network, name, paper.row if not paper.source else "as published") | {
                **_paper(paper),
                "protocol": f"literature: {source}",
            }


def _cells(network: str, method: str, row: str) -> dict[str, Any]:
    return {"network": network, "method": method, "row": row}


def _paper(paper: Published | None) -> dict[str, Any]:
    if paper is None:
        return {"paper: original": None, "paper: change": None, "paper: PR": None, "paper: FR": None}
    found = {
        "paper: original": paper.original,
        "paper: change": paper.change,
        "paper: PR": paper.pr,
        "paper: FR": paper.fr,
    }
    return found | ({} if paper.change5 is None else {"paper: top-5 change": paper.change5})


def curves(item: Item, found: Sequence[Results]) -> list[Chart]:
    """Return a chart for each network and stage: accuracy, or loss, over the parameters retained."""
    return [_chart(item, one, stage) for one in found for stage in item.stage if one.points]


def _chart(item: Item, found: Results, stage: str) -> Chart:
    series = []
    methods = [name for name in found.methods if not item.methods or name in item.methods]
    for style, method in enumerate(methods):
        points = sorted((point for point in found.points if point.method == method), key=lambda point: -point.pr)
        y = [_good(found, _value(point, stage)) for point in points]
        spreads = [point.pruned_spread if stage == "pruned" else point.spread for point in points]
        band = any(point.networks > 1 for point in points)
        series.append(
            Series(
                method_name(method),
                [1 - point.pr for point in points],
                y,
                low=[value - spread for value, spread in zip(y, spreads)] if band else None,
                high=[value + spread for value, spread in zip(y, spreads)] if band else None,
                style=style,
            )
        )
    low = min((x for one in series for x in one.x), default=0.0)
    level = _good(found, found.original)
    series.append(Series("original", [low, 1.0], [level, level], "level"))
    what = "test accuracy" if found.unit else "test loss"
    return Chart(
        f"{item.name}-{found.label.lower().replace(' ', '-')}-{stage}",
        f"{found.label}, {STAGES[stage]}",
        Axis("parameters retained", percent=True),
        Axis(what, suffix=found.unit),
        tuple(series),
        f"{found.protocol}. Bands: one standard deviation." if found.networks > 1 else found.protocol,
    )


def points_table(item: Item, found: Sequence[Results]) -> list[dict[str, Any]]:
    """Return the points behind curves, one row each."""
    return [
        {
            "network": one.label,
            "method": method_name(point.method),
            "target": point.target,
            "PR": round(100 * point.pr, 2),
            "FR": round(100 * point.fr, 2),
            "original": round(one.original, 6),
            "before retraining": round(point.pruned, 6),
            "after retraining": round(point.error, 6),
            "sd": round(point.spread, 6),
            **({} if point.ms is None else {"ms, batch 1": round(point.ms, 3), "latency kept": _part(point.latency)}),
            "networks": point.networks,
            "protocol": one.protocol,
        }
        for one in found
        for point in one.points
        if not item.methods or point.method in item.methods
    ]


def settings_table(recipes: Sequence[tuple[str, Recipe]]) -> list[dict[str, Any]]:
    """Return the hyper-parameters of recipes, one column each, as the paper's appendix has them."""
    rows: list[dict[str, Any]] = []
    for name, values in (
        ("loss", [one.train.loss for _, one in recipes]),
        ("optimizer", [one.train.optimizer for _, one in recipes]),
        ("epochs", [str(one.train.epochs) for _, one in recipes]),
        ("batch size", [str(one.batch) for _, one in recipes]),
        ("learning rate", [f"{one.train.lr:g}" for _, one in recipes]),
        ("decay", [learning_rate_decay(one.train) or "-" for _, one in recipes]),
        ("momentum", [f"{one.train.momentum:g}" for _, one in recipes]),
        ("Nesterov", ["yes" if one.train.nesterov else "no" for _, one in recipes]),
        ("weight decay", [f"{one.train.weight_decay:g}" for _, one in recipes]),
        ("delta", [f"{one.prune.delta:g}" for _, one in recipes]),
        ("targets", [targets(one) if one.cascade else "one shot" for _, one in recipes]),
        ("retraining epochs", [str(one.retrain.epochs) for _, one in recipes]),
        ("retraining decay", [learning_rate_decay(one.retrain) or "-" for _, one in recipes]),
    ):
        rows.append({"setting": name, **dict(zip((label for label, _ in recipes), values, strict=True))})
    return rows


def _part(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _value(point: Point, stage: str) -> float:
    return point.pruned if stage == "pruned" else point.error


def _good(found: Results, value: float) -> float:
    """Return the accuracy for an error in percent; a loss as it is."""
    return 100 - value if found.unit else value
