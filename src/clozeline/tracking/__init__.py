"""Runs in MLflow: written to the outbox first, and delivered from there."""
