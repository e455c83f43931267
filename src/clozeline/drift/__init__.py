"""Drift of the traffic of a served model, read from the counters of its server."""
