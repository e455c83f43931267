"""Search for functions of the installed libraries by the meaning of their docstrings."""
