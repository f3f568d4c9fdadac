"""`python -m secateur` is the command line."""

from secateur.cli import app

app(prog_name="secateur")
