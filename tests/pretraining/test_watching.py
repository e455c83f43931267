"""The examples of a training are sentences, if the held-out text has some."""

import logging
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from clozeline.language.objectives import Split
from clozeline.language.shards import TokenShards
from clozeline.language.spelling import Spelling
from clozeline.pretraining.watching import Examiner, ShownExamples, reads_as_sentence
from clozeline.training.curves import ValidationPass
from tests.conftest import VOCAB_SIZE, TokensMaker
from tests.training.prepared import Prepare

CODE = "const : ` double { x } = [ y ] ( z ) ; return value"
SENTENCE = "this function will return a small copy of the given list of words ."
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("Return a copy of the string.", True),
        ("यह एक वाक्य है।", True),
        ("这是一个句子。", True),
        ("Return the attribute `name` of an object.", False),
        ("Return a copy of the", False),
        ("{'a': 1, 'b': [2, 3]} == f(x).", False),
    ],
)
def test_sentences_are_distinguished_from_code_and_fragments(text: str, is_one: bool) -> None:
    assert reads_as_sentence(text) == is_one


def test_sentences_are_preferred_to_code_and_shown_whole(tmp_path: Path, make_tokens: TokensMaker) -> None:
    """Other text is used if there are too few."""
    documents = [CODE, f"{SENTENCE} {CODE}", CODE, SENTENCE]
    words = sorted({word for text in documents for word in text.split()})
    ids = {word: number for number, word in enumerate([*SPECIAL, *words])}
    assert len(ids) <= VOCAB_SIZE
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]").save_pretrained(tmp_path)
    tokens = [np.array([ids[word] for word in text.split()]) for text in documents]
    split = Split.open(TokenShards.open(make_tokens(tokens, tokens), "validation"), 64)
    examiner = Examiner(split, tokenizer, Spelling.open(tmp_path), "mlm")
    asked = examiner.questions(2)
    assert [question.text.replace("[MASK]", question.truth) for question in asked] == [SENTENCE, SENTENCE]
    assert [question.text.count("[MASK]") for question in asked] == [1, 1]
    assert sorted(question.is_sentence for question in examiner.questions(4)) == [False, False, True, True]


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_examples_are_shown_at_each_validation_pass(objective: str, prepare: Prepare, caplog) -> None:
    job = prepare(objective=objective)
    with caplog.at_level(logging.INFO):
        examples = ShownExamples.of(job.model, job.validation, prepare.tokenizer)
        examples.on_validation(ValidationPass(10, 2.0, 0.5))
    shown = [record.getMessage() for record in caplog.records]
    assert len(shown) == 3
    for line in shown:
        text, rest = line.split(" → ")
        words, truth = text.split(), int(rest.rpartition("right: 'w")[2].rstrip("'"))
        before = words[words.index("[MASK]" if objective == "mlm" else "…") - 1]
        assert truth == (int(before.removeprefix("w")) - 5 + 1) % 59 + 5
        assert text.count("[MASK]") == (objective == "mlm"), "one word is masked, the rest is readable"
