"""The demonstration runs, and its figures are the ones the package measures."""

from __future__ import annotations

import io

from rich.console import Console

from secateur.cli import demo
from secateur.embedded import digits, lenet5
from secateur.tables import magnitude


def test_demo() -> None:
    console = Console(file=io.StringIO(), width=80)
    found = demo.run(console, runs=3, trials=2)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80

    accuracy = found["accuracy"]
    assert found["after"]["params"] <= 0.05 * found["before"]["params"]
    assert found["repair"]["after"] < found["repair"]["before"]
    assert found["verification"] < 1e-5
    assert found["same_after_loading"]
    assert accuracy["before"] - accuracy["after"] < 0.02
    assert accuracy["after"] > max(accuracy["at_random"])

    words = " ".join(text.split())
    assert f"{accuracy['before']:.2%} before, {accuracy['after']:.2%} after" in words
    assert f"{sum(accuracy['at_random']) / 2:.2%} on average over 2 choices" in words
    assert f"by {found['verification']:.0e} (relative)" in words
    assert magnitude(found["after"]["params"]) in words
    assert "the same outputs, bit for bit" in words


def test_accuracy() -> None:
    images, labels = digits("test")
    right = sum(int(lenet5()(image[None]).argmax()) == int(label) for image, label in zip(images[:30], labels[:30]))
    assert demo.accuracy(lenet5(), images[:30], labels[:30]) == right / 30
