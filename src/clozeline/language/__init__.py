"""Language modelling: rows of token shards, masking, objectives, and the models that are trained on them."""
