"""Experiments: one training of given params from one seed, measured on held-out text, and kept so that it runs once."""
