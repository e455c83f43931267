"""Folders of tokenizers: saved, opened, checked."""
