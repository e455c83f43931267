"""Claim: every kind of task counts the test texts that the encoder was pre-trained on."""

from pathlib import Path

import pytest

from clozeline.words.contamination import contamination
from tests.every_kind import EACH, Case, prepare, record, text_of, write_records


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_only_test_texts_seen_in_pre_training_are_found(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    write_records(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(200)))
    report = prepare(kind, case, small_encoder, tmp_path / "data.jsonl").test()
    seen = {text_of(number) for number in range(0, 200, 2)}
    num_seen = sum(any(text in whole for text in seen) for whole in report.test_texts)
    found = contamination(report.test_texts, [[f"{text} and more of it" for text in sorted(seen)]])
    assert found.num_texts >= 40
    assert found.num_near_duplicates + found.num_contained == num_seen > 10
