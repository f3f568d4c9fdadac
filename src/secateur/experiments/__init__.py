"""Recipes, and sweeps of runs."""
