"""Functions of the installed libraries, found by what their docstrings mean."""
