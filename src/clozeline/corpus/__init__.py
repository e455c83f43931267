"""From a source of raw text to a clean, split corpus."""
