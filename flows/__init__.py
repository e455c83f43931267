"""Prefect flows: each file lists its steps in order, and `clozeline.orchestration` implements them."""
