"""MLflow, and what it is told of runs: parameters, curves, files."""
