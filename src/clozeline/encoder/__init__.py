"""Our layers, the published families, and encoders of your own."""
