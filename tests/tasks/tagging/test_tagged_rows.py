"""Claim: each word's tag is at its first token, and every word of any sentence gets one answer."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from clozeline.records.reading.tokens import SpecialIds
from clozeline.tasks.tagging.data import Sentence
from clozeline.tasks.tagging.tagged_rows import NO_TARGET, TaggedRows
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

TAGS = ("O", "B-X", "I-X")


def sentence(words: str, tags: str) -> Sentence:
    return Sentence(tuple(words.split(" ")), tuple(tags.split()), words, "train")


@pytest.fixture
def opened(small_encoder: Path) -> OpenTokenizer:
    return OpenTokenizer.open(small_encoder)


def test_the_tag_of_a_word_is_at_its_first_token(opened: OpenTokenizer) -> None:
    rows = TaggedRows.encode([sentence("sentence xylophone a", "O B-X O")], TAGS, opened, 32)
    batch = rows.batch(np.array([0]))
    asked = [place for place in batch.targets_B[0].tolist() if place != NO_TARGET]
    assert asked == [0, 1, 0]
    (first_W,) = rows.first_RW
    tokens = [opened.tokenizer.id_to_token(id_) for id_ in batch.input_ids_BL[0].tolist()]
    assert [tokens[place][:1] for place in first_W] == ["s", "x", "a"]
    assert tokens[0] == "[CLS]"
    assert tokens[-1] == "[SEP]"


def test_a_sentence_longer_than_a_row_continues_in_the_next_without_losing_words(opened: OpenTokenizer) -> None:
    long = sentence(" ".join(["the", "model", "xylophone"] * 9), " ".join(["O", "B-X", "O"] * 9))
    rows = TaggedRows.encode([long, sentence("a file", "O B-X")], TAGS, opened, 12)
    assert rows.num_split == 1
    assert max(rows.rows.length_T) <= 12
    said = dict(enumerate(rows.target_RW))
    assert rows.tags_of(said, TAGS, "O") == [list(it.tags) for it in rows.sentences]
    assert rows.num_targets(np.arange(len(rows.rows))) == 29


def test_a_word_that_the_tokenizer_drops_is_tagged_o_and_counted(opened: OpenTokenizer) -> None:
    rows = TaggedRows.encode([sentence("a \u200b file", "O B-X B-X")], TAGS, opened, 32)
    assert rows.num_unread_words == 1
    assert rows.tags_of({0: np.array([0, 1])}, TAGS, "O") == [["O", "O", "B-X"]]


def test_a_tag_unseen_in_training_is_not_a_target(opened: OpenTokenizer) -> None:
    rows = TaggedRows.encode([sentence("a file", "B-Y O")], TAGS, opened, 32)
    assert rows.num_targets(np.array([0])) == 1


def test_a_word_has_the_byte_level_tokens_of_running_text() -> None:
    vocab = {token: place for place, token in enumerate(["<s>", "</s>", "<pad>", "<mask>", "a", "b", "Ġ", "Ġb"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("Ġ", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    ids = SpecialIds(pad=2, unk=None, cls=0, sep=1, mask=3, every=(0, 1, 2, 3))
    opened = OpenTokenizer(tokenizer, ids, (), 8, "", Path())
    rows = TaggedRows.encode([sentence("a b", "O O")], TAGS, opened, 8)
    assert rows.rows.ids_T[0].tolist() == [0, *tokenizer.encode("a b").ids, 1] == [0, 4, 7, 1]
