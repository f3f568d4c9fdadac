"""Parameters, MACs and measured time."""
