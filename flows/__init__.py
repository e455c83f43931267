"""The line as Prefect sees it: each file shows its steps in order, and `clozeline.orchestration` does them."""
