"""Estimates of the cost of a training before it starts, and a guide to choosing a model."""
