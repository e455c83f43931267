"""The nodes of a Ray cluster, and the ledger of tasks that run once."""
