"""The demonstration runs, and its figures are the ones the package measures."""

from __future__ import annotations

import io

from rich.console import Console

from secateur import demo
from secateur.cost import magnitude
from secateur.embedded import digits, lenet5


def test_demo() -> None:
    console = Console(file=io.StringIO(), width=80)
    found = demo.run(console, runs=3, trials=2)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80

    res = found.result
    assert res.after.params <= 0.05 * res.before.params
    assert res.repair is not None and res.repair.after < res.repair.before
    assert res.verification < 1e-5
    assert found.same_after_loading
    assert found.before - found.after < 0.02
    assert found.after > max(found.at_random)

    words = " ".join(text.split())
    assert f"{found.before:.2%} before, {found.after:.2%} after" in words
    assert f"{sum(found.at_random) / 2:.2%} on average over 2 choices" in words
    assert f"by {res.verification:.0e} (relative)" in words
    assert magnitude(res.after.params) in words
    assert "the same outputs, bit by bit" in words


def test_accuracy() -> None:
    images, labels = digits("test")
    right = sum(int(lenet5()(image[None]).argmax()) == int(label) for image, label in zip(images[:30], labels[:30]))
    assert demo.accuracy(lenet5(), images[:30], labels[:30]) == right / 30
