"""Served models: their sources, loading, choice of the precision, catalogue, cache of answers, and moved aliases."""
