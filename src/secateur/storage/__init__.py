"""Safe files: save, load, export."""
