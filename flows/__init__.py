"""The orchestration: DVC's stages as Prefect tasks, releases, and what runs them on a schedule."""
