"""Claims: a task trains only the vectors of tokens in its training rows; its checkpoints depend only on its own
code."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import clozeline
from clozeline.tasks.kinds import train_each
from clozeline.tasks.rows import EncodedBatch
from clozeline.tasks.task import Task
from clozeline.tasks.training import prepare_training
from clozeline.training.state import Callback
from tests.make.models import small_bert
from tests.make.tasks import CASES, EACH, Case, inputs_of, keep_last_weights, prepare, record, write_records


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_a_task_reports_every_token_that_it_trains_on(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    write_records(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(80)))
    task = prepare(kind, case, small_encoder, tmp_path / "data.jsonl")
    batches = islice(task.batches_from(0, 0), task.batches_per_epoch)
    brought = {token for batch in batches for rows in encoded_in(batch.inputs) for token in tokens_in(rows)}
    assert brought == tokens_of(task)
    assert bool(brought) == (kind != "zero_shot")


def encoded_in(inputs: Any) -> list[EncodedBatch]:
    return [inputs.firsts, inputs.seconds] if hasattr(inputs, "seconds") else [inputs.encoded]


def tokens_in(rows: EncodedBatch) -> list[int]:
    mask_BL = rows.attention_mask_BL
    ids = rows.input_ids_BL.flatten() if mask_BL is None else rows.input_ids_BL[mask_BL.bool()]
    return ids.tolist()


def tokens_of(task: Task) -> set[int]:
    return {token for rows in task.trained_on for ids in rows.ids_T for token in ids.tolist()}


def test_embeddings_of_words_outside_the_training_texts_stay_unchanged(
    save_trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertForMaskedLM

    keep_last_weights(monkeypatch)
    torch.manual_seed(0)
    encoder = save_trained(BertForMaskedLM(small_bert()))
    case = CASES["classification"][0]
    write_records(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(80)))
    inputs = inputs_of("classification", case, encoder, tmp_path / "data.jsonl", epochs=1)
    assert inputs.params.optimizer.weight_decay > 0
    before = table_of(prepare("classification", case, encoder, tmp_path / "data.jsonl")).clone()
    finished = next(
        train_each(inputs, tmp_path / "work", lambda it, seed: it.chosen().run(Callback(), lambda look: None))
    )
    has_changed = (table_of(finished.task) != before).any(dim=1)
    assert set(has_changed.nonzero().flatten().tolist()) == tokens_of(finished.task)


def table_of(task: Any) -> torch.Tensor:
    table: torch.Tensor = task.model.get_input_embeddings().weight.detach()
    return table


@pytest.mark.parametrize("changed", ["tasks/heads.py", "tokenizing/tokenizer/folder.py", "records/words/shingles.py"])
def test_editing_code_that_a_kind_uses_renames_its_checkpoints(
    changed: str, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clozeline, "__file__", str(tmp_path / "__init__.py"))
    for place in ("records/finetune/scored_items.py", changed):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    kind, (case, *_) = "classification", CASES["classification"]
    write_records(tmp_path / "data.jsonl", (record(number, case[1]) for number in range(80)))
    inputs = inputs_of(kind, case, small_encoder, tmp_path / "data.jsonl")
    names = []
    for line in ("one = 1\n", "one = 1\n", "one = 2\n"):
        (tmp_path / changed).write_text(line, encoding="utf-8")
        task = prepare(kind, case, small_encoder, tmp_path / "data.jsonl")
        names.append(prepare_training(task, inputs, tmp_path / "work").loop.checkpoints.fingerprint)
    assert names[0] == names[1] != names[2]
