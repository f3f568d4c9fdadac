"""Runs and observes a model."""
