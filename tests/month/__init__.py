"""Thirty nights of growing text on real servers: `python -m tests.month` (or `make month`)."""
