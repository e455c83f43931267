"""Token shards as batches with targets, and the models that predict them."""
