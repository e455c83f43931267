"""Files that one room writes and another reads, as typed records; formats of data files; published checkpoints."""
