"""The Python API: the stages of dvc.yaml as functions, their params as an object, and what they made as another."""
