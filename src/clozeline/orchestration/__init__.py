"""Running the pipeline: stage processes, locks, logs, releases, local servers, and the adapter of Prefect."""
