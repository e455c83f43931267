"""Metrics, spans and signs of drift for operators of the server. Imports no other folder of serving."""
