"""Claim: the export reads from config.json the same facts that the task wrote about its model."""

from pathlib import Path

import pytest
from transformers import BertConfig

from clozeline.records.finetune.scored_items import (
    FILE,
    MAX_ITEMS,
    ConfigFacts,
    EntitySpan,
    HeldOut,
    read_held_out,
    write_held_out,
)
from clozeline.system.errors import ArtifactError


@pytest.mark.parametrize(
    "facts",
    [
        ConfigFacts(),
        ConfigFacts(reads_pairs=True),
        ConfigFacts(decision_threshold=0.0),
        ConfigFacts(reads_pairs=True, decision_threshold=0.25, no_answer_margin=-1.5),
    ],
    ids=str,
)
def test_facts_survive_a_round_trip_through_config_json(facts: ConfigFacts) -> None:
    config = BertConfig()
    facts.add_to(config)
    assert ConfigFacts.of(BertConfig.from_dict(config.to_dict())) == facts


def test_defaults_add_no_key() -> None:
    config = BertConfig()
    ConfigFacts().add_to(config)
    assert config.to_dict() == BertConfig().to_dict()


ITEMS = [
    HeldOut(text="a é\n“b”", right=("x", "y")),
    HeldOut(text="who?", second="nobody"),
    HeldOut(text="one\u2028two\u2029three\x85four\rfive\x0bsix\x1cseven"),
    HeldOut(text="Oslo", entities=(EntitySpan(start=0, end=4, type="LOC"),)),
]


def test_held_out_items_survive_a_round_trip_and_the_file_does_not_depend_on_their_order(tmp_path: Path) -> None:
    write_held_out(tmp_path, ITEMS)
    first = (tmp_path / FILE).read_bytes()
    assert sorted(read_held_out(tmp_path), key=str) == sorted(ITEMS, key=str)
    write_held_out(tmp_path, [*reversed(ITEMS), ITEMS[0]])
    assert (tmp_path / FILE).read_bytes() == first


def test_only_a_limited_number_of_held_out_items_is_kept(tmp_path: Path) -> None:
    write_held_out(tmp_path, [HeldOut(text=str(number)) for number in range(2 * MAX_ITEMS)])
    numbers = [int(item.text) for item in read_held_out(tmp_path)]
    assert len(numbers) == MAX_ITEMS
    assert 0.3 < sum(number < MAX_ITEMS for number in numbers) / MAX_ITEMS < 0.7


@pytest.mark.parametrize(
    "line",
    [
        b'{"words": 1}',
        b"",
        b'{"text": "caf\xe9"}',
        b"\xff\xfe{\x00",
        b'{"text": "a", "second": "b", "score": NaN}',
        b'{"text": "a", "right": ["b"], "recall_at": 0}',
    ],
    ids=["another record", "empty", "Latin-1", "UTF-16", "no number", "no place"],
)
def test_a_missing_file_gives_no_items_and_a_bad_line_is_named(tmp_path: Path, line: bytes) -> None:
    assert read_held_out(tmp_path) == []
    write_held_out(tmp_path, ITEMS[:1])
    with (tmp_path / FILE).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ArtifactError, match=r"held_out\.jsonl:2"):
        read_held_out(tmp_path)
