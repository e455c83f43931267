"""params.yaml: its schema, its defaults, how it is read and edited."""

from clozeline.params.reading import read_params

__all__ = ["read_params"]
