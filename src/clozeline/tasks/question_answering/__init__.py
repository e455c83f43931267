"""Questions about a context, answered by a span of it."""
