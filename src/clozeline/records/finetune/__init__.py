"""What fine-tuning records: metrics, tables, examples, held-out items, and the statistics behind them."""
