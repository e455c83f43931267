"""Words of many texts at once: bytes, hashes, runs of numbers, and shingles."""
