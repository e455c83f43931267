from pathlib import Path

import pytest

from clozeline.records.clean_text import CorpusMetrics
from clozeline.system.errors import ArtifactError
from tests.make.texts import corpus_metrics


def test_counts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    whole = corpus_metrics(train=80, validation=10, too_short=9, empty=0)
    whole.write(tmp_path / "whole.json")
    assert CorpusMetrics.read(tmp_path / "whole.json") == whole
    for lost in ({"kept": 89}, {"documents_in": 100}, {"documents_read": 98}, {"dropped": {"too_short": 8}}):
        whole.model_copy(update=lost).write(tmp_path / "lost.json")
        with pytest.raises(ArtifactError, match="cannot be used"):
            CorpusMetrics.read(tmp_path / "lost.json")


def test_the_summary_names_the_reasons_that_occurred() -> None:
    told = corpus_metrics(train=80, too_short=9, near_duplicate=1, empty=0).summary()
    assert told.startswith("90 texts in = 80 kept + 9 too short, 1 near duplicate\n")
