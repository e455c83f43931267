"""The text and tokens that all experiments share: held in a folder of their own, so that later runs do not change them.

Files are linked, not copied, where the file system allows it: no program of the project writes into an existing file.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from clozeline.api.config import Config
from clozeline.api.run import Run, call, written
from clozeline.experiments.code import code_of_stage
from clozeline.storage.atomic import replacing_folder
from clozeline.storage.fingerprints import fingerprint
from clozeline.storage.links import link_or_copy

_CLEAN: Final = Path("data/clean")
_TOKENS: Final = Path("data/tokens")
_TOKENIZER: Final = Path("models/tokenizer")
ENCODER: Final = Path("models/encoder")


@dataclass(frozen=True)
class Corpus:
    """A clean text with its tokens."""

    clean: Path
    """Folder with train.parquet, validation.parquet and holdout.parquet."""
    tokens: Path
    tokenizer: Path
    digest: str
    """Hash of the contents."""
    encoder: Path | None = None
    """Encoder that was trained on it; None: not needed."""

    @property
    def validation_text(self) -> Path:
        return self.clean / "validation.parquet"

    @property
    def holdout_text(self) -> Path:
        """Text that neither training nor validation sees."""
        return self.clean / "holdout.parquet"

    def holding(self, data: Path) -> Path:
        """Return where the file or folder `data`, a path in the project, is held; itself if it is no part of this."""
        return self.clean / data.relative_to(_CLEAN) if data.is_relative_to(_CLEAN) else data.resolve()

    def laid_into(self, folder: Path) -> None:
        """Make the folder of a run read this corpus."""
        parts = {_CLEAN: self.clean, _TOKENS: self.tokens, _TOKENIZER: self.tokenizer, ENCODER: self.encoder}
        for place, source in parts.items():
            if source is None:
                continue
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).unlink(missing_ok=True)
            (folder / place).symlink_to(source.resolve())


def held(root: Path, kept: Path, *, with_encoder: bool = False) -> Corpus:
    """Return the corpus of the project in `root` as it is now, linked into a folder of `kept`.

    The caller holds the run lock, so that no stage replaces it meanwhile.
    """
    parts = (_CLEAN, _TOKENS, _TOKENIZER, *([ENCODER] if with_encoder else []))
    digest = fingerprint({}, [file for part in parts for file in _files(root / part)])
    folder = kept / f"corpus-{digest}"
    if not folder.is_dir():
        with replacing_folder(folder) as beside:
            for part in parts:
                shutil.copytree((root / part).resolve(), beside / part, copy_function=_linked)
    encoder = folder / ENCODER if with_encoder else None
    return Corpus(folder / _CLEAN, folder / _TOKENS, folder / _TOKENIZER, digest, encoder)


def tokenized(corpus: Corpus, config: Config, kept: Path) -> Corpus:
    """Return the corpus with the tokens that the section `tokenize` of `config` makes of its text, made only once.

    Raises:
        DataError: the text is too small for the vocabulary.
    """
    facts = {"tokenize": config.checked.tokenize.model_dump(), "corpus": corpus.digest}
    digest = fingerprint(facts, code_of_stage("tokenize"))
    folder = kept / f"tokens-{digest}"
    done = folder / "metrics" / "tokenize.json"
    if not done.is_file():  # the stage writes it last
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(folder)
        written(run, config)
        (folder / _CLEAN).parent.mkdir(exist_ok=True)
        (folder / _CLEAN).unlink(missing_ok=True)
        (folder / _CLEAN).symlink_to(corpus.clean.resolve())
        call("tokenize", run, {})
    return replace(corpus, tokens=folder / _TOKENS, tokenizer=folder / _TOKENIZER, digest=digest)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _linked(source: str, target: str) -> None:
    link_or_copy(Path(source), Path(target))
