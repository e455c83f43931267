"""The functions that DVC runs: one file for each stage of dvc.yaml."""
