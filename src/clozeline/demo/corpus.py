"""Corpus of the demo."""

from dataclasses import dataclass
from pathlib import Path

from clozeline.artifacts.snapshot.forgotten import FORGOTTEN_LOCK
from clozeline.params import Params
from clozeline.stages import preprocess, snapshot, tokenize

_VOCAB_SIZE = 4096


@dataclass(frozen=True)
class DemoCorpus:
    tokens: Path
    tokenizer: Path

    @property
    def is_there(self) -> bool:
        return self.tokens.is_dir() and self.tokenizer.is_dir()


PROJECTS_OWN = DemoCorpus(Path("data/tokens"), Path("models/tokenizer"))


def standard_library(params: Params, folder: Path) -> DemoCorpus:
    """Preprocess and tokenize the docstrings of the standard library, in a few seconds."""
    lock = folder / "no-packages.txt"
    lock.write_text("# The standard library alone.\n", encoding="utf-8")
    built_in = {"kind": "python-docs", "dataset": None, "url": None, "query": None}
    source = params.preprocess.source.model_copy(update=built_in)
    text = params.preprocess.model_copy(
        update={"source": source, "validation_fraction": 0.05, "holdout_fraction": 0.0, "min_characters": 60}
    )
    none = folder / FORGOTTEN_LOCK
    snapshot.run(text, source=lock, forgotten=none, out=folder / "raw")
    preprocess.run(
        text,
        seed=params.seed,
        raw=folder / "raw",
        forgotten=none,
        out=folder / "clean",
        metrics=folder / "preprocess.json",
        work=folder / "work" / "preprocess",
    )
    corpus = DemoCorpus(folder / "tokens", folder / "tokenizer")
    vocabulary = params.tokenize.model_copy(
        update={"algorithm": "wordpiece", "existing": None, "vocab_size": _VOCAB_SIZE, "lowercase": True}
    )
    tokenize.run(
        vocabulary,
        clean=folder / "clean",
        tokenizer=corpus.tokenizer,
        out=corpus.tokens,
        metrics=folder / "tokenize.json",
        work=folder / "work" / "tokenize",
    )
    return corpus
