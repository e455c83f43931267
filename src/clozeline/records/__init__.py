"""Records as others keep them, in files or on the hub: for raw text and for labelled tasks alike."""
