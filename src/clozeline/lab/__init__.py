"""Models compared: contests, BLiMP, GLUE, search, ablations and sweeps."""
