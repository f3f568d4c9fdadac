"""The main theorem, and propagated errors."""
