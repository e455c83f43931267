"""Clozeline: from a team's raw text to its own encoder, served as INT8 on ordinary CPUs."""
