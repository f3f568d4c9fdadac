"""Random networks, cut at random, equal their masked originals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, note, seed
from torch import nn

import secateur as sc
from support.networks.architectures import Spec, build, examples, random_spec, specs
from support.networks.checks import check

CHUNKS, EACH = 6, 20

ONE = {"seed": 12, "dims": 2, "size": 6, "channels": 3, "head": ["pool", 4, 0], "second_input": "", "outputs": "tensor"}
ONE |= {"auxiliary": False, "unused": False, "output": "module", "kept": 0.5}
FORMER_FAILURES = (
    [["shuffle", 7, 3]],  # as many groups as channels in each: which of the two sizes shrinks?
    [["reorder", 8, 2], ["plain", 11, 3]],  # rolled by a fixed number
    [["region", 6, 0]],  # autocast is a nested graph
    [["region", 6, 1]],  # so is no_grad
)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_cut_equals_masked(chunk: int) -> None:
    """120 networks in chunks that workers can share; a failure prints its spec: reproduce it with `check(spec)`."""

    @seed(chunk)
    @examples(EACH)
    @given(spec=specs())
    def each(spec: Spec) -> None:
        note(f"spec = {spec!r}")
        try:
            check(spec)
        except sc.SecateurError as error:  # a refusal is correct only where the docs say so
            assert any(kind == "weight_norm" for kind, *_ in spec["blocks"]), error
            assert "weight_norm" in str(error) or "parametriz" in str(error), error

    each()


@pytest.mark.parametrize("blocks", FORMER_FAILURES, ids=lambda blocks: blocks[0][0])
def test_former_failures(blocks: list[list[object]]) -> None:
    for number in range(3):
        check(ONE | {"blocks": blocks, "seed": number})


def test_the_checks_detect_a_wrong_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that consumes the wrong channels does not pass."""
    right = sc.cut

    def wrong(model: nn.Module, plan: sc.Plan) -> nn.Module:
        slot = plan.consumes[-1]
        removed = set(range(plan.shapes[slot.parameter][slot.axis])) - set(plan.kept[slot])
        moved = (*sorted((*plan.kept[slot][1:], min(removed))),)
        return right(model, replace(plan, kept={**plan.kept, slot: moved}))

    check(ONE | {"blocks": [["plain", 8, 2]]})
    monkeypatch.setattr(sc, "cut", wrong)
    with pytest.raises(AssertionError, match="differs from the masked one"):
        check(ONE | {"blocks": [["plain", 8, 2]]})


def test_a_spec_builds_the_same_network_twice() -> None:
    spec = random_spec(3)
    (first, example), (second, again) = build(spec), build(spec)
    assert all(torch.equal(a, b) for a, b in zip(example, again, strict=True))
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
