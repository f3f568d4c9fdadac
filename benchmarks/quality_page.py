"""Write the page docs/quality.md from the records of quality.py and of the four scripts imported below.

python benchmarks/quality_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean
from typing import Any

import before_retraining
import quality
import sensitivity_kinds
from environment import RESULTS, options, read_record, write_atomic

PAGE = RESULTS.parent / "docs" / "quality.md"
TITLES = {
    "zoo:resnet56": "ResNet56, CIFAR-10",
    "zoo:resnet20": "ResNet20, CIFAR-10",
    "zoo:vgg16-bn": "VGG16-BN, CIFAR-10",
    "torchvision:mobilenet_v2": "MobileNetV2, 1,000 ImageNet images",
    "zoo:resnet56-b": "ResNet56 with option-B shortcuts, CIFAR-10, beside Torch-Pruning 1.6.1",
}
WORDS = {"macs": "MACs", "params": "parameters"}
INTRODUCTION = """# Quality before retraining

How accurate networks are right after pruning, without any retraining, for our default, the paper's method, the
comparison methods and Torch-Pruning. Figures are the accuracy on the test set in percent: the mean over repeats with
different calibration samples, and the lowest and the highest where there are several repeats. `residual+repair` is the
default of `sc.prune`; the other names are those of `secateur compare`: `pfp` is the paper's method, `pfp~mean` the same
with mean instead of largest shares, `ft`, `softnet`, `thinet`, `fpgm`, `taylor` and `random` are the
[comparison methods](methods.md) as published, with uniform ratios; `+repair` repairs afterwards, `-repair` does not,
`@residual` takes the sizes of our default. Methods that use no data run once. Only `taylor` and `tp-taylor` use labels.
Settings were chosen with training and calibration images; but a low test accuracy of VGG16-BN in one repeat was the
reason to examine the number of samples for the [trials](repair.md). Generated from `results/quality.json`, which has
every run; `python benchmarks/quality.py` measures them."""
PEERS = """
Torch-Pruning cannot trace the option-A shortcuts of the network above, so it runs on this one: its own global pruner
with L1, L2 or Taylor importance, at the ratio that meets the budget; with `+norms` the norm statistics are estimated
again afterwards on the same calibration samples."""
LENETS = """
## LeNets: the paper's figure before retraining

Test error in percent, three networks trained with the paper's settings, 256 calibration samples; `rand` and `partial`
are means over three seeds each. Measured by `python benchmarks/before_retraining.py`; every run is in
`results/before_retraining.json`.

In the paper's figure `derand` is slightly worse than `rand`; here it is better at every size. At 70 % most of the
difference comes from the scale factors of the sampled channels: LeNet-300-100 with the channels of `rand`, but without
their factors, has an error of 3.1 to 4.6 % on validation images instead of 6.1 to 18.2 %, and 2.3 % with `derand` (six
seeds, run by hand). `partial` equals `rand` here: the theorem's condition for keeping channels without sampling never
held.

![Test error against the parameters left, for both LeNets](before_retraining.svg)"""
DEPTHWISE = """
## The cost of depthwise layers

A depthwise layer consumes one channel for each that it produces. Its channels are removed together with those of the
layer before it, and a refit can use only this one channel: no neighbour can replace a removed one. MobileNetV2 at 80 %
of its MACs, evaluated on {evaluated_on} ImageNet images that neither pruning nor the test uses, where the original has
{original_accuracy} % (`python benchmarks/depthwise.py`, `results/depthwise.json`). Hidden channels are those inside a
block, with a depthwise layer on them; stream channels are those that the blocks add to.

| prunable | accuracy | output divergence |
| --- | ---: | ---: |"""
FITS = """
The relative error at the outputs of its layers before and after the refit, mean over the layers of a kind, in the first
of these networks:

| layers | number | before | after | removed |
| --- | ---: | ---: | ---: | ---: |"""
KINDS = """
## Kinds of sensitivity

Which [kind](method.md) chooses channels best, and which allocates the budget best: ResNet20, {samples} calibration
samples, evaluated on {evaluated_on:,} other training images (so all figures are too high, and only their order counts),
mean of three repeats; as cut / repaired. `python benchmarks/sensitivity_kinds.py`, `results/sensitivity_kinds.json`.

| kind | chooses, MACs -30% | chooses, MACs -50% | allocates, MACs -30% | allocates, MACs -50% |
| --- | ---: | ---: | ---: | ---: |"""
CONCLUSION = """
A kind chooses with uniform sizes, or allocates the budget with channels chosen by filter norms; the line `neither` has
both. For the choice, `mean` and `rms` are best, and after the repair no kind does as well as filter norms. For the
allocation, `q0.9` is best as cut and `max` after the repair, where it is no better than uniform sizes; `mean` and `rms`
are worse than these. So no kind is best for both. Mixed:

