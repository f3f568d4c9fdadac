"""What the page shows of a pruned network: sizes, groups, the network itself, repair, certificate, settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from secateur.errors import SecateurError
from secateur.report.blocks import Block, Column, Facts, Network, Plot, Result, Table, Words, sections
from secateur.report.certificate import statements
from secateur.report.charts import Axis, Chart, Series, finite
from secateur.report.groups import COUNT_NAMES, groups, kept_parts
from secateur.report.layout import placed
from secateur.tables import magnitude, number, percent

OPTIONS = ("method", "select", "allocation", "sensitivity", "delta", "seed", "samples", "steps")


def pruned(name: str, info: Mapping[str, Any], planned: Sequence[Mapping[str, Any]] = ()) -> Result:
    """Return the sections about a pruned network.

    Args:
        name: of the file, or what else the reader calls it.
        info: the `info` of a saved file or of a result, which may be incomplete.
        planned: the groups of its plan as plain data, for a file without figures about them.
    """
    rows = _rows(info, planned)
    repair = info.get("repair") if isinstance(info.get("repair"), Mapping) else None
    agreement = info.get("agreement") if isinstance(info.get("agreement"), Mapping) else {}
    return Result(
        kind="pruned network",
        name=name,
        key=_key(info, agreement or {}),
        sections=sections(
            ("summary", "Summary", [_summary(info, agreement or {}), _missing(info, rows), *_notes(info)]),
            ("groups", "Groups", groups(info, rows)),
            ("network", "Network", [_network(info)]),
            ("repair", "Repair", _repair(repair or {})),
            ("certificate", "Certificate", _certificate(info)),
            ("settings", "Settings", [_settings(info), _again(name, info)]),
        ),
        shared=(kept_parts(name, rows),),
    )


def part_removed(info: Mapping[str, Any], what: str) -> float | None:
    """Return the part of the parameters or MACs that was removed, None if the file does not say."""
    before, after = (finite(_inner(info, time, what)) for time in ("before", "after"))
    return None if before is None or after is None or not before else 1 - after / before


def _inner(info: Mapping[str, Any], *keys: str) -> Any:
    found: Any = info
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _listed(info: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = info.get(key)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _key(info: Mapping[str, Any], agreement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures for the overview of several results."""
    return {
        "method": info.get("method"),
        "params": _inner(info, "after", "params"),
        "params_removed": part_removed(info, "params"),
        "macs": _inner(info, "after", "macs"),
        "macs_removed": part_removed(info, "macs"),
        "same_answer": agreement.get("share"),
        "divergence": agreement.get("divergence"),
        "accuracy": agreement.get("accuracy"),
    }


