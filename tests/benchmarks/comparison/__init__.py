"""What the benchmarks beside this folder share: two sides, texts for both, and the line that compares them."""
