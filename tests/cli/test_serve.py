"""`clozeline serve` checks --fleet before anything loads, and sends no telemetry."""

import os
from pathlib import Path

import pytest

from clozeline.cli.serve import _in_fleet, _set_up_log
from clozeline.registry.sources import ModelSource
from clozeline.system.errors import ParamsError

CHAMPION, CANDIDATE, FIXED = (f"models:/clozeline-encoder{version}" for version in ("@champion", "@candidate", "/7"))


def test_champions_change_together_and_models_that_cannot_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = [ModelSource.parse(place) for place in (CHAMPION, FIXED)]
    assert [source.is_in_fleet for source in _in_fleet(sources, 10.0)] == [True, False]
    for places, watch, named in (
        ([CHAMPION, CANDIDATE], 10.0, "candidate"),
        ([CHAMPION], 0.0, "cannot change together"),
        # Until --fleet lost its address, `--fleet 10.0.0.5` was how a replica was started.
        (["10.0.0.5", CHAMPION], 10.0, "10.0.0.5"),
    ):
        with pytest.raises(ParamsError) as caught:
            _in_fleet([ModelSource.parse(place) for place in places], watch)
        assert named in str(caught.value)


def test_a_server_sends_no_telemetry_and_asks_the_registry_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_in_fleet, retries in ((True, "1"), (False, "3")):
        monkeypatch.setattr(os, "environ", {"ORT_DISABLE_TELEMETRY": "0"})
        _set_up_log(is_in_fleet=is_in_fleet)
        assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == retries
        assert os.environ["ORT_DISABLE_TELEMETRY"] == "0", "what a person has set stays"
