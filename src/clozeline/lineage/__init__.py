"""The chain from a served model back to the raw text: alias → version → run → dvc.lock, stage by stage."""
