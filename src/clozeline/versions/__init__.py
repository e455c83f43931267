"""The one adapter of DVC: its graph, how a stage of it ended, and the bytes behind its hashes."""
