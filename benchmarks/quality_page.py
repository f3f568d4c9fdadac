"""The page docs/quality.md, from the records of quality.py and of the four scripts imported below.

python benchmarks/quality_page.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import before_retraining
import depthwise
import prune_time
import quality
import sensitivity_kinds
from environment import write_whole

PAGE = Path(__file__).resolve().parent.parent / "docs" / "quality.md"
TITLES = {
    "zoo:resnet56": "ResNet56, CIFAR-10",
    "zoo:resnet20": "ResNet20, CIFAR-10",
    "zoo:vgg16-bn": "VGG16-BN, CIFAR-10",
    "torchvision:mobilenet_v2": "MobileNetV2, 1,000 ImageNet images",
    "zoo:resnet56-b": "ResNet56 with option-B shortcuts, CIFAR-10, beside Torch-Pruning 1.6.1",
}
WORDS = {"macs": "MACs", "params": "parameters"}
INTRODUCTION = """# Quality before retraining

Accuracy on the test set right after pruning, without any retraining, in percent: the mean over draws of the calibration
points, and the lowest and the highest where there are several. `residual+repair` is the default of `sc.prune`; the
other names are those of `secateur compare`: `pfp` is the paper's method, `pfp~mean` the same with mean instead of
largest shares, `ft`, `softnet`, `thinet`, `fpgm`, `taylor` and `random` are the [comparison methods](methods.md) as
published, with uniform ratios; `+repair` repairs afterwards, `-repair` does not, `@residual` takes the sizes of our
default. Methods that look at no data run once. Only `taylor` and `tp-taylor` see labels. Settings were chosen by
training and calibration images; but a low test figure of VGG16-BN in one draw was why the number of points for the
[trials](repair.md) was looked into. Made by `python benchmarks/quality.py`; every run is in `results/quality.json`."""
RIVAL = """
Torch-Pruning cannot trace the option-A shortcuts of the network above, so it runs on this one: its own global pruner
with L1, L2 or Taylor importance, at the ratio that meets the budget; `+norms` has the norm statistics estimated anew
afterwards on the same calibration points."""
LENETS = """
## LeNets: the paper's figure before retraining

Test error in percent, three networks trained with the paper's settings, 256 calibration points; `rand` and `partial`
are means over three draws each. Made by `python benchmarks/before_retraining.py`; every run is in
`results/before_retraining.json`.

In the paper's figure `derand` is slightly worse than `rand`; here it is better at every size. At 70 % the factors of a
draw do most of it: LeNet-300-100 with the channels of a draw, but without its factors, has an error of 3.1 to 4.6 % on
validation images in place of 6.1 to 18.2 %, with `derand` 2.3 % (six draws, tried by hand). `partial` is `rand` here:
the theorem's condition for keeping channels without a draw never held.

![Test error over the parameters left, for both LeNets](before_retraining.svg)"""
DEPTHWISE = """
## What depthwise layers cost

A depthwise layer reads one channel for each that it makes. Its channels go together with those of the layer before it,
and a fit can use only this one channel: no neighbour can stand in for what is gone. MobileNetV2 at 80 % of its MACs,
judged by {judged_by} ImageNet images that neither pruning nor the test uses, where the original has
{original_accuracy} % (`python benchmarks/depthwise.py`, `results/depthwise.json`). Hidden channels are those inside a
block, with a depthwise layer on them; stream channels are what the blocks add to.

| what may go | accuracy | movement of the output |
| --- | ---: | ---: |"""
FITS = """
The error at the outputs of its layers before and after the fit, as part of what was wanted, mean over the layers of a
kind, in the first of these networks:

| layers | number | before | after | taken away |
| --- | ---: | ---: | ---: | ---: |"""
KINDS = """
## Kinds of sensitivity

Which [kind](method.md) chooses channels best, and which shares the budget best: ResNet20, {points} calibration points,
judged by {judged:,} other training images (so all figures are too high, and only their order is meant), mean of three
draws; as cut / repaired. `python benchmarks/sensitivity_kinds.py`, `results/sensitivity_kinds.json`.

| kind | chooses, MACs -30% | chooses, MACs -50% | shares, MACs -30% | shares, MACs -50% |
| --- | ---: | ---: | ---: | ---: |"""
CONCLUSION = """
A kind chooses with uniform sizes, or shares the budget with channels chosen by filter norms; the line `neither` has
both. To choose, `mean` and `rms` are best, and after the repair no kind does as well as filter norms. To share, `q0.9`
is best as cut and `max` after the repair, where it is no better than uniform sizes; `mean` and `rms` are worse than
these. So no kind is best for both. Mixed:

| chooses / shares | MACs -30% | MACs -50% |
| --- | ---: | ---: |"""
DEFAULT = """
Mixing helps at -30 % and hardly at -50 %. Least residual, which uses no sensitivities, is far ahead after the repair:
it is the default of `sc.prune`. In `method="pfp"` the default stays `max` for both: it is the paper's, and the only
one that promises something before the cut. Where no promise is needed, `sensitivity="rms", allocation="uniform"` is
better. Another kind for the choice than for the sizes is
`method=secateur.methods.PFP(sensitivity="rms"), allocation="pfp", sensitivity="max"`."""
TIMES = """
## Time and memory

To half of the MACs, on 2 cores, in a process of its own (`python benchmarks/prune_time.py`,
`results/prune_time.json`). Memory is the peak over that of a forward pass.

