"""What runs the line: processes that end with it, locks, logs, servers for a person, and the adapter of Prefect."""
