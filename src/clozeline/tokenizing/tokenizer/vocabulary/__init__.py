"""Tokenizers that others published, opened as ours."""
