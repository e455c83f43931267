"""Claim: our rows are free of the faults of run_mlm.py's rows. Each test shows ours and theirs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.language.masking import Masker
from clozeline.language.objectives import OBJECTIVES, Split
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from tests.benchmarks.comparison.run_mlm import as_dataset, grouped
from tests.training.prepared import changed

SEP = 3


@pytest.fixture
def bert(tiny_pretraining: PretrainParams) -> Any:
    """BERT with weights large enough that its attention shows in its output."""
    shape = changed(tiny_pretraining, model__family="bert", model__initializer_range=0.5).model
    return models.build(shape, "mlm", TokenIds(64, pad_id=0, cls_id=2, sep_id=SEP), seed=3).eval()


def opened(tokens: Path) -> Split:
    return Split.open(TokenShards.open(tokens, "train"), max_length=16)


def words(ids: np.ndarray) -> str:
    return " ".join(f"w{number}" for number in ids)


@torch.no_grad()
def logits_of(model: Any, ids: list[int], last: int) -> Tensor:
    """Return the logits of the last `last` tokens of a row."""
    logits: Tensor = model(input_ids=torch.tensor([ids])).logits[0, -last:]
    return logits


def test_documents_do_not_attend_to_each_other_but_theirs_do(bert, make_tokens, tiny_tokenizer, tmp_path) -> None:
    """P14: run_mlm joins texts into rows in which each token attends to all."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_tokenizer, local_files_only=True)
    document, others = np.arange(20, 28), (np.arange(5, 13), np.arange(40, 48))
    theirs = [
        grouped(as_dataset([words(other), words(document)]), tokenizer, max_length=16)[0]["input_ids"]
        for other in others
    ]
    ours = []
    for place, other in enumerate(others):
        split = opened(make_tokens([other, document], [document]).rename(tmp_path / str(place)))
        tokens = split.read(np.array([1]))
        ours.append(tokens.padded(tokens.input_ids_N, split.boundary)[0].tolist())
    one, other = (logits_of(bert, ids, len(document)) for ids in theirs)
    assert theirs[0][-8:] == theirs[1][-8:] == document.tolist()
    assert (one - other).abs().max() > 0.1
    one, other = (logits_of(bert, ids, len(document) + 1) for ids in ours)
    assert ours[0][1:-1] == document.tolist()
    assert torch.equal(one, other)


def test_no_token_is_dropped_but_theirs_drops_the_rest_of_each_batch(make_tokens, tiny_tokenizer) -> None:
    """P15."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_tokenizer, local_files_only=True)
    documents = [np.arange(5, 5 + length) for length in (7, 12, 9, 11)]
    num_tokens = sum(map(len, documents))
    theirs = grouped(as_dataset([words(document) for document in documents]), tokenizer, max_length=16)["input_ids"]
    assert sum(map(len, theirs)) == num_tokens - num_tokens % 16 < num_tokens
    assert opened(make_tokens(documents, documents)).rows.length_R.sum() == num_tokens


def test_the_end_of_text_token_is_a_target_but_theirs_ignores_it_if_it_is_also_padding(
    make_tokens: Callable[..., Path], tiny_pretraining: PretrainParams, tiny_tokenizer: Path
) -> None:
    """P19: as in GPT-2's tokenizer."""
    documents = [np.arange(5, 5 + length) for length in (4, 6, 9)]
    tokenizer = AutoTokenizer.from_pretrained(tiny_tokenizer, local_files_only=True)
    tokenizer.pad_token = "[SEP]"
    rows = [{"input_ids": [*document.tolist(), SEP]} for document in documents]
    labels_BL = DataCollatorForLanguageModeling(tokenizer, mlm=False)(rows)["labels"]
    assert (labels_BL == 9).any()
    assert not (labels_BL == SEP).any()

    split = opened(make_tokens(documents, documents))
    split = replace(split, boundary=split.boundary.model_copy(update={"cls": 2, "sep": SEP, "pad": SEP}))
    masker = Masker.create(tiny_pretraining.masking, split.vocabulary, seed=1)
    batch = OBJECTIVES["clm"].training_batch(split, masker, split.read(np.arange(3)), 0, 0.0)
    row_T = batch.slot_T // batch.input_ids_BL.shape[1]
    assert row_T[batch.labels_T == SEP].tolist() == [0, 1, 2]
    assert len(batch.labels_T) == sum(len(document) + 1 for document in documents)
