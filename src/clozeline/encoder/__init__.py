"""Encoders and decoders: our own layers, the families that run on them, stock models, and your own encoder."""
