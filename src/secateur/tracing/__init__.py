"""From model to channel graph."""
