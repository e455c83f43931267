"""Kills and outages: `python -m tests.drill --rounds N` (or `make drill ROUNDS=N`)."""
