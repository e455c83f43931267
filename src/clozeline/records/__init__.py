"""Readers of records in data files and on the hub, for raw text and for labelled tasks."""
