"""What calls the stages: the command, the Python API, and the contract of the data."""
