"""Published vocabularies, opened as fast tokenizers."""
