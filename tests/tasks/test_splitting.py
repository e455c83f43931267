"""Claim: an item is where its own hash sends it, and copies in the pre-training text are found."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.tasks.splitting import count_seen, identity_of, strictest


def test_items_seen_in_pretraining_are_counted(tmp_path: Path) -> None:
    texts = ["a says 1", "a says 2", "b says 3"]
    seen = [texts[0].upper(), texts[1] + "\n", "another text", texts[0]]
    pq.write_table(pa.table({"text": seen}), tmp_path / "train.parquet")
    assert count_seen(map(identity_of, texts), tmp_path / "train.parquet") == 2


def test_identity_ignores_case_and_white_space_and_nothing_else() -> None:
    assert identity_of("A  b\nC") == identity_of("a b c ")
    assert identity_of("a b c") != identity_of("a b, c")


def test_a_pair_has_an_identity_of_its_own() -> None:
    assert identity_of("A b", "c") == identity_of("a  b", "C")
    assert len({identity_of("a b", "c"), identity_of("a", "b c"), identity_of("a b c"), identity_of("c", "a b")}) == 4


def test_what_is_judged_by_is_not_trained_on() -> None:
    assert strictest(["train", "validation", "test", "train"]) == "test"
    assert strictest(["train", "validation"]) == "validation"
