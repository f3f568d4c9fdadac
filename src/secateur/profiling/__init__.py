"""Measured layer times, by size."""
