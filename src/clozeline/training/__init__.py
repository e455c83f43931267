"""Training of any model: batches in, optimizer steps, checkpoints, on one device or several."""
