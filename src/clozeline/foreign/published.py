"""Published models as they are imported: which files they have, resolved to a commit and to hashes."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from clozeline.errors import ArtifactError, ClozelineError, TransientError
from clozeline.foreign.hub import asking_hub, fetched_file

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
"""List of the shards of weights that are not in one file."""
TOKENIZER: Final = "tokenizer.json"
POOLING: Final = "1_Pooling/config.json"
READ: Final = (
    "config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    POOLING,
    "README.md",
)
"""Files that an import reads, where a model has them, beside the weights."""
VOCABULARIES: Final = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
"""Files that the tokenizer is made from if there is no `TOKENIZER`."""


_AGAIN: Final = "download or save the model again"


@dataclass(frozen=True)
class Published:
    """A published model of which the name is resolved."""

    name: str
    """Folder, or name on the hub."""
    revision: str | None
    """Commit on the hub; None for a folder."""

    def file(self, name: str) -> Path | None:
        """Return a local path, downloaded if necessary; None: the model has no such file.

        Raises:
            TransientError: the hub does not answer.
        """
        try:
            with asking_hub(self.name):
                return fetched_file(self.name, name, self.revision, missing_locally_is_an_error=True)
        except OSError as error:
            raise _unanswered(self.name, error) from error

    def weights(self) -> dict[str, int]:
        """Return the files of the weights with their sizes in bytes; on the hub only the list of shards is downloaded.

        Raises:
            ArtifactError: a shard is missing, or their list is damaged.
            TransientError: the hub does not answer.
        """
        sizes = self._sizes(WEIGHTS) or self._sizes(INDEX)
        if INDEX not in sizes:
            return sizes
        shards = self._shards()
        sizes |= self._sizes(*shards)
        if missing := [shard for shard in shards if shard not in sizes]:
            raise ArtifactError(
                f"{INDEX} of {self.name} names {len(shards)} files, and {missing[0]} does not exist", do=_AGAIN
            )
        return sizes

    def _shards(self) -> list[str]:
        index = self.file(INDEX)
        assert index is not None
        try:
            return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                f"{INDEX} of {self.name} has no `weight_map` with the file of each weight: {error!r}", do=_AGAIN
            ) from error

    def _sizes(self, *names: str) -> dict[str, int]:
        """Return the sizes in bytes of those files that exist."""
        if Path(self.name).is_dir():
            return {name: path.stat().st_size for name in names if (path := self.file(name))}
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        try:
            found = HfApi().get_paths_info(self.name, list(names), revision=self.revision)
        except Exception as error:  # an error of the hub's HTTP client, of which each version has another
            raise _unanswered(self.name, error) from error
        return {file.path: file.size for file in found if isinstance(file, RepoFile)}

    def sha256(self) -> dict[str, str]:
        """Return the sha256 of each file that an import reads; on the hub this downloads them, the weights last."""
        vocabularies = () if self.file(TOKENIZER) else VOCABULARIES
        files = {name: self.file(name) for name in (*READ, *vocabularies, *self.weights())}
        return {name: _sha256_of(path) for name, path in files.items() if path is not None}


def resolved(name: str, revision: str | None = None) -> Published:
    """Find a folder, or the commit that a name on the hub stands for now.

    Raises:
        ArtifactError: there is neither such a folder nor such a name, or the hub asks for permission.
        TransientError: the hub does not answer.
    """
    if Path(name).is_dir():
        if revision is not None:
            raise ArtifactError(f"{name} is a folder, which has no revision {revision}", do="leave `--revision` out")
        return Published(name, None)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists():
        raise ArtifactError(
            f"{name} is {'a file' if Path(name).exists() else f'not in {Path.cwd()}'}, and no folder with a model",
            do="name a folder with config.json, model.safetensors and tokenizer.json, or a model on the hub",
        )
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        with asking_hub(name):
            return Published(name, HfApi().model_info(name, revision=revision, timeout=20).sha)
    except GatedRepoError as error:
        raise ArtifactError(
            f"{name} cannot be imported: the hub shows it only to accounts that its owner has admitted",
            do=f"accept the conditions at huggingface.co/{name}, then set HF_TOKEN, or import a downloaded folder",
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ArtifactError(f"{name} is neither a folder here nor a model on the hub", do="correct the name") from error
    except RevisionNotFoundError as error:
        raise ArtifactError(f"{name} has no commit or branch {revision}", do="correct `--revision`") from error
    except Exception as error:  # no network: an error of the hub's HTTP client, of which each version has another
        raise _unanswered(name, error) from error


@contextmanager
def published_folder(name: str, revision: str | None, sha256: Mapping[str, str]) -> Iterator[Path]:
    """Yield a folder that holds exactly the files of `sha256`, each with that hash.

    Raises:
        ArtifactError: a file is missing, or has another hash.
        TransientError: the hub does not answer.
    """
    published = Published(name, revision)
    with TemporaryDirectory(prefix="clozeline-import-") as made:
        for file, expected in sha256.items():
            found = published.file(file)
            given = _sha256_of(found) if found else "no such file"
            if found is None or given != expected:
                raise ArtifactError(
                    f"{file} of {name} is not the file that was imported: expected sha256 {expected}, got {given}",
                    do=f"restore it, or take the present one: `clozeline import {name}`",
                )
            place = Path(made) / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(found.resolve())
        with _naming(name, made):
            yield Path(made)


@contextmanager
def _naming(name: str, made: str) -> Iterator[None]:
    """Let errors name the model where they would name its copy `made`."""
    try:
        yield
    except ClozelineError as error:
        error.problem, error.expected, error.do = (
            part.replace(made, name) for part in (error.problem, error.expected, error.do)
        )
        error.given = None if error.given is None else str(error.given).replace(made, name)
        raise


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unanswered(name: str, error: Any) -> TransientError:
    return TransientError(
        f"{name} is not a folder here, and the hub does not answer: {' '.join(str(error).split())[:200]}",
        do="correct the path; or try again with a network; or copy the model here and give its folder",
    )
