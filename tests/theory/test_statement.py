"""How theory is shown."""

from __future__ import annotations

import json
import math

from secateur.theory.statement import LayerTheory, Theory

FOUND = Theory(
    layers=(LayerTheory("fc2", "fc1", 500, 250, 0.4, 1e6, 200.0, 500, 480), LayerTheory("fc3", "fc2", 9, 8, math.inf)),
    eps=0.5,
    theorem_largest=math.inf,
    theorem_usual=None,
    propagated=1.5,
    unchanged=0.25,
    certified=0.1,
    samples=400,
    beta=0.05,
    delta=1e-3,
    notes=("a remark",),
)


def test_the_three_errors_stand_below_one_another() -> None:
    lines = [" ".join(line.split()) for line in str(FOUND).splitlines()]
    assert "fc2 250/500 0.4 1e+06 200 500 480" in lines or "fc2 250/500 0.4 1,000,000 200 500 480" in lines
    rows = [line for line in lines if line.startswith(("main theorem", "propagated", "certified"))]
    assert "inf (vacuous) these 400 samples" in rows[0] and "- 95% of inputs" in rows[1]
    assert "1.5 (vacuous)" in rows[2] and rows[3].endswith("0.1 95% of inputs")
    assert any("class unchanged for 25.0% of samples" in line for line in lines) and "Note: a remark" in lines


def test_json_has_no_infinity() -> None:
    found = json.loads(json.dumps(FOUND.as_dict(), allow_nan=False))
    assert found["theorem_largest"] is None and found["layers"][1]["eps"] is None and found["certified"] == 0.1
