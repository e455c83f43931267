"""One label, several labels or none for a text or a pair of texts."""
