"""The log has a complete line for every epoch; TensorBoard is used only on request."""

from __future__ import annotations

import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import secateur as sc
from secateur.errors import UsageError
from secateur.training.journal import Bar, Journal
from support.training_cases import Epochs, network


def record(epoch: int, loss: float = 0.5) -> dict[str, Any]:
    return {"epoch": epoch, "lr": 0.1, "loss": loss, "top1": None, "validation": {"samples": 3, "loss": 1.5}}


def epochs(path: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()]


def test_lines_are_appended(tmp_path: Path) -> None:
    for epoch in (1, 2):
        Journal(tmp_path / "log").write(record(epoch))
    assert epochs(tmp_path / "log") == [1, 2]


def test_nan_is_null(tmp_path: Path) -> None:
    Journal(tmp_path / "log").write(record(1, math.nan))
    assert json.loads((tmp_path / "log").read_text())["loss"] is None


@pytest.mark.parametrize("left", ["", '{"epoch": 1}\n', '{"epoch": 1}\n{"epo', '{"epoch": 1}\n{"epoch": 2}\n'])
def test_lines_that_a_killed_run_did_not_write_are_added(tmp_path: Path, left: str) -> None:
    (tmp_path / "log").write_text(left)
    journal = Journal(tmp_path / "log")
    journal.catch_up([record(1), record(2)])
    journal.write(record(3))
    assert epochs(tmp_path / "log") == [1, 2, 3]


def test_a_removed_log_is_written_again(tmp_path: Path) -> None:
    Journal(tmp_path / "log").catch_up([record(1), record(2)])
    assert epochs(tmp_path / "log") == [1, 2]


def test_another_file_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("dear diary\n")
    with pytest.raises(sc.SecateurError, match="is not the log of a training run"):
        Journal(tmp_path / "log").catch_up([record(1)])
    assert (tmp_path / "log").read_text() == "dear diary\n"


def test_a_folder_gets_a_log_file(tmp_path: Path) -> None:
    Journal(tmp_path).write(record(1))
    assert epochs(tmp_path / "log.jsonl") == [1]
    with pytest.raises(UsageError, match="no folder"):
        Journal(tmp_path / "none" / "log")
    Journal(None).write(record(1))


def test_a_missing_tensorboard_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(sc.SecateurError, match=r"not installed\n.*pip install tensorboard"):
        Journal(tmp_path, tensorboard=True)
    with pytest.raises(UsageError, match="no folder"):
        Journal(None, tensorboard=True)


def test_the_curves_of_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            calls.append(folder)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append((name, value, step))

        def flush(self) -> None: ...

        def close(self) -> None:
            calls.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    journal = Journal(tmp_path / "run", tensorboard=True)
    journal.write(record(4))
    journal.close()
    curves = [("lr", 0.1, 4), ("loss", 0.5, 4), ("validation/loss", 1.5, 4)]
    assert calls == [str(tmp_path / "run"), *curves, "closed"]
    assert epochs(tmp_path / "run" / "log.jsonl") == [4]


def test_a_bar_without_a_known_length(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar(True, 3, 1, None) as bar:
        bar.show(1, 5, 0.25, 1234.0)
    shown = capsys.readouterr().err
    assert "epoch 2/3" in shown and "loss 0.2500" in shown and "1,234 images/s" in shown


def test_tensorboard_reads_the_curves_of_a_run(tmp_path: Path) -> None:
    """With the real TensorBoard, where it is installed."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    batches = Epochs()
    result = sc.train(
        network(), batches, sc.Training(epochs=3), validation=list(batches.epoch(9)), log=tmp_path, tensorboard=True
    )
    curves = reader.EventAccumulator(str(tmp_path))
    curves.Reload()
    assert {"loss", "top1", "lr", "validation/top1"} <= set(curves.Tags()["scalars"])
    assert [(one.step, one.value) for one in curves.Scalars("loss")] == [
        (epoch.epoch, pytest.approx(epoch.loss)) for epoch in result.epochs
    ]
