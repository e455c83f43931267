"""Readers of data files: text, tables, records on the hub, token shards."""
