"""The kinds of fine-tuning: data, heads, training, scores and baselines."""
