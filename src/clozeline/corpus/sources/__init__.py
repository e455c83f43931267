"""From a source to the snapshot: files, datasets of the hub, databases, remote stores, docstrings."""
