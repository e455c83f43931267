"""Tokenizers in every layout that is published: the ids of the checkpoint, and a tokenizer.json for stock readers."""

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import import_protobuf

from clozeline.system.errors import DataError
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer, save_existing
from clozeline.tokenizing.tokenizer.vocabulary.opening import open_published, vocabulary_of

UNIGRAM, MERGES = 1, 2
NORMAL, UNKNOWN, CONTROL = 1, 2, 3
PIECES = {"▁the": -3.0, "▁": -2.0, "▁cat": -4.0, "s": -3.5, "▁a": -5.0, "t": -6.0, "▁É": -7.0}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "The", "É", "e"]


def sentencepiece(folder: Path, file: str, model_type: str, heads: list[str], algorithm: int = UNIGRAM) -> Path:
    """Write a published SentencePiece file and config.json; `heads`, with the unknown token, get the first ids."""
    model = import_protobuf().ModelProto()
    for head in heads:
        model.pieces.add(piece=head, score=0.0, type=UNKNOWN if "unk" in head.lower() else CONTROL)
    for piece, score in PIECES.items():
        model.pieces.add(piece=piece, score=score, type=NORMAL)
    model.trainer_spec.model_type = algorithm
    model.trainer_spec.unk_id = next(number for number, head in enumerate(heads) if "unk" in head.lower())
    folder.mkdir()
    (folder / file).write_bytes(model.SerializeToString())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


FILES = {
    "albert": ("spiece.model", ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
    "deberta-v2": ("spm.model", ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]),
    "xlm-roberta": ("sentencepiece.bpe.model", ["<unk>", "<s>", "</s>"]),
}


def published(kind: str, folder: Path) -> Path:
    file, heads = FILES[kind]
    return sentencepiece(folder / kind, file, kind, heads)


def taken(given: Path) -> Path:
    """Save the tokenizer in `given` by `save_existing`, and return the folder."""
    out = given / "taken"
    out.mkdir()
    save_existing(str(given), out)
    return out


EXPECTED = {  # ids of "the cats É"; ALBERT folds case and accents, and has no "e"
    "albert": [2, 5, 7, 8, 6, 1, 3],
    "deberta-v2": [1, 4, 6, 7, 10, 2],
    "xlm-roberta": [0, 4, 6, 7, 10, 2],
}
MASKS = {"albert": ("[MASK]", 4), "deberta-v2": ("[MASK]", 11), "xlm-roberta": ("<mask>", 11)}


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_sentencepiece_only_vocabulary_keeps_its_ids_and_loads_in_stock_transformers(kind, tmp_path) -> None:
    folder = published(kind, tmp_path)
    out = taken(folder)
    stock, opened = AutoTokenizer.from_pretrained(out), OpenTokenizer.open(out)
    assert stock("the cats É")["input_ids"] == EXPECTED[kind]
    assert (stock.mask_token, stock.mask_token_id) == MASKS[kind]
    assert opened.special_ids.mask == stock.mask_token_id
    assert vocabulary_of(str(folder), None) == stock.get_vocab()
    assert (stock.cls_token_id, stock.sep_token_id) == (EXPECTED[kind][0], EXPECTED[kind][-1])
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "keep_accents": true}')
    assert len(open_published(str(folder))("É")["input_ids"]) == 3, "the config says whether accents are kept"


@pytest.mark.parametrize(("lowers", "ids"), [("true", [5, 6, 7, 10]), ("false", [8, 6, 7, 9])])
def test_a_vocabulary_txt_keeps_its_ids(lowers: str, ids: list[int], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text(f'{{"do_lower_case": {lowers}}}')
    stock = AutoTokenizer.from_pretrained(taken(tmp_path))
    assert stock("The cats É")["input_ids"] == [2, *ids, 3]
    assert vocabulary_of(str(tmp_path), None) == {word: number for number, word in enumerate(WORDS)}


def test_the_rules_of_tokenizer_json_apply_even_if_stock_would_build_its_own(tmp_path: Path) -> None:
    """`BertTokenizer` of transformers 5 takes only the vocabulary from there."""
    rules = Tokenizer(models.WordPiece({word: id_ for id_, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.Split("|", "removed")
    rules.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "model_max_length": 7}')
    stock = AutoTokenizer.from_pretrained(taken(tmp_path))
    assert stock("The|cats|É", add_special_tokens=False)["input_ids"] == [8, 6, 7, 9]
    assert (stock.mask_token_id, stock.model_max_length) == (4, 7)


@pytest.mark.parametrize(
    ("file", "kind", "heads", "algorithm"),
    [
        ("spm.model", "deberta-v2", ["[PAD]", "[CLS]", "[SEP]", "[UNK]"], MERGES),
        ("sentencepiece.bpe.model", "camembert", ["<unk>", "<s>", "</s>"], UNIGRAM),
    ],
)
def test_a_model_that_cannot_be_converted_is_refused_with_a_command_that_can(
    file: str, kind: str, heads: list[str], algorithm: int, tmp_path: Path
) -> None:
    folder = sentencepiece(tmp_path / kind, file, kind, heads, algorithm)
    with pytest.raises(DataError, match=rf'(?s)cannot be used.*AutoTokenizer.from_pretrained\("{folder}"\)'):
        open_published(str(folder))
    os.truncate(folder / file, 20)
    with pytest.raises(DataError, match=f"tokenizer `{folder}` cannot be used"):
        open_published(str(folder))
