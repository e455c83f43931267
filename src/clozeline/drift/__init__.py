"""Whether what a served model is asked is still what it was asked at first: read from the counters of its server."""
