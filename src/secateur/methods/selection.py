"""The channels of a group that a method keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Selection:
    """The units that stay, and the scale of each: its consumers' slices are multiplied by it, 1.0 is untouched.

    >>> derand(np.array([0.2, 0.9, 0.5]), count=2)
    Selection(kept=(1, 2), scales=(1.0, 1.0))
    """

    kept: tuple[int, ...]  # sorted
    scales: tuple[float, ...]  # one for each kept unit
