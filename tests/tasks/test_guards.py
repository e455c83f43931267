"""Claim: every kind of task reports common mistakes, and the test split decides nothing."""

from pathlib import Path

import pytest

from clozeline.records.words.shingles import contamination, in_batches
from clozeline.tasks.kinds import KINDS
from tests.make.tasks import CASES, EACH, Case, prepare, record, without_card, write_records

STRANGE = str.maketrans({letter: chr(0x4E00 + place) for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz")})


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(KINDS)


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_a_tokenizer_with_too_many_unknown_tokens_is_reported(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [record(number, case[1]) for number in range(60)]
    write_records(tmp_path / "data.jsonl", records)
    prepare(kind, case, small_encoder, tmp_path / "data.jsonl")
    assert "unknown to the tokenizer" not in caplog.text
    write_records(tmp_path / "data.jsonl", map(in_another_script, records))
    prepare(kind, case, small_encoder, tmp_path / "data.jsonl")
    assert "tokens of the training texts are unknown to the tokenizer" in caplog.text


def in_another_script(record: dict[str, object]) -> dict[str, object]:
    words = [str(word).translate(STRANGE) for word in str(record["text"]).split()]
    text = " ".join(words)
    return record | {
        "text": text,
        "second": text,
        "question": f"{text} {record['question']}",
        "tokens": words,
        "context": text,
        "answers": {"text": [words[0]], "answer_start": [0]},
    }


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_test_items_do_not_influence_training_selection_or_the_saved_model(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    splits = {"train": "train.jsonl", "validation": "validation.jsonl", "test": "test.jsonl"}
    write_records(data / "train.jsonl", (record(number, case[1]) for number in range(80)))
    write_records(data / "validation.jsonl", (record(number, case[1]) for number in range(80, 110)))
    told, test_texts = [], []
    for first in (200, 300):
        write_records(data / "test.jsonl", (record(number, case[1]) for number in range(first, first + 25)))
        task = prepare(kind, case, small_encoder, data, splits=splits)
        out = tmp_path / f"out {first}"
        out.mkdir()
        score = task.validation_score()
        task.save(out)
        batch = next(task.batches_from(0, 0))
        told.append((score, without_card(out), batch.num_tokens, batch.num_targets, task.batches_per_epoch))
        test_texts.append(task.test().test_texts)
    assert told[0] == told[1]
    assert not {*test_texts[0]} & {*test_texts[1]}


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_near_duplicates_of_training_texts_are_found_among_test_texts(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_records(data / "train.jsonl", (record(number, case[1]) for number in range(80)))
    new = [record(number, case[1]) for number in range(200, 220)]
    near = [longer_by_a_word(other, record(number, case[1])) for number, other in enumerate(new[:8])]
    write_records(data / "test.jsonl", [*near, *new[8:]])
    report = prepare(kind, case, small_encoder, data, splits={"train": "train.jsonl", "test": "test.jsonl"}).test()
    found = contamination(report.test_texts, in_batches(report.train_texts))
    assert 3 <= found.num_near_duplicates + found.num_contained <= 8, "8 minus those of the validation split"
    assert found.num_texts >= 20


def longer_by_a_word(record: dict[str, object], other: dict[str, object]) -> dict[str, object]:
    """Return `record` with the text of `other` plus one word."""
    text = f"{other['text']} then"
    words = text.split()
    return record | {
        "text": text,
        "context": text,
        "tokens": words,
        "ner_tags": ["B-thing", *["O"] * (len(words) - 1)],
        "answers": {"text": [words[0]], "answer_start": [0]},
    }
