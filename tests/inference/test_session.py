"""Claim: threads of one session wait actively for each other during a run, and sleep between runs."""

from pathlib import Path

import pytest

from clozeline.inference.open_model import GraphSession


@pytest.mark.parametrize(("num_threads", "spins"), [(1, "0"), (2, "1")])
def test_only_multi_threaded_sessions_spin_and_only_during_a_run(
    encoder_package: Path, num_threads: int, spins: str
) -> None:
    inputs = ("input_ids", "attention_mask")
    session = GraphSession(encoder_package / "model.onnx", input_names=inputs, num_threads=num_threads)
    entry = session._session.get_session_options().get_session_config_entry
    assert entry("session.intra_op.allow_spinning") == spins
    assert entry("session.force_spinning_stop") == "1"
