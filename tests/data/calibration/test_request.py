"""Arguments of `read_batches`: sources, shapes and normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secateur.data.calibration import read_batches
from secateur.errors import UsageError
from support.calibration_cases import SHAPE, refusal


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"mean": [1, 2], "std": 1}, "mean has 2 numbers, the input has 3 channels"),
        ({"mean": 0, "std": [1, 2, 3, 4]}, "std has 4 numbers"),
        ({"mean": 0}, "belong together"),
        ({"std": 1}, "belong together"),
        ({"mean": 0, "std": 0}, "std is [0.0]"),
        ({"mean": float("nan"), "std": 1}, "mean is [nan]"),
        ({"samples": 0}, "0 samples"),
        ({"batch": 0}, "batches of 0"),
        ({"shape": ()}, "no size besides the batch"),
    ],
)
def test_invalid_requests_are_refused(tmp_path: Path, more: dict[str, Any], part: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros((10, *SHAPE)))
    assert part in refusal(tmp_path / "x.npy", UsageError, **more)


@pytest.mark.parametrize("source", ["", "nowhere", "imagenet:val", "embedded:faces", "data.csv", "x.txt:make", ":"])
def test_an_unknown_source_is_refused_with_the_known_forms(source: str) -> None:
    text = refusal(source, UsageError)
    assert all(form in text for form in ("folder of images", ".npz", "path/to/file.py:factory", "embedded:digits"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "x.npy", UsageError)


def test_the_embedded_digits() -> None:
    data = read_batches("embedded:digits", shape=(1, 28, 28), samples=50, batch=20)
    assert [tuple(x.shape) for x, _ in data] == [(20, 1, 28, 28), (20, 1, 28, 28), (10, 1, 28, 28)]
    assert (data.samples, data.labelled, data.origin) == (50, True, "embedded:digits")
    assert "has shape (1, 28, 28), the network's input has (3, 32, 32)" in refusal("embedded:digits", shape=(3, 32, 32))


@pytest.mark.parametrize(("total", "left"), [(10, 0), (12, 2), (40, 5)])
def test_samples_set_aside_leave_the_others_as_they_are(tmp_path: Path, total: int, left: int) -> None:
    numbers = np.arange(total, dtype=np.float32)
    np.savez(tmp_path / "x.npz", x=np.broadcast_to(numbers[:, None, None, None], (total, *SHAPE)), y=numbers)
    plain, data = (read_batches(str(tmp_path / "x.npz"), shape=SHAPE, samples=10, batch=4, unused=n) for n in (0, 5))

    def labels(batches: list[Any]) -> list[int]:
        return [int(y) for x, part in batches for y in part if (x[part == y] == y).all()]

    assert labels(data.batches) == labels(plain.batches) and len(labels(data.batches)) == data.samples == 10
    assert len(labels(data.unused)) == left and not set(labels(data.unused)) & set(labels(data.batches))
    assert [len(y) for _, y in data.unused] == [n for n in (4, 1) if left == 5] + [2] * (left == 2)
    assert plain.unused == []
