"""Stage `snapshot`: the raw text of a source of any kind, kept as files."""
