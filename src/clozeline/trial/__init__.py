"""A trial: candidate and champion answer the same items, and the interval of the difference is the evidence."""
