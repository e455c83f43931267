"""Claim: the hash of an item decides its split, and copies in the pre-training text are found."""

from pathlib import Path

from clozeline.records.reading.streams import identity_of
from clozeline.tasks.selection import count_seen, strictest
from tests.make.texts import write_clean_text


def test_items_seen_in_pretraining_are_counted(tmp_path: Path) -> None:
    texts = ["a says 1", "a says 2", "b says 3"]
    seen = [texts[0].upper(), texts[1] + "\n", "another text", texts[0]]
    write_clean_text(tmp_path / "train.parquet", seen)
    assert count_seen(map(identity_of, texts), tmp_path / "train.parquet") == 2


def test_a_text_in_several_splits_stays_in_test_before_validation_before_train() -> None:
    assert strictest(["train", "validation", "test", "train"]) == "test"
    assert strictest(["train", "validation"]) == "validation"
