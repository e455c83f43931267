"""Pairs of texts: search by vectors, and scores of pairs."""
