"""Latency tables: fitted, read, written, refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from secateur.errors import SecateurError, UsageError
from secateur.profiling.table import LatencyTable, Segment

SIZES = [(o, i) for o in (64, 48, 16) for i in (32, 16, 8)]


def table(multiple: int = 1) -> LatencyTable:
    segments = (Segment("a.weight", (64, 32), 1.0, 0.1, 0.2, 0.01), Segment("b.weight", (10, 64), 0.5, 0.0, 0.0, 0.002))
    shapes = {"a.weight": (64, 32, 3, 3), "b.weight": (10, 64)}
    return LatencyTable(segments, 40.0, multiple, "Net", shapes, [[1, 3, 8, 8]], machine={"cpu": "x", "torch": "2"})


def test_a_fit_finds_the_times_it_was_made_from() -> None:
    true = Segment("w", (64, 32), 0.3, 0.02, 0.0, 0.004)
    found = Segment.fit("w", (64, 32), SIZES, [true.ms(*sides) for sides in SIZES])
    for sides in [*SIZES, (7, 3)]:
        assert found.ms(*sides) == pytest.approx(true.ms(*sides), rel=1e-6)


def test_a_fit_of_noisy_times_never_falls_with_more_channels() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        found = Segment.fit("w", (64, 32), SIZES, rng.uniform(0.5, 2.0, len(SIZES)).tolist())
        assert min(found.constant, found.per_output, found.per_input, found.per_product) >= 0


def test_the_part_is_the_sum_over_the_layers() -> None:
    one = table()
    assert one.part({}) == 1.0
    whole = (1 + 6.4 + 6.4 + 0.01 * 64 * 32) + (0.5 + 0.002 * 10 * 64)
    cut = (1 + 3.2 + 6.4 + 0.01 * 32 * 32) + (0.5 + 0.002 * 10 * 32)  # written out: a shrinks to 32, which b consumes
    assert one.part({"a.weight": (32, 32), "b.weight": (10, 32)}) == pytest.approx(cut / whole)


def test_within_a_multiple_the_time_is_the_same() -> None:
    one = table(multiple=16)
    parts = {n: one.part({"a.weight": (n, 32)}) for n in (33, 40, 48, 49, 64)}
    assert parts[33] == parts[40] == parts[48] < parts[49] == parts[64] == 1.0


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table(8).save(tmp_path / "t.json")
    assert LatencyTable.load(tmp_path / "t.json") == table(8)
    assert "40 ms in torch, 1 thread on x" in str(table())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data.pop("latency_table"), "no latency table"),
        (lambda data: data.update(latency_table=99), "schema 99"),
        (lambda data: data["segments"][0].pop("constant"), "damaged"),
        (lambda data: data["segments"][0].update(constant=-1.0), "damaged"),
        (lambda data: data["segments"][0].update(constant=float("nan")), "damaged"),
        (lambda data: data.update(segments=[]), "damaged"),
        (lambda data: data.update(engine="abacus"), "damaged"),
        (lambda data: data.update(original_ms=0), "damaged"),
        (lambda data: data.update(multiple=0), "damaged"),
        (lambda data: data.update(more=1), "damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: object, text: str) -> None:
    path = tmp_path / "t.json"
    table().save(path)
    data = json.loads(path.read_text())
    change(data)  # type: ignore[operator]
    path.write_text(json.dumps(data))
    with pytest.raises(SecateurError, match=text):
        LatencyTable.load(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"'])
def test_what_is_no_table_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(SecateurError, match="is no latency table") as caught:
        LatencyTable.load(tmp_path / "t.json")
    assert "secateur profile" in str(caught.value)


def test_a_table_of_another_network_is_refused() -> None:
    table().check("Net", table().shapes)
    for other in (
        {},
        {"a.weight": (64, 32, 3, 3)},
        table().shapes | {"a.weight": (63, 32, 3, 3)},
        table().shapes | {"c": (1,)},
    ):
        with pytest.raises(UsageError, match="for another network"):
            table().check("Other", other)
