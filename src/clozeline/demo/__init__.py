"""Demo of pre-training in a minute, on the project's own tokens or on the standard library's docstrings."""
