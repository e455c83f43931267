"""Data contract: the text and the labels of a run beside those of the last accepted run, before any training."""
