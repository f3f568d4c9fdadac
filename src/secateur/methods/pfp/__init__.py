"""Provable filter pruning: sensitivity, sampling and the bounds behind it."""
