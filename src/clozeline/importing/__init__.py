"""Published models as imports: what a checkpoint is, and on which items its INT8 graph is examined."""
