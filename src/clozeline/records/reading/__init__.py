"""Reading of records and tokens from files and from the hub."""