| chooses / allocates | MACs -30% | MACs -50% |
| --- | ---: | ---: |"""
DEFAULT = """
Mixing helps at -30 % and hardly at -50 %. Least residual, which uses no sensitivities, is far ahead after the repair:
it is the default of `sc.prune`. In `method="pfp"` the default stays `max` for both: it is the paper's, and the only
one with a guarantee before the cut. Where no guarantee is needed, `sensitivity="rms", allocation="uniform"` is better.
For one kind for the choice and another for the sizes, write
`method=secateur.methods.PFP(sensitivity="rms"), allocation="pfp", sensitivity="max"`."""
TIMES = """
## Time and memory

To half of the MACs, on 2 cores, in a process of its own (`python benchmarks/prune_time.py`,
`results/prune_time.json`). Memory is the peak above that of a forward pass.

| network | samples | tool | seconds | forward passes | memory |
| --- | ---: | --- | ---: | ---: | ---: |"""
TOOLS = {
    "secateur": "`sc.prune`, with repair",
    "pfp": '`sc.prune`, `method="pfp"`',
    "torch-pruning": "Torch-Pruning, Taylor",
}


def networks(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a section for each network, with a line for each method."""
    for work in quality.WORK:
        rows = [r for r in records if r["network"] == work.name]
        if not any(r["method"] in work.methods for r in rows):
            continue
        original = next(r["accuracy"] for r in rows if r["method"] == "original")
        yield f"\n## {TITLES[work.name]}\n"
        yield f"The original has {original} %. {work.samples:,} calibration samples."
        yield PEERS + "\n" if work.name == "zoo:resnet56-b" else ""
        yield "| method | " + " | ".join(f"{WORDS[work.resource]} -{1 - b:.0%}" for b in work.budgets) + " | repeats |"
        yield "| --- |" + " ---: |" * (len(work.budgets) + 1)
        for method in work.methods:
            cells = [[r["accuracy"] for r in rows if (r["method"], r["budget"]) == (method, b)] for b in work.budgets]
            if any(cells):
                yield f"| `{method}` | " + " | ".join(map(spread, cells)) + f" | {max(map(len, cells))} |"
        yield from first_500(rows)


def first_500(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a sentence on the first half of the ImageNet images, for which other figures are known."""
    found = {
        m: [r["first_500"] for r in rows if r["method"] == m and "first_500" in r]
        for m in ("original", "residual+repair")
    }
    if all(found.values()):
        original, ours = map(spread, found.values())
        yield f"\nOn the first 500 of these images alone: the original {original}, `residual+repair` {ours}."


def spread(found: list[float]) -> str:
    """Return the mean, and the range if there are several."""
    if not found:
        return ""
    return f"{mean(found):.1f}" + (f" ({min(found):.1f} to {max(found):.1f})" if len(found) > 1 else "")


def lenets(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the mean test error of every method at every size."""
    yield LENETS
    for network, title in before_retraining.NETWORKS.items():
        here = before_retraining.of_network(rows, network)
        base = mean(before_retraining.errors(here, "original", 1.0))
        yield f"\n| {title}, parameters left | " + " | ".join(before_retraining.METHODS) + " |"
        yield "| ---: |" + " ---: |" * len(before_retraining.METHODS)
        yield "| 100% |" + f" {base:.2f} |" * len(before_retraining.METHODS)
        for left in before_retraining.LEFT:
            cells = [before_retraining.errors(here, name, left) for name in before_retraining.METHODS]
            yield f"| {left:.0%} | " + " | ".join(f"{mean(cell):.2f}" if cell else "-" for cell in cells) + " |"


def depthwise_cost(record: dict[str, Any]) -> Iterator[str]:
    """Yield MobileNetV2 pruned in several ways, and the errors before and after the refits."""
    yield DEPTHWISE.format(**record)
    for row in record["rows"]:
        yield f"| {row['what']} | {row['accuracy']} | {row['divergence']:.3f} |"
    yield FITS
    for kind, one in record["rows"][0]["fits"].items():
        before, after = one["error_before"], one["error_after"]
        yield f"| {kind} | {one['layers']} | {before:.3f} | {after:.3f} | {1 - after / before:.0%} |"


def kinds(record: dict[str, Any]) -> Iterator[str]:
    """Yield the kinds of sensitivity, each for the choice and for the sizes, and mixed."""

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
    """Yield the time and memory of pruning."""
    yield TIMES
    for row in rows:
        cells = [row["network"], f"{row['samples']:,}", TOOLS[row["tool"]], row["prune_seconds"]]
        cells += [row["ratio_to_forward"], f"{row['extra_mb']:,} MB"]
        yield "| " + " | ".join(map(str, cells)) + " |"


def page() -> str:
    """Return the page, from the records."""
    lines = [INTRODUCTION]
    lines += networks(read_record("quality")["records"])
    lines += lenets(read_record("before_retraining")["rows"])
    lines += depthwise_cost(read_record("depthwise"))
    lines += kinds(read_record("sensitivity_kinds"))
    lines += times(read_record("prune_time")["rows"])
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    options(__doc__).parse_args()
    write_atomic(PAGE, page())


if __name__ == "__main__":
    main()
