"""The methods that decide which channels stay."""

from __future__ import annotations

from secateur.methods.pfp import PFP

METHODS = {"pfp": PFP}
