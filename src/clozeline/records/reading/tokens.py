"""Contract between the writer and the readers of token shards: names of files, tokens.json, ids of special tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from clozeline.records.record import Record
from clozeline.system import errors, files

INFO_NAME = "tokens.json"
_TOKENIZER_FILE = "tokenizer.json"
REBUILD = "rebuild it: `dvc repro --force tokenize`"


class SpecialIds(Record):
    """Ids that never stand for text. `cls` and `sep` open and close a row, whatever the tokenizer calls them."""

    pad: int
    cls: int
    sep: int
    mask: int
    unk: int | None
    every: tuple[int, ...]  # all special ids, ascending: never targets, never drawn as replacements


class ShardInfo(Record):
    """Contents of one shard and the sha256 of each of its files."""

    num_documents: int
    num_tokens: int
    text_bytes: int
    tokens_sha256: str
    offsets_sha256: str
    bytes_sha256: str


class SplitInfo(Record):
    num_documents: int
    num_tokens: int
    text_bytes: int
    shards: tuple[ShardInfo, ...]


class TokensInfo(Record):
    """Contents of tokens.json. It is written last, so a folder that holds it is complete."""

    format_version: Literal[1]
    vocab_size: int  # largest id + 1: the least number of rows of an embedding table
    dtype: Literal["uint16", "uint32"]
    tokenizer_sha256: str
    special_ids: SpecialIds
    splits: dict[str, SplitInfo]

    @classmethod
    def of(
        cls, *, vocab_size: int, tokenizer_sha256: str, special_ids: SpecialIds, splits: dict[str, SplitInfo]
    ) -> Self:
        """Return the info of shards as this version writes them."""
        return cls(
            format_version=1,
            vocab_size=vocab_size,
            dtype=dtype_for(vocab_size),
            tokenizer_sha256=tokenizer_sha256,
            special_ids=special_ids,
            splits=splits,
        )

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Read `folder`'s tokens.json.

        Raises:
            ArtifactError: the file is missing or damaged.
        """
        return cls.read(folder / INFO_NAME, do=REBUILD)

    def check_tokenizer(self, folder: Path, tokenizer: Path) -> None:
        """Check that the tokens in `folder` were made with the tokenizer in the folder `tokenizer`.

        Raises:
            ArtifactError: the tokenizer is another one, or missing.
        """
        path = tokenizer / _TOKENIZER_FILE
        sha256 = files.sha256_of(path) if path.is_file() else None
        if sha256 != self.tokenizer_sha256:
            given = f"no file {path}" if sha256 is None else f"{path} with {sha256[:12]}…"
            raise errors.ArtifactError(
                f"the tokens in {folder} were not made with this tokenizer: {given}, not {self.tokenizer_sha256[:12]}…",
                do="make both together: `dvc repro tokenize`",
            )


@dataclass(frozen=True)
class ShardPaths:
    """The files of one shard."""

    tokens: Path
    offsets: Path
    document_bytes: Path

    @classmethod
    def of(cls, folder: Path, split: str, ordinal: int) -> Self:
        stem = f"{split}-{ordinal:05d}"
        return cls(folder / f"{stem}.bin", folder / f"{stem}.offsets.npy", folder / f"{stem}.bytes.npy")


def documents_path(folder: Path, split: str) -> Path:
    """Return the path of the keys of a split's documents: uint64, in the order of the documents."""
    return folder / f"{split}.documents.npy"


def dtype_for(vocab_size: int) -> Literal["uint16", "uint32"]:
    return "uint16" if vocab_size <= 2**16 else "uint32"
