"""The report of a run: one HTML file that is read without a network, without a server, and without a script."""