def _rows(info: Mapping[str, Any], planned: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return all groups, prunable and kept, as rows of the table."""
    found = _listed(info, "groups") or list(planned)
    whole = {what: finite(_inner(info, "before", what)) for what in COUNT_NAMES}
    rows: list[dict[str, Any]] = []
    for group in found:
        before, after = finite(group.get("before")), finite(group.get("after"))
        row = {**group, "name": str(group.get("name")), "status": "cut" if before != after else "whole"}
        row["kept"] = after / before if before and after is not None else None
        for what, total in whole.items():
            saved, spent = finite(group.get(f"{what}_saved")), finite(group.get(what))
            row[f"{what}_saved_part"] = saved / total if total and saved is not None else None
            row[f"{what}_part"] = spent / total if total and spent is not None else None
        rows.append(row)
    for group in _listed(info, "kept"):
        reasons = _listed(group, "reasons")
        channels = finite(group.get("channels"))
        rows.append(
            {
                "name": str(group.get("name")),
                "before": channels,
                "after": channels,
                "kept": 1.0,
                "status": "kept",
                "reason": "; ".join(dict.fromkeys(str(one.get("text")) for one in reasons)),
                "source": "; ".join(dict.fromkeys(filter(None, map(_location, reasons)))) or None,
            }
        )
    return rows


def _location(reason: Mapping[str, Any]) -> str:
    return ", ".join(str(reason[key]) for key in ("op", "module", "source") if reason.get(key))


def _summary(info: Mapping[str, Any], agreement: Mapping[str, Any]) -> Block:
    facts = []
    for what, title in COUNT_NAMES.items():
        before, after = (finite(_inner(info, time, what)) for time in ("before", "after"))
        if before is not None and after is not None:
            removed = percent(part_removed(info, what))
            facts.append((title, f"{magnitude(before)} before, {magnitude(after)} after: {removed} removed"))
    if (share := finite(agreement.get("share"))) is not None:
        low, high = (percent(finite(agreement.get(end))) for end in ("low", "high"))
        samples = f"{agreement.get('samples', 0):,} samples that pruning has not used"
        facts.append(("same answer", f"{percent(share)} of {samples} (95% interval {low} to {high})"))
    if (divergence := finite(agreement.get("divergence"))) is not None:
        facts.append(("output divergence", number(divergence)))
    if (accuracy := finite(agreement.get("accuracy"))) is not None:
        original = percent(finite(agreement.get("original_accuracy")))
        facts.append(("accuracy on these samples", f"{percent(accuracy)}, of the original {original}"))
    if (verification := finite(info.get("verification"))) is not None:
        facts.append(("verified", f"cut and masked network differ by {verification:.0e} (relative)"))
    if isinstance(info.get("method"), str):
        facts.append(("method", str(info["method"])))
    return Facts("sizes", "", tuple(facts))


def _missing(info: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Block | None:
    """Say what the file does not hold."""
    wanted = {
        "before": "sizes before and after",
        "groups": "figures of each group",
        "layers": "the layers and how they are connected",
        "settings": "settings",
    }
    missing = [words for key, words in wanted.items() if not info.get(key)]
    if not missing:
        return None
    text = f"This file does not hold {', '.join(missing)}: it was saved without them, or by an earlier version."
    return Words("missing", "", (text if rows else f"{text} It has no groups either.",), warning=True)


def _notes(info: Mapping[str, Any]) -> list[Block]:
    notes = info.get("notes")
    texts = tuple(str(note) for note in notes) if isinstance(notes, list) else ()
    return [Words("notes", "Notes", texts, listed=True)] if texts else []


def _network(info: Mapping[str, Any]) -> Block | None:
    layers = _listed(info, "layers")
    if not layers:
        return None
    counts = [finite(one.get(key)) for one in layers for key in ("before", "after")]
    valid = all(
        isinstance(one.get("inputs"), list)
        and all(isinstance(source, int) and 0 <= source < place for source in one["inputs"])
        for place, one in enumerate(layers)
    )
    if not valid or None in counts:
        return Words("network", "", ("The layers in this file are damaged and cannot be drawn.",), warning=True)
    caption = "Each bar is a layer: its width is the number of channels before, the filled part those that remain."
    return Network("network", "Layers and connections", placed(layers), caption)


def _repair(repair: Mapping[str, Any]) -> list[Block]:
    layers = _listed(repair, "layers")
    if not layers:
        return []
    rows = tuple(
        {
            "name": str(one.get("name")),
            "before": finite(one.get("before")),
            "after": finite(one.get("after")),
            "refitted": (finite(one.get("outputs")) or 0) - (finite(one.get("kept")) or 0),
            "outputs": finite(one.get("outputs")),
        }
        for one in layers
    )
    before, after = finite(repair.get("before")), finite(repair.get("after"))
    text = (
        f"Output divergence {number(after)} after the repair, {number(before)} without it, on samples that took part "
        "in the fits; on fresh samples it is larger."
    )
    table = Table(
        "repair",
        "Every layer",
        (
            Column("name", "layer", "code"),
            Column("before", "error before", about="mean square error over mean square of the target"),
            Column("after", "error after"),
            Column("refitted", "outputs refitted", "count"),
            Column("outputs", "outputs", "count"),
        ),
        rows,
        caption="Mean square error over the mean square of the target, on held-out samples.",
    )
    return [Words("divergence", "", (text,)), Plot.of(repair_chart(rows)), table]


def repair_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the error of every layer before and after the repair."""
    names = [row["name"] for row in rows]
    hover = [{"layer": row["name"], "before": row["before"], "after": row["after"]} for row in rows]
    return Chart(
        "repair",
        "Error of every layer, before and after the repair",
        Axis("layer", "category"),
        Axis("relative squared error", "log"),
        tuple(
            Series(key, names, [row[key] or None for row in rows], hover=hover, style=style)
            for style, key in enumerate(("before", "after"))
        ),
    )


def _certificate(info: Mapping[str, Any]) -> Sequence[Block]:
    found = info.get("certificate")
    try:
        return statements(found) if isinstance(found, Mapping) else []
    except SecateurError as error:
        return [Words("damaged", "", (f"The certificate in this file cannot be read: {error}",), warning=True)]


def _settings(info: Mapping[str, Any]) -> Block | None:
    facts: list[tuple[str, str]] = []
    for key in ("architecture", "model", "weights", "data", "input", "budget", "allocation", "samples", "level"):
        if info.get(key) not in (None, "", {}):
            facts.append((key, _text(info[key])))
    for group in ("settings", "versions"):
        found = info.get(group)
        facts += [(f"{group}: {key}", _text(value)) for key, value in found.items()] if isinstance(found, dict) else []
    return Facts("settings", "", tuple(facts)) if facts else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _again(name: str, info: Mapping[str, Any]) -> Block | None:
    """Return the command that makes the network again, as far as the file says."""
    settings, budget = info.get("settings"), info.get("budget")
    if not isinstance(settings, Mapping) or not isinstance(budget, Mapping) or not budget:
        return None
    known = {key: settings[key] for key in OPTIONS if settings.get(key) is not None}
    if isinstance(info.get("samples"), int):
        known["samples"] = info["samples"]
    if known.get("method") != "pfp":
        known = {key: value for key, value in known.items() if key not in ("sensitivity", "delta", "select")}
    call = ", ".join(["model", "data", f"budget={dict(budget)!r}", *(f"{k}={v!r}" for k, v in known.items())])
    facts = [("in Python", f"res = sc.prune({call})")]
    if isinstance(info.get("model"), str) and isinstance(info.get("data"), str):
        words = ["secateur", "prune", info["model"], "--data", info["data"]]
        words += ["--weights", str(info["weights"])] if info.get("weights") else []
        limits = {"latency_ms": "latency"}
        words += [word for key, value in budget.items() for word in (f"--{limits.get(key, key)}", str(value))]
        words += [word for key, value in known.items() for word in (f"--{key}", str(value))]
        facts.append(("on the command line", shlex.join([*words, "--out", name])))
    return Facts("again", "To make it again", tuple(facts))
