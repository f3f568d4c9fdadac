"""`python -m secateur` is the command line."""

from secateur.cli import main

main()
