"""The dialects: from a request to a question, and from its answers to a response."""
