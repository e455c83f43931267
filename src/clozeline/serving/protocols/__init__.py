"""What clients of other servers speak, each protocol in a file; the models and the way to them are the same."""
