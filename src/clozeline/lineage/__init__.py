"""From a served model back to the raw text, by the hashes of dvc.lock."""
