"""The suite itself: in which order its tests run, and what they leave to each other."""

import pytest


def test_what_runs_flows_in_this_process_comes_last(request: pytest.FixtureRequest) -> None:
    """So nothing is forked from a process in which Prefect's threads live."""
    runs_flows = [item.path.parts[-2] == "flows" for item in request.session.items]
    assert runs_flows == sorted(runs_flows)
