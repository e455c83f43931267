"""Settings of `make test-clients` for generated requests."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETTINGS = Path(__file__).parents[1] / "clients/schemathesis.toml"


def accepted(settings: Any, check: str) -> Iterator[list[str]]:
    """Yield each list of statuses that `settings` accepts for `check`, at any depth."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if key == check or key == f"checks.{check}":
            yield value["expected-statuses"]
        else:
            yield from accepted(value, check)
    for inner in settings if isinstance(settings, list) else ():
        yield from accepted(inner, check)


def test_schemathesis_accepts_413_and_504_for_valid_requests() -> None:
    lists = list(accepted(tomllib.loads(SETTINGS.read_text(encoding="utf-8")), "positive_data_acceptance"))
    assert len(lists) >= 5
    assert all({"2xx", "413", "504"} <= set(statuses) for statuses in lists)
