"""Layer times by size, for latency budgets."""
