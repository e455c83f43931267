"""The tokenizer on disk: open it, save it, and adapt a given one to masked language modelling.

A folder holds tokenizer.json (the rules) and tokenizer_config.json (the roles), and loads in stock `AutoTokenizer`.
"""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken, Tokenizer, processors

from clozeline.records.reading.tokens import SpecialIds
from clozeline.system.errors import ArtifactError
from clozeline.system.files import sha256_of
from clozeline.tokenizing.tokenizer.vocabulary.opening import TOKENIZER_FILE, open_published

_LOG = logging.getLogger(__name__)
_CONFIG_FILE = "tokenizer_config.json"

# Token of each role, as transformers names the role. A tokenizer trained here has them as ids 0 to 4 in this order.
SPECIAL_TOKENS: Mapping[str, str] = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
# Class of transformers that uses tokenizer.json unchanged, by the name that every version knows.
_CLASS = "PreTrainedTokenizerFast"
# Contents of tokenizer_config.json of every tokenizer trained here.
_DESCRIPTION: Mapping[str, object] = {
    **SPECIAL_TOKENS,
    "clean_up_tokenization_spaces": False,
    # Token types carry no information for a single text, and ModernBERT's forward takes none.
    "model_input_names": ["input_ids", "attention_mask"],
    "tokenizer_class": _CLASS,
}
_NEEDED_ROLES = ("pad_token", "cls_token", "sep_token", "mask_token")


