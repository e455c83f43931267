"""From clean text to a vocabulary and to token shards."""
