"""Progress is shown on a terminal, is logged elsewhere, and does not disturb what is logged meanwhile."""

import logging

import pytest

from clozeline.system.progress import ProgressBar, track


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_outside_a_terminal_progress_is_plain_lines_with_eta_and_note(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), ProgressBar("pretrain", 10, plain_every_seconds=0) as bar:
        bar.advance(5, note="loss 3.2")
    (line,) = lines(caplog)
    assert line.startswith("pretrain: 5/10 (50 %)")
    assert "ETA" in line
    assert line.endswith("loss 3.2")
    with caplog.at_level(logging.INFO):
        assert list(track(range(1000), "count", 1000)) == list(range(1000))
    assert len(lines(caplog)) == 1, "a quick one does not flood the log"


def test_the_eta_ignores_steps_done_before_a_resume(caplog, monkeypatch) -> None:
    clock = iter([0.0, 0.0, 10.0, 10.0, 10.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO), ProgressBar("resume", 100) as bar:
        bar.start_at(90)
        bar.advance(5)
    assert "ETA 10 s" in lines(caplog)[0]
