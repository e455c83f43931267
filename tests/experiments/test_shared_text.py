"""Claim: experiments on a cluster that does not answer end before any stage runs."""

from pathlib import Path

import pytest

from clozeline.cli import shared_text
from clozeline.cluster.address import VARIABLE
from clozeline.system.errors import ClozelineError, ParamsError, TransientError
from clozeline.system.workspace import Workspace


@pytest.mark.parametrize(("address", "error"), [("ray://127.0.0.1:1", TransientError), ("127.0.0.1:6379", ParamsError)])
def test_a_cluster_that_cannot_be_used_is_named_before_any_stage_runs(
    address: str, error: type[ClozelineError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_text, "read_stage_graph", lambda *_, **__: pytest.fail("a stage would have run"))
    monkeypatch.setenv(VARIABLE, address)
    with pytest.raises(error, match=address.removeprefix("ray://")):
        shared_text.shared_corpus(Workspace(tmp_path))
