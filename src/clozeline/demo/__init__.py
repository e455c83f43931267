"""A minute of pre-training, to see what it is: on the project's own tokens, or on the standard library's docstrings."""
