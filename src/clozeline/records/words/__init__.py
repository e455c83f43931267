"""Words as bytes and numbers: cutting, hashing, shingles."""
