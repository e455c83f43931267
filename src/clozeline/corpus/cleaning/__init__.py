"""From the snapshot to clean, split text without duplicates."""
