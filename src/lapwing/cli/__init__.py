"""One thin module per program."""
