"""What the command line shows: tables for people, dictionaries for machines."""
