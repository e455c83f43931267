"""The texts that both sides learn from: cleaned and tokenized once by the project's own stages, then kept."""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.corpus.cleaning.documents import Document
from clozeline.corpus.cleaning.portions import open_snapshot, opened
from clozeline.params.project import Params
from comparison.stages import KEPT, PROJECT, params_tree, paths_of, run_stage

_LOG = logging.getLogger(__name__)

# A file or folder with a field `text`: used instead of wikinews.
TEXT_VARIABLE = "CLOZELINE_BENCHMARK_TEXT"
WIKINEWS = PROJECT.parent / "shared" / "data" / "wikinews-en"


@dataclass(frozen=True)
class Source:
    """Raw text: its path, and the params that `preprocess` needs for it."""

    name: str
    path: Path
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Corpus:
    """Folders as the stages write them."""

    name: str
    clean: Path
    tokenizer: Path
    tokens: Path

    def texts(self, split: str) -> list[str]:
        return read_texts(self.clean / f"{split}.parquet")


def built_in() -> Source:
    """The docstrings of the installed environment."""
    return Source("python-docs", PROJECT / "corpus.lock", {"preprocess": {"source": {"kind": "python-docs"}}})


def news() -> Source:
    """Return the text that `CLOZELINE_BENCHMARK_TEXT` names, else wikinews next to the project, else `built_in`."""
    given = os.environ.get(TEXT_VARIABLE)
    path = Path(given) if given else WIKINEWS
    if not path.exists():
        return built_in()
    return Source(path.name, path, {"preprocess": {"source": {"kind": "files", "text_field": "text"}}})


def prepared(source: Source, tokenize: Mapping[str, Any] | None = None) -> Corpus:
    """Clean text, tokenizer and shards of a source; made on first use.

    Args:
        source: raw text.
        tokenize: changes to section `tokenize` of params.yaml.

    Raises:
        CalledProcessError: a stage failed.
    """
    clean = _clean(source)
    changes = {"tokenize": dict(tokenize or {})}
    folder = clean.parent / f"tokens-{_digest(params_tree(changes)['tokenize'])}"
    corpus = Corpus(source.name, clean, folder / "tokenizer", folder / "tokens")
    if not (corpus.tokens / "tokens.json").is_file():
        run_stage("tokenize", folder, changes, **paths_of("tokenize", folder, folder) | {"clean": clean})
    return corpus


def _clean(source: Source) -> Path:
    section = params_tree(source.changes)["preprocess"]
    folder = KEPT / f"{source.name}-{_digest(section)}"
    if not (folder / "clean").is_dir():
        _taken(source, folder)
        run_stage("preprocess", folder, source.changes, **paths_of("preprocess", folder, folder))
    return folder / "clean"


def _taken(source: Source, folder: Path) -> Path:
    """Return the snapshot of the source in `folder`; made on first use."""
    if not (folder / "raw").is_dir():
        run_stage("snapshot", folder, source.changes, source=source.path, out=folder / "raw")
    return folder / "raw"


def raw_texts(source: Source, every: int) -> Path:
    """One file of JSON Lines with every `every`-th text of `source`, as it was before any cleaning."""
    path = KEPT / f"{source.name}-every-{every}.jsonl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        with beside.open("wb") as file:
            for number, document in enumerate(_raw_documents(source)):
                if number % every == 0:
                    file.write(orjson.dumps({"text": document.text}) + b"\n")
        beside.replace(path)
    return path


def _raw_documents(source: Source) -> Iterator[Document]:
    settings = Params.model_validate(params_tree(source.changes)).preprocess.source
    raw = _taken(source, KEPT / f"{source.name}-{_digest(params_tree(source.changes)['preprocess'])}")
    text = open_snapshot(raw, settings)
    for unit in opened(text.files, text.reading):
        yield from (document for document in unit.documents() if document.dropped is None)


def read_texts(path: Path) -> list[str]:
    texts: list[str] = pq.read_table(path, columns=["text"]).column("text").to_pylist()
    return texts


def write_clean(folder: Path, splits: Mapping[str, list[str]]) -> Path:
    """Write a folder like that of `preprocess` with the given texts, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, texts in splits.items():
        columns = {
            "doc_id": [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts],
            "text": texts,
            "source": ["benchmark"] * len(texts),
            "title": [""] * len(texts),
        }
        pq.write_table(pa.table(columns), folder / f"{split}.parquet", compression="zstd")
    return folder


def _digest(section: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(section, sort_keys=True).encode()).hexdigest()[:12]
