"""Claim: a tokenizer that is not the model's, and rows that it cannot read, are refused before any training."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ModernBertForMaskedLM

from clozeline.params.tasks import SECTIONS
from clozeline.records.words.shingles import contamination, in_batches
from clozeline.system.errors import ArtifactError, ParamsError, TrainingError
from clozeline.tasks import heads
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.rows import EncodedBatch
from clozeline.tasks.task import Task, answers
from clozeline.tasks.training import prepare_training
from clozeline.training.micro_batches import remedies
from clozeline.training.state import Callback
from tests.make.models import small_modernbert
from tests.make.params import is_knob_of, named_in
from tests.make.processes import run_alone
from tests.make.tasks import CASES, EACH, Case, inputs_of_case, prepare, record, without_card, write_rows
from tests.tasks.little_memory import losses


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokenizer_of_another_model_and_too_long_rows_are_refused(
    kind: str, small_encoder: Path, save_trained: Callable[[Any], Path], tmp_path: Path
) -> None:
    case = CASES[kind][0]
    write_rows(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(60)))
    config = small_modernbert()
    config.vocab_size = 20
    other = save_trained(ModernBertForMaskedLM(config))
    with pytest.raises(ArtifactError, match="the tokenizer has 85 tokens, the embedding only 20"):
        prepare(kind, case, other, tmp_path / "data.jsonl")
    with pytest.raises(ParamsError, match="`max_length: 65`"):
        prepare(kind, case, small_encoder, tmp_path / "data.jsonl", max_length=65)


def asked_for(most_rows: int, num_rows: int, model: Any) -> list[list[int]]:
    """Return the rows of each batch that was answered, where memory holds at most `most_rows` rows."""

    def answer(_: Any, batch: EncodedBatch) -> torch.Tensor:
        if batch.num_rows > most_rows:
            torch.empty(1 << 50)
        return batch.input_ids_BL[:, 0]

    def encoded(rows_B: np.ndarray) -> EncodedBatch:
        return EncodedBatch(torch.from_numpy(rows_B)[:, None], None)

    batches = [np.arange(start, min(start + 8, num_rows)) for start in range(0, num_rows, 8)]
    found = list(answers(model, batches, encoded, answer))
    assert all(rows_B.tolist() == told_B.tolist() for rows_B, told_B in found)
    return [rows_B.tolist() for rows_B, _ in found]


def test_a_batch_too_large_for_memory_and_all_later_ones_are_evaluated_in_parts(
    small_encoder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = heads.build(small_encoder, "feature-extraction", 1, {})
    assert asked_for(8, 19, model) == [[*range(8)], [*range(8, 16)], [16, 17, 18]]
    assert caplog.text == ""
    in_parts = asked_for(3, 19, model)
    assert [row for rows in in_parts for row in rows] == [*range(19)]
    assert max(map(len, in_parts)) == 2
    assert caplog.text.count("out of memory") == 2, "halved once, then never tried again"
    with pytest.raises(TrainingError, match="out of memory on one row") as caught:
        asked_for(0, 19, model)
    assert "4,503,599,627,370,496 bytes were requested" in str(caught.value)
    named = named_in(str(caught.value))
    assert named == ["max_length"]
    assert all(is_knob_of(section, knob) for knob in named for section in SECTIONS.values())


STRANGE = str.maketrans({letter: chr(0x4E00 + place) for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz")})


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(KINDS)


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_a_tokenizer_with_too_many_unknown_tokens_is_reported(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [record(number, case[1]) for number in range(60)]
    write_rows(tmp_path / "data.jsonl", records)
    prepare(kind, case, small_encoder, tmp_path / "data.jsonl")
    assert "unknown to the tokenizer" not in caplog.text
    write_rows(tmp_path / "data.jsonl", map(in_another_script, records))
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
    write_rows(data / "train.jsonl", (record(number, case[1]) for number in range(80)))
    write_rows(data / "validation.jsonl", (record(number, case[1]) for number in range(80, 110)))
    told, test_texts = [], []
    for first in (200, 300):
        write_rows(data / "test.jsonl", (record(number, case[1]) for number in range(first, first + 25)))
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
    write_rows(data / "train.jsonl", (record(number, case[1]) for number in range(80)))
    new = [record(number, case[1]) for number in range(200, 220)]
    near = [longer_by_a_word(other, record(number, case[1])) for number, other in enumerate(new[:8])]
    write_rows(data / "test.jsonl", [*near, *new[8:]])
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


TRAINED = [kind for kind in CASES if kind != "zero_shot"]
FIRST = ("max_length", "frozen_layers", "lora")
CHANGED: list[tuple[Mapping[str, object], list[str]]] = [
    ({}, [*FIRST]),
    ({"frozen_layers": 1}, ["max_length"]),
    ({"lora": {"rank": 2, "alpha": 4, "dropout": 0.0}}, ["max_length"]),
]


def test_a_batch_too_large_for_main_memory_is_halved_with_the_same_result(small_encoder: Path, tmp_path: Path) -> None:
    """Pairs are the kind whose parts also read the rest of their batch."""
    write_rows(tmp_path / "few.jsonl", (record(number, {}) for number in range(40)))
    write_rows(tmp_path / "many.jsonl", (record(number, {}) for number in range(1200)))
    arguments = ("similarity", small_encoder, tmp_path / "few.jsonl", tmp_path / "many.jsonl")
    found = run_alone("tests.tasks.little_memory", *arguments)
    halved = [line for line in found["told"] if "out of memory" in line]
    assert halved, "memory did not run out, so nothing was tested"
    assert sum("out of memory" in line for line in found["told in all"]) == len(halved)
    assert found["little"] == pytest.approx(found["enough"], rel=1e-5)


@pytest.mark.parametrize("kind", TRAINED)
def test_halves_of_a_batch_give_the_loss_of_the_whole(
    kind: str, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data.jsonl"
    write_rows(data, (record(number, {}) for number in range(120)))
    enough = losses(kind, small_encoder, data, batch_size=48)
    assert "out of memory" not in caplog.text
    task = type(prepare(kind, CASES[kind][0], small_encoder, data))
    whole = task.loss_sum

    def loss_sum(self: Task, inputs: Any) -> torch.Tensor:
        return without_end() if inputs.num_rows > 20 else whole(self, inputs)

    monkeypatch.setattr(task, "loss_sum", loss_sum)
    assert losses(kind, small_encoder, data, batch_size=48) == pytest.approx(enough, rel=1e-5)
    halved = [line for line in caplog.messages if "out of memory" in line]
    assert halved
    assert all(named_in(line) == ["micro_batch_tokens"] for line in halved)
    assert is_knob_of(SECTIONS[kind], "micro_batch_tokens")


def without_end(*_: object) -> torch.Tensor:
    """Request more memory than any machine has, so that torch raises its own error."""
    return torch.empty(1 << 50)


@pytest.mark.parametrize("kind", TRAINED)
def test_a_row_too_large_for_memory_is_refused_with_its_size_and_the_params_of_this_kind(
    kind: str, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "data.jsonl", (record(number, {}) for number in range(40)))
    case = CASES[kind][0]
    task = prepare(kind, case, small_encoder, tmp_path / "data.jsonl")
    monkeypatch.setattr(type(task), "loss_sum", without_end)
    training = prepare_training(
        task, inputs_of_case(kind, case, small_encoder, tmp_path / "data.jsonl"), tmp_path / "work"
    )
    with pytest.raises(TrainingError) as caught:
        training.chosen().run(Callback(), lambda validation: None)
    assert "4,503,599,627,370,496 bytes were requested" in str(caught.value)
    assert "of epoch" in str(caught.value)
    assert named_in(str(caught.value)) == [*FIRST]
    assert all(is_knob_of(SECTIONS[kind], knob) for knob in FIRST)


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize(("changes", "knobs"), CHANGED)
def test_remedies_leave_out_params_that_are_already_set(
    kind: str, changes: dict[str, object], knobs: list[str], tmp_path: Path
) -> None:
    params = inputs_of_case(kind, CASES[kind][0], tmp_path, tmp_path / "data.jsonl", **changes).params
    assert named_in(remedies(params)) == knobs


def test_pairs_that_are_cut_shorter_in_training_are_reported_at_that_length(tmp_path: Path) -> None:
    params = inputs_of_case(
        "similarity", CASES["similarity"][0], tmp_path, tmp_path / "data.jsonl", train_length=16
    ).params
    told = named_in(remedies(params))
    assert told == ["train_length", "frozen_layers", "lora"]
    assert all(is_knob_of(SECTIONS["similarity"], knob) for knob in told)
