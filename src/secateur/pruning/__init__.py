"""From budget to pruned network."""
