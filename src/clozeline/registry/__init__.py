"""Versions of models in MLflow: champions, gates, lineage, signatures, and where a model is fetched from."""
