"""Claim: two runs of every kind of task write the same files; what cannot be trained is refused before any training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from clozeline.params.tasks import SECTIONS
from clozeline.records.finetune.scored_items import read_held_out
from clozeline.system.errors import ParamsError, TrainingError
from clozeline.tasks import heads
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.rows import EncodedBatch
from clozeline.tasks.task import Task, answers
from clozeline.tasks.training import prepare_training
from clozeline.training.state import Callback
from tests.make.params import is_knob_of, named_in
from tests.make.tasks import (
    CASES,
    EACH,
    Case,
    contents,
    fine_tune,
    inputs_of_case,
    metrics_of,
    prepare,
    record,
    without_card,
    write_rows,
)

NUM_BYTES = "4,503,599,627,370,496 bytes were requested"
TRAINED = [kind for kind in CASES if kind != "zero_shot"]


def without_end(*_: object) -> torch.Tensor:
    """Request more memory than any machine has, so that torch raises its own error."""
    return torch.empty(1 << 50)


def written(folder: Path, case: Case, numbers: range, name: str = "data") -> Path:
    return write_rows(folder / f"{name}.jsonl", (record(number, case[1]) for number in numbers))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_longer_than_the_model_reads_are_refused(kind: str, small_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="`max_length: 65`"):
        prepare(kind, CASES[kind][0], small_encoder, written(tmp_path, CASES[kind][0], range(60)), max_length=65)


def answered(most_rows: int, model: Any) -> list[list[int]]:
    """Return the rows of each batch of 19 that was answered, where memory holds at most `most_rows` rows."""

    def answer(_: Any, batch: EncodedBatch) -> torch.Tensor:
        return batch.input_ids_BL[:, 0] if batch.num_rows <= most_rows else without_end()

    batches = np.split(np.arange(19), [8, 16])
    found = list(answers(model, batches, lambda rows_B: EncodedBatch(torch.from_numpy(rows_B)[:, None], None), answer))
    assert all(rows_B.tolist() == told_B.tolist() for rows_B, told_B in found)
    return [rows_B.tolist() for rows_B, _ in found]


def test_a_batch_too_large_for_memory_and_all_later_ones_are_evaluated_in_parts(
    small_encoder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = heads.build(small_encoder, "feature-extraction", 1, {})
    assert answered(8, model) == [[*range(8)], [*range(8, 16)], [16, 17, 18]]
    assert caplog.text == ""
    in_parts = answered(3, model)
    assert [row for rows in in_parts for row in rows] == [*range(19)]
    assert max(map(len, in_parts)) == 2
    assert caplog.text.count("out of memory") == 2, "halved twice, then never tried again"
    with pytest.raises(TrainingError, match=rf"(?s)out of memory on one row.*{NUM_BYTES}") as caught:
        answered(0, model)
    assert named_in(str(caught.value)) == ["max_length"]
    assert all(is_knob_of(section, "max_length") for section in SECTIONS.values())


def in_another_script(row: dict[str, object]) -> dict[str, object]:
    text = "".join(chr(0x4E00 + ord(letter)) if letter.isalpha() else letter for letter in str(row["text"]))
    words = text.split()
    changed = {"question": f"{text} {row['question']}", "answers": {"text": [words[0]], "answer_start": [0]}}
    return row | changed | {"text": text, "second": text, "context": text, "tokens": words}


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_a_tokenizer_with_too_many_unknown_tokens_is_reported(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [record(number, case[1]) for number in range(60)]
    for rows, is_reported in ((records, False), (map(in_another_script, records), True)):
        prepare(kind, case, small_encoder, write_rows(tmp_path / "data.jsonl", rows))
        assert ("tokens of the training texts are unknown to the tokenizer" in caplog.text) == is_reported


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_test_items_do_not_influence_training_selection_or_the_saved_model(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    splits = {name: f"{name}.jsonl" for name in ("train", "validation", "test")}
    written(tmp_path, case, range(80), "train")
    written(tmp_path, case, range(80, 110), "validation")
    told, test_texts = [], []
    for first in (200, 300):
        written(tmp_path, case, range(first, first + 25), "test")
        task = prepare(kind, case, small_encoder, tmp_path, splits=splits)
        (out := tmp_path / f"out {first}").mkdir()
        score = task.validation_score()
        task.save(out)
        batch = next(task.batches_from(0, 0))
        told.append((score, without_card(out), batch.num_tokens, batch.num_targets, task.batches_per_epoch))
        test_texts.append({*task.test().test_texts})
    assert told[0] == told[1]
    assert not test_texts[0] & test_texts[1]


def losses(kind: str, encoder: Path, folder: Path) -> list[float]:
    """Return the losses of a training in batches of 48 rows, and the scores of its validation passes."""
    case, seen, callback = CASES[kind][0], list[float](), Callback()
    callback.on_point = lambda point: seen.append(point.loss)  # type: ignore[method-assign]  # a callback is a class
    data = written(folder, case, range(120))
    knobs = {"max_length": 64, "epochs": 2, "validations_per_epoch": 1, "batch_size": 48}
    task = prepare(kind, case, encoder, data, **knobs)
    training = prepare_training(task, inputs_of_case(kind, case, encoder, data, **knobs), folder / "work")
    trained = training.chosen().run(callback, lambda validation: None)
    training.forget()
    return [*seen, *(validation.validation_score for validation in trained.validations)]


FIRST = ["max_length", "frozen_layers", "lora"]


@pytest.mark.parametrize("kind", TRAINED)
def test_halves_of_a_batch_give_the_loss_of_the_whole_and_a_row_too_large_for_memory_is_refused(
    kind: str, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    enough = losses(kind, small_encoder, tmp_path)
    assert "out of memory" not in caplog.text
    task = type(prepare(kind, CASES[kind][0], small_encoder, tmp_path / "data.jsonl"))
    whole = task.loss_sum

    def loss_sum(self: Task[Any], inputs: Any) -> torch.Tensor:
        return without_end() if inputs.num_rows > 20 else whole(self, inputs)

    monkeypatch.setattr(task, "loss_sum", loss_sum)
    assert losses(kind, small_encoder, tmp_path) == pytest.approx(enough, rel=1e-5)
    halved = [line for line in caplog.messages if "out of memory" in line]
    assert halved
    assert all(named_in(line) == ["micro_batch_tokens"] for line in halved)
    monkeypatch.setattr(task, "loss_sum", without_end)
    with pytest.raises(TrainingError, match=rf"(?s)of epoch.*{NUM_BYTES}") as caught:
        losses(kind, small_encoder, tmp_path)
    assert named_in(str(caught.value)) == FIRST
    assert all(is_knob_of(SECTIONS[kind], knob) for knob in (*FIRST, "micro_batch_tokens"))


STOCK = {
    "tagging": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "zero_shot": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
}


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_two_runs_write_the_same_files_which_stock_classes_load(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    write_rows(data, (record(number, case[1]) for number in range(120)))
    params = inputs_of_case(kind, case, small_encoder, data, epochs=1).params
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        fine_tune(params, tmp_path / name / "out", encoder=small_encoder, data=data)
    once, twice = (tmp_path / name / "out" for name in ("one", "two"))
    assert contents(once) == contents(twice)
    together = STOCK["classification"] if case[0].get("read_together") else "AutoModel"
    stock = getattr(transformers, STOCK.get(kind, together)).from_pretrained(once / "model", output_loading_info=True)
    assert not stock[1]["missing_keys"]
    held_out, texts = read_held_out(once / "model"), data.read_text()
    assert 0 < len(held_out) <= metrics_of(once)["num_validation"]
    assert all(item.text in texts and (item.second or "") in texts for item in held_out)
