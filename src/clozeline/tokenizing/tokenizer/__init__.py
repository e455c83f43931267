"""The tokenizer as files: our own folder, and published ones."""
