"""Cuts, masks and verifies channels."""