@dataclass(frozen=True)
class OpenTokenizer:
    """A tokenizer for raw text: nothing in a text is ever parsed as a special token."""

    tokenizer: Tokenizer
    special_ids: SpecialIds
    special_strings: tuple[str, ...]
    vocab_size: int  # largest id + 1
    sha256: str  # hash of tokenizer.json
    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read a folder that `save` or `save_existing` wrote.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        path = folder / TOKENIZER_FILE
        try:
            content = path.read_bytes()
            tokenizer = Tokenizer.from_buffer(content)
            names = json.loads((folder / _CONFIG_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise ArtifactError(
                f"{folder} holds no complete tokenizer ({TOKENIZER_FILE} and {_CONFIG_FILE}): {error}",
                do="rebuild it: `dvc repro --force tokenize`",
            ) from error
        # A tokenizer.json of the hub may cut texts at 128 tokens or pad them.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        special = {id_: token.content for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        return cls(
            tokenizer=tokenizer,
            special_ids=_special_ids(tokenizer, names, special),
            special_strings=tuple(special[id_] for id_ in sorted(special)),
            vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
            sha256=sha256_of(content),
            folder=folder,
        )


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Return whether the first token of a word includes the space before it, as in byte-level BPE."""
    return '"ByteLevel"' in tokenizer.to_str()


def special_token(token: str, takes_space: bool) -> AddedToken:
    """Return a special token. With `takes_space` (byte-level BPE) a mask takes the space before it, as in RoBERTa."""
    return AddedToken(token, special=True, lstrip=takes_space and token == SPECIAL_TOKENS["mask_token"])


def frame_with_special_tokens(tokenizer: Tokenizer, cls_token: str, sep_token: str) -> None:
    """Frame texts: a text becomes `[CLS] A [SEP]`, a pair `[CLS] A [SEP] B [SEP]`."""
    names = [(token, tokenizer.token_to_id(token)) for token in (cls_token, sep_token)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls_token}:0 $A:0 {sep_token}:0",
        pair=f"{cls_token}:0 $A:0 {sep_token}:0 $B:1 {sep_token}:1",
        special_tokens=names,
    )


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Fill `folder` with a tokenizer trained here."""
    tokenizer.save(str(folder / TOKENIZER_FILE))
    (folder / _CONFIG_FILE).write_text(_as_json(_DESCRIPTION), encoding="utf-8")


def save_existing(name: str, folder: Path, revision: str | None = None) -> None:
    """Fill `folder` with the tokenizer `name`, a folder or a hub name; add each special token that it lacks.

    `revision`: a state of a name on the hub.

    Raises:
        DataError: the tokenizer does not exist or has no fast version.
    """
    if _is_made_here(Path(name)):
        for file in (TOKENIZER_FILE, _CONFIG_FILE):
            shutil.copyfile(Path(name) / file, folder / file)
        return
    tokenizer = open_published(name, revision)
    missing = [role for role in _NEEDED_ROLES if getattr(tokenizer, role) is None]
    if tokenizer.mask_token in _other_special_tokens(tokenizer):
        missing.append("mask_token")
    if missing:
        _add(tokenizer, name, missing)
    if {"cls_token", "sep_token"} & set(missing):
        frame_with_special_tokens(tokenizer.backend_tokenizer, tokenizer.cls_token, tokenizer.sep_token)
    write(tokenizer, folder)


def write(tokenizer: Any, folder: Path) -> None:
    """Fill `folder` with a tokenizer that `open_published` opened."""
    tokenizer.save_pretrained(folder)
    described = json.loads((folder / _CONFIG_FILE).read_bytes()) | {"tokenizer_class": _CLASS}
    (folder / _CONFIG_FILE).write_text(_as_json(described), encoding="utf-8")


def _is_made_here(folder: Path) -> bool:
    """Return whether `save` filled the folder, which is then complete: transformers (seconds, 300 MB) is not needed."""
    try:
        described = (folder / _CONFIG_FILE).read_text(encoding="utf-8")
        OpenTokenizer.open(folder)
    except (OSError, ValueError, ArtifactError):
        return False
    return described == _as_json(_DESCRIPTION)


def _other_special_tokens(tokenizer: Any) -> set[str]:
    """Return the special tokens but the mask: text may hold an end of text or an unknown word, but never a mask."""
    roles = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token")
    return {token for role in roles if (token := getattr(tokenizer, role)) is not None}


def _add(tokenizer: Any, name: str, missing: Sequence[str]) -> None:
    """Give each role of `missing` a token of its own, with an id of its own at the end of the vocabulary."""
    size = len(tokenizer)
    takes_space = is_byte_level(tokenizer.backend_tokenizer)
    added = {role: special_token(SPECIAL_TOKENS[role], takes_space) for role in missing}
    tokenizer.add_special_tokens(added)
    tokens = ", ".join(token.content for token in added.values())
    _LOG.warning("tokenizer %s has no %s of its own: added %s", name, ", ".join(missing), tokens)
    if len(tokenizer) > size:
        _LOG.warning(
            "the vocabulary grew from %d to %d tokens: a model that starts from trained weights gets %d untrained rows "
            "in its embedding",
            *(size, len(tokenizer), len(tokenizer) - size),
        )


def _special_ids(tokenizer: Tokenizer, names: Mapping[str, Any], special: Mapping[int, str]) -> SpecialIds:
    ids = {role: _id_of(tokenizer, names.get(role)) for role in SPECIAL_TOKENS}
    missing = [role for role in _NEEDED_ROLES if ids[role] is None]
    if missing:
        raise ArtifactError(f"{_CONFIG_FILE} lacks the tokens {', '.join(missing)}", do="run `dvc repro -f tokenize`")
    known = {role: id_ for role, id_ in ids.items() if id_ is not None}
    return SpecialIds(
        pad=known["pad_token"],
        cls=known["cls_token"],
        sep=known["sep_token"],
        mask=known["mask_token"],
        unk=known.get("unk_token"),
        every=tuple(sorted({*special, *known.values()})),
    )


def _id_of(tokenizer: Tokenizer, name: Any) -> int | None:
    """Return the id of a special token, which transformers writes as a string or as a record with a `content`."""
    text = name["content"] if isinstance(name, dict) else name
    return None if text is None else tokenizer.token_to_id(text)


def _as_json(content: Mapping[str, object]) -> str:
    return json.dumps(dict(content), indent=2) + "\n"
