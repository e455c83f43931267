"""The only adapter of DVC: the stage graph, the outcome of a stage, and the bytes behind a hash."""
