"""params.yaml: its sections, their defaults, and how the file is read and edited."""
