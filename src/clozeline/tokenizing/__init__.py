"""Stage `tokenize`: a vocabulary is learned from clean text, which then becomes shards of tokens."""
