"""Statements from held-out samples."""
