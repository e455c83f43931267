"""Figures of an encoder over the whole validation set."""
