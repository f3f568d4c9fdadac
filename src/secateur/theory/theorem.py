"""The main compression theorem: from the errors of the layers of a chain to that of the network, and back.

Layer l turns a relative error r of its inputs, entry by entry, into at most `D_l (r + e_l + r e_l)`: D_l is its
condition number, and e_l the error of its own sampled sum. The theorem is about equal shares: with
`e_l = eps / (2 L D_l D_l+1 ... D_L)` in each of L layers, the error of the network is at most eps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from secateur.errors import UsageError


def products(conditions: Sequence[float]) -> list[float]:
    """Return for each layer the product of its condition number and those of all later layers.

    >>> products([2.0, 3.0, 5.0])
    [30.0, 15.0, 5.0]
    """
    found, product = list[float](), 1.0
    for condition in reversed(conditions):
        product *= condition
        found.append(product)
    return found[::-1]


def allowed_errors(eps: float, conditions: Sequence[float]) -> list[float]:
    """Return the error that each layer may have, so that every output of the network is within `1 +- eps`.

    >>> allowed_errors(0.6, [2.0, 3.0, 5.0])
    [0.0033333333333333335, 0.006666666666666667, 0.02]
    """
    if not 0 < eps < 1:
        raise UsageError(f"the error of the network is {eps}", remedy="use a relative error between 0 and 1")
    return [eps / (2 * len(conditions) * product) for product in products(conditions)]


def network_error(errors: Sequence[float], conditions: Sequence[float]) -> float:
    """Return the relative error of the network, entry by entry, from the errors of its layers; from 1 on it is vacuous.

    >>> network_error([0.01, 0.0, 0.02], [2.0, 3.0, 5.0])
    0.7120000000000001
    """
    total = 0.0
    for own, condition in zip(errors, conditions, strict=True):
        inner = total + own + total * own
        total = condition * inner if inner else 0.0  # an exact layer stays exact, however badly conditioned
    return total if not math.isnan(total) else math.inf
