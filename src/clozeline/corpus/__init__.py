"""Raw text: taken from its source as it was read, then cleaned and split."""