| network | points | tool | seconds | forward passes | memory |
| --- | ---: | --- | ---: | ---: | ---: |"""
TOOLS = {
    "secateur": "`sc.prune`, with repair",
    "pfp": '`sc.prune`, `method="pfp"`',
    "torch-pruning": "Torch-Pruning, Taylor",
}


def networks(records: list[dict[str, Any]]) -> Iterator[str]:
    """A section for each network, a line for each method."""
    for work in quality.WORK:
        rows = [r for r in records if r["network"] == work.name]
        if not any(r["method"] in work.methods for r in rows):
            continue
        original = next(r["accuracy"] for r in rows if r["method"] == "original")
        yield f"\n## {TITLES[work.name]}\n"
        yield f"The original has {original} %. {work.points:,} calibration points."
        yield RIVAL + "\n" if work.name == "zoo:resnet56-b" else ""
        yield "| method | " + " | ".join(f"{WORDS[work.resource]} -{1 - b:.0%}" for b in work.budgets) + " | draws |"
        yield "| --- |" + " ---: |" * (len(work.budgets) + 1)
        for method in work.methods:
            cells = [[r["accuracy"] for r in rows if (r["method"], r["budget"]) == (method, b)] for b in work.budgets]
            if any(cells):
                yield f"| `{method}` | " + " | ".join(map(spread, cells)) + f" | {max(map(len, cells))} |"
        yield from first_500(rows)


def first_500(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A sentence on the first half of the ImageNet images, of which figures are known from elsewhere."""
    found = {
        m: [r["first_500"] for r in rows if r["method"] == m and "first_500" in r]
        for m in ("original", "residual+repair")
    }
    if all(found.values()):
        original, ours = map(spread, found.values())
        yield f"\nOf the first 500 of these images alone: the original {original}, `residual+repair` {ours}."


def spread(found: list[float]) -> str:
    """The mean, and the range of several."""
    if not found:
        return ""
    return f"{mean(found):.1f}" + (f" ({min(found):.1f} to {max(found):.1f})" if len(found) > 1 else "")


def lenets(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The mean test error of every method at every size."""
    yield LENETS
    for network, title in before_retraining.NETWORKS.items():
        here = [
            (r["method"], r["left"], 100 - 100 * r["top1"]) for r in rows if r["network"] == network and "top1" in r
        ]
        base = mean(error for method, _, error in here if method == "original")
        yield f"\n| {title}, parameters left | " + " | ".join(before_retraining.METHODS) + " |"
        yield "| ---: |" + " ---: |" * len(before_retraining.METHODS)
        yield "| 100% |" + f" {base:.2f} |" * len(before_retraining.METHODS)
        for left in before_retraining.LEFT:
            cells = [[e for m, part, e in here if (m, part) == (name, left)] for name in before_retraining.METHODS]
            yield f"| {left:.0%} | " + " | ".join(f"{mean(cell):.2f}" if cell else "-" for cell in cells) + " |"


def depthwise_cost(record: dict[str, Any]) -> Iterator[str]:
    """MobileNetV2 pruned in several ways, and what the fits did."""
    yield DEPTHWISE.format(**record)
    for row in record["rows"]:
        yield f"| {row['what']} | {row['accuracy']} | {row['movement']:.3f} |"
    yield FITS
    for kind, one in record["rows"][0]["fits"].items():
        before, after = one["error_before"], one["error_after"]
        yield f"| {kind} | {one['layers']} | {before:.3f} | {after:.3f} | {1 - after / before:.0%} |"


def kinds(record: dict[str, Any]) -> Iterator[str]:
    """The kinds of sensitivity, each for the choice and for the sizes, and mixed."""

    def cells(*methods: str) -> str:
        found = []
        for method in methods:
            for budget in sensitivity_kinds.BUDGETS:
                runs = [r for r in record["rows"] if (r["method"], r["budget"]) == (method, budget)]
                cut, repaired = (mean(r["accuracy"] for r in runs if r["repair"] is way) for way in (False, True))
                found.append(f"{cut:.1f} / {repaired:.1f}")
        return " | ".join(found)

    yield KINDS.format(**record)
    for kind in sensitivity_kinds.KINDS:
        yield f"| `{kind}` | " + cells(f"pfp~{kind}@uniform", f"ft~{kind}@pfp") + " |"
    yield "| neither | " + cells("ft", "ft") + " |"
    yield CONCLUSION
    for kind in sensitivity_kinds.KINDS:
        yield f"| `{kind}` for both | " + cells(f"pfp~{kind}@pfp") + " |"
    for mixed in sensitivity_kinds.MIXED:
        choice, sizes = mixed.removeprefix("pfp~").split("@pfp~")
        yield f"| `{choice}` / `{sizes}` | " + cells(mixed) + " |"
    yield "| filter norms / least residual | " + cells("ft@residual") + " |"
    yield "| least residual for both | " + cells("residual") + " |"
    yield DEFAULT


def times(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What pruning takes."""
    yield TIMES
    for row in rows:
        cells = [row["network"], f"{row['points']:,}", TOOLS[row["tool"]], row["prune_seconds"]]
        cells += [row["ratio_to_forward"], f"{row['extra_mb']:,} MB"]
        yield "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Read the records that are there and write the page."""
    lines = [INTRODUCTION]
    for module, section in (
        (quality, lambda record: networks(record["records"])),
        (before_retraining, lambda record: lenets(record["rows"])),
        (depthwise, depthwise_cost),
        (sensitivity_kinds, kinds),
        (prune_time, lambda record: times(record["rows"])),
    ):
        if module.RECORD.exists():
            lines += section(json.loads(module.RECORD.read_text()))
    write_whole(PAGE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
