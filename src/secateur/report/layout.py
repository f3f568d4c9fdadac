"""Where the layers of a network are drawn: one row per depth, branches beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def placed(layers: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the layers with a row (longest path from an input) and a lane (place within the row, around 0).

    >>> placed([{"name": "a", "inputs": []}, {"name": "b", "inputs": [0]}])[1]["row"]
    1

    The layers of a row stand in the order of the mean lane of their inputs, so that few edges cross.
    """
    rows: list[int] = []
    for layer in layers:
        rows.append(1 + max((rows[source] for source in layer["inputs"]), default=-1))
    lanes = [0.0] * len(layers)
    for row in range(max(rows, default=-1) + 1):
        members = [number for number, one in enumerate(rows) if one == row]
        wanted = {number: _mean([lanes[source] for source in layers[number]["inputs"]]) for number in members}
        members.sort(key=lambda number: wanted[number])
        for place, number in enumerate(members):
            lanes[number] = place - (len(members) - 1) / 2
    return tuple({**layer, "row": row, "lane": lane} for layer, row, lane in zip(layers, rows, lanes, strict=True))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
