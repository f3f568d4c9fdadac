"""The main theorem as arithmetic: its recursion, its sizes, and both against a simulation of the worst case."""

from __future__ import annotations

import math
import random

import pytest

from secateur.errors import UsageError
from secateur.theory.theorem import allowed_errors, network_error, products


def test_products_run_to_the_end() -> None:
    assert products([2.0, 3.0, 5.0]) == [30.0, 15.0, 5.0] and products([]) == []


@pytest.mark.parametrize("seed", range(50))
def test_the_theorem_keeps_its_promise(seed: int) -> None:
    """With the errors that the theorem allows, the recursion ends within eps; close to it in the worst case."""
    pick = random.Random(seed)
    conditions = [1 + 10 ** pick.uniform(-2, 6) for _ in range(pick.randint(1, 30))]
    eps = pick.uniform(0.01, 0.99)
    found = network_error(allowed_errors(eps, conditions), conditions)
    assert 0.5 * eps <= found <= math.expm1(eps / 2) * (1 + 1e-9) <= eps


def test_each_layer_gets_its_share() -> None:
    conditions = [2.0, 3.0, 5.0]
    assert allowed_errors(0.6, conditions) == [0.6 / (2 * 3 * product) for product in (30.0, 15.0, 5.0)]


@pytest.mark.parametrize("seed", range(20))
def test_the_recursion_against_the_worst_signs(seed: int) -> None:
    """Two positive layers whose inputs all err upwards: the relative error of the output is that of the recursion."""
    pick = random.Random(seed)
    weights = [[pick.uniform(0.1, 1) for _ in range(4)] for _ in range(2)]
    first, second = pick.uniform(0, 0.3), pick.uniform(0, 0.3)
    x = [pick.uniform(0.1, 1) for _ in range(4)]
    z = sum(w * a for w, a in zip(weights[0], x))
    moved = z * (1 + first)  # its own error; with positive terms the condition number is 1
    out, out_moved = z * weights[1][0], moved * weights[1][0] * (1 + second)
    assert (out_moved - out) / out == pytest.approx(network_error([first, second], [1.0, 1.0]))


def test_exact_layers_stay_exact() -> None:
    assert network_error([0.0, 0.0], [math.inf, 3.0]) == 0.0
    assert network_error([0.1, 0.0], [math.inf, 3.0]) == math.inf
    assert network_error([0.0, 0.1], [math.inf, 3.0]) == pytest.approx(0.3)
    assert network_error([math.inf, 0.1], [2.0, 3.0]) == math.inf


@pytest.mark.parametrize("eps", [0.0, 1.0, -0.1, math.nan])
def test_an_error_that_says_nothing_is_refused(eps: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        allowed_errors(eps, [1.0])
