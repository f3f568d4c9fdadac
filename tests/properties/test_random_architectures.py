"""Random whole networks, cut at random, compute what their masked originals compute."""

from __future__ import annotations

import pytest
import torch
from architectures import Spec, build, random_spec, specs
from checks import check
from hypothesis import HealthCheck, Phase, given, note, seed, settings

import secateur as sc

CHUNKS, EACH = 6, 50


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_cut_equals_masked(chunk: int) -> None:
    """300 networks in chunks that workers can share; a failure prints its spec: replay it with `check(spec)`."""

    @seed(chunk)
    @settings(
        max_examples=EACH,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(spec=specs())
    def each(spec: Spec) -> None:
        note(f"spec = {spec!r}")
        try:
            check(spec)
        except sc.SecateurError as error:  # a refusal is an answer only where the docs promise one
            assert any(kind == "weight_norm" for kind, *_ in spec["blocks"]), error
            assert "weight_norm" in str(error) or "parametriz" in str(error), error

    each()


def test_a_spec_builds_the_same_network_twice() -> None:
    spec = random_spec(3)
    (first, example), (second, again) = build(spec), build(spec)
    assert all(torch.equal(a, b) for a, b in zip(example, again, strict=True))
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
