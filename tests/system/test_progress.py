"""Progress is shown on a terminal, is logged elsewhere, and does not disturb what is logged meanwhile."""

import itertools
import logging
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

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


def test_plain_lines_do_not_flood_a_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert list(track(range(1000), "count", 1000)) == list(range(1000))
    assert lines(caplog) == []


def test_the_eta_ignores_steps_done_before_a_resume(caplog, monkeypatch) -> None:
    clock = iter([0.0, 0.0, 10.0, 10.0, 10.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO), ProgressBar("resume", 100) as bar:
        bar.start_at(90)
        bar.advance(5)
    assert "ETA 10 s" in lines(caplog)[0]


def test_a_notebook_gets_one_bar_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython, shown = ModuleType("IPython"), []
    clock = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw
        assert display_id
        shown.append(("displayed", data["text/html"]))
        return SimpleNamespace(update=lambda data, raw: shown.append(("updated", data["text/html"])))

    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    for shell in (SimpleNamespace(kernel="of a notebook"), SimpleNamespace()):  # the second is IPython in a terminal
        monkeypatch.setattr(ipython, "get_ipython", lambda shell=shell: shell, raising=False)
        with ProgressBar("<train>", 10) as bar:
            bar.advance(5, note="loss 3.2")
            bar.advance(5)
    (how, first), (then, last) = shown
    assert (how, then) == ("displayed", "updated")
    assert first.startswith('<progress value="5" max="10"></progress> &lt;train&gt;: 5/10 (50 %)')
    assert first.endswith("loss 3.2")
    assert 'value="10"' in last


LOGS_BESIDE_A_BAR = """
import logging, sys
from clozeline.system.progress import ProgressBar
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
with ProgressBar("train", 10) as bar:
    bar.advance(5)
    bar._bar.refresh()
    logging.info("epoch 1: score 0.5")
logging.info("the end")
"""


def test_a_line_logged_during_a_progress_bar_appears_above_it() -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    subprocess.run([sys.executable, "-c", LOGS_BESIDE_A_BAR], stderr=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    before, line, after = shown.partition("epoch 1: score 0.5")
    assert line
    assert before.endswith("\r\x1b[2K"), "the bar is erased first"
    assert after.startswith("\r\n")
    assert after.endswith("the end\r\n")
