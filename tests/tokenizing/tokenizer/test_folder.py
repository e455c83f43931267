"""Claim: a tokenizer folder loads in stock AutoTokenizer, has every special token, and reads raw text as raw text."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from clozeline.params.text import TokenizeParams
from clozeline.records.reading.tokens import SpecialIds
from clozeline.system.errors import ArtifactError, DataError
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer, save, save_existing
from clozeline.tokenizing.vocabularies import learn
from clozeline.tokenizing.words import CountedTexts


@pytest.fixture
def folder(params: TokenizeParams, partitions: list[CountedTexts], tmp_path: Path) -> Path:
    (tmp_path / "tokenizer").mkdir()
    save(learn(params, partitions), tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_the_stock_auto_tokenizer_gives_the_same_ids(folder: Path) -> None:
    stock, ours = AutoTokenizer.from_pretrained(folder), OpenTokenizer.open(folder)
    assert (stock.pad_token_id, stock.unk_token_id) == (0, 1)
    assert (stock.cls_token_id, stock.sep_token_id, stock.mask_token_id) == (2, 3, 4)
    text = "Kato mire, étàsulon (vo)"
    assert stock(text)["input_ids"] == [2, *ours.tokenizer.encode(text, add_special_tokens=False).ids, 3]
    assert set(stock(text)) == {"input_ids", "attention_mask"}
    assert len(stock) == ours.vocab_size == 400


def test_a_mask_written_in_a_text_is_plain_text(folder: Path) -> None:
    tokenizer = OpenTokenizer.open(folder).tokenizer
    assert not {0, 2, 3, 4} & set(tokenizer.encode("kato [MASK] [SEP]mire[PAD]", add_special_tokens=False).ids)
    assert AutoTokenizer.from_pretrained(folder)("kato [MASK]")["input_ids"].count(4) == 1


@pytest.mark.parametrize("params", ["bpe"], indirect=True)
def test_a_mask_replaces_the_word_and_the_space_before_it(folder: Path) -> None:
    """As in training, where `Ġto` is masked whole; no model was trained with a separate `Ġ` before a mask."""
    stock = AutoTokenizer.from_pretrained(folder)
    masked, plain = (stock.convert_ids_to_tokens(stock(text)["input_ids"]) for text in ("ka [MASK] to", "ka to"))
    assert masked == [*plain[:2], "[MASK]", *plain[2:]]


def taken(given: Path) -> Path:
    """Save the tokenizer in `given` by `save_existing`, and return the folder."""
    out = given.with_name("taken")
    out.mkdir()
    save_existing(str(given), out)
    return out


def saved(tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    tokenizer.save_pretrained(folder / "given")
    return taken(folder / "given")


def test_a_tokenizer_without_a_mask_gets_one_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its truncation and padding are ignored."""
    words = ["<pad>", "<s>", "</s>", "<unk>", "one", "two", "three", "four", "five"]
    tokenizer = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=4)
    framing = {"single": "<s> $A </s>", "special_tokens": [("<s>", 1), ("</s>", 2)]}
    tokenizer.post_processor = processors.TemplateProcessing(**framing)
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    with caplog.at_level(logging.WARNING):
        opened = OpenTokenizer.open(saved(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special), tmp_path))
    assert "has no mask_token of its own: added [MASK]" in caplog.text
    assert "grew from 9 to 10 tokens: a model that starts from trained weights gets 1 untrained rows" in caplog.text
    assert opened.special_ids == SpecialIds(pad=0, cls=1, sep=2, mask=9, unk=3, every=(0, 1, 2, 3, 9))
    assert opened.vocab_size == 10
    assert AutoTokenizer.from_pretrained(tmp_path / "taken")("one [MASK]")["input_ids"][:4] == [1, 4, 9, 2]
    for text, length in (("one two three four five", 5), ("one", 1)):
        assert len(opened.tokenizer.encode(text, add_special_tokens=False).ids) == length


def gpt2_like(**special: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, whose end-of-text token is also the beginning-of-text and the unknown token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    made = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "special_tokens": ["<|endoftext|>"]}
    tokenizer.train_from_iterator(["one two three"] * 3, trainers.BpeTrainer(**made, show_progress=False))
    roles = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles, **special)


def test_a_gpt2_tokenizer_gets_a_mask_and_the_other_special_tokens_of_a_row(tmp_path: Path) -> None:
    """P10."""
    given = gpt2_like()
    opened = OpenTokenizer.open(saved(given, tmp_path))
    ids, size = opened.special_ids, len(given)
    assert sorted([ids.pad, ids.cls, ids.sep, ids.mask]) == [size, size + 1, size + 2, size + 3]
    assert opened.vocab_size == size + 4
    assert set(ids.every) == {0, size, size + 1, size + 2, size + 3}
    stock = AutoTokenizer.from_pretrained(tmp_path / "taken")
    one, two = given("one")["input_ids"], given(" two")["input_ids"]
    assert stock("one")["input_ids"] == [ids.cls, *one, ids.sep]
    assert len(stock) == opened.vocab_size
    assert stock("one [MASK] two")["input_ids"] == [ids.cls, *one, ids.mask, *two, ids.sep]
    in_a_text = opened.tokenizer.encode("one [MASK]<|endoftext|>", add_special_tokens=False)
    assert not set(ids.every) & set(in_a_text.ids)


def test_an_end_of_text_token_is_not_used_as_the_mask(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """P10: the mask is a separate token that no text contains."""
    given = gpt2_like(mask_token="<|endoftext|>", pad_token="<|endoftext|>")
    with caplog.at_level(logging.WARNING):
        opened = OpenTokenizer.open(saved(given, tmp_path))
    assert "no cls_token, sep_token, mask_token of its own" in caplog.text
    assert opened.special_ids.mask not in (opened.special_ids.pad, given.eos_token_id)
    assert AutoTokenizer.from_pretrained(tmp_path / "taken").mask_token == "[MASK]"


@pytest.mark.parametrize("params", ["bpe"], indirect=True)
def test_a_tokenizer_trained_here_is_used_unchanged_without_transformers(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    program = (
        "import sys; from pathlib import Path; from clozeline.tokenizing.tokenizer.folder import save_existing; "
        "save_existing(sys.argv[1], Path(sys.argv[2])); assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(folder), str(tmp_path / "taken")], check=True)
    of_taken, of_given = ({it.name: it.read_bytes() for it in one.iterdir()} for one in (tmp_path / "taken", folder))
    assert of_taken == of_given


@pytest.mark.parametrize("content", [None, '{"model_type": "bert"}'])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "config.json").write_text(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match=str(tmp_path)) as caught:
        save_existing(str(tmp_path), tmp_path / "out")
    assert "`existing`" in caught.value.do


@pytest.mark.parametrize("params", ["bpe"], indirect=True)
def test_a_damaged_folder_is_named_and_one_whose_mask_was_removed_by_hand_can_be_repaired(folder: Path) -> None:
    names = json.loads((folder / "tokenizer_config.json").read_text())
    del names["mask_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    with pytest.raises(ArtifactError, match=r"(?s)lacks the tokens.*mask_token"):
        OpenTokenizer.open(folder)
    assert OpenTokenizer.open(taken(folder)).special_ids.mask == 4
    for name in ("tokenizer_config.json", "tokenizer.json"):
        os.truncate(folder / name, 20)
        with pytest.raises(ArtifactError, match=str(folder)):
            OpenTokenizer.open(folder)
