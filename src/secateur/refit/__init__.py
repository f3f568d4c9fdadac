"""Repair by least squares."""
