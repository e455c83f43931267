"""Several processes for one stage."""
