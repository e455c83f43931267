"""Tasks and commands that are spread over processes or over the nodes of a Ray cluster."""
