"""Published models as they are imported: which files they have, resolved to a commit and to hashes."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from clozeline.errors import ArtifactError, TransientError
from clozeline.foreign.hub import asking_hub, fetched_file

WEIGHTS: Final = "model.safetensors"
POOLING: Final = "1_Pooling/config.json"
READ: Final = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    POOLING,
    "README.md",
    WEIGHTS,
)
"""Files that an import reads, where a model has them; the weights last, because they are large."""


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

    def weight_bytes(self) -> int | None:
        """Return the size of the weights, without a download; None: there is no such file.

        Raises:
            TransientError: the hub does not answer.
        """
        if Path(self.name).is_dir():
            path = self.file(WEIGHTS)
            return path.stat().st_size if path else None
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        try:
            found = HfApi().get_paths_info(self.name, WEIGHTS, revision=self.revision)
        except OSError as error:
            raise _unanswered(self.name, error) from error
        return next((file.size for file in found if isinstance(file, RepoFile)), None)

    def sha256(self) -> dict[str, str]:
        """Return the sha256 of each file that an import reads; on the hub this downloads them."""
        files = {name: self.file(name) for name in READ}
        return {name: _sha256_of(path) for name, path in files.items() if path is not None}


def resolved(name: str, revision: str | None = None) -> Published:
    """Find a folder, or the commit that a name on the hub stands for now.

    Raises:
        ArtifactError: there is neither such a folder nor such a name, or the hub asks for permission.
        TransientError: the hub does not answer.
    """
    if Path(name).is_dir():
        return Published(name, None)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists():
        raise ArtifactError(
            f"{name} is no folder with a model",
            given="a file" if Path(name).exists() else f"no such folder, from {Path.cwd()}",
            expected="a folder with config.json, model.safetensors and tokenizer.json, or a name on the hub",
            do="correct the path, then run `clozeline import` again",
        )
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        with asking_hub(name):
            return Published(name, HfApi().model_info(name, revision=revision, timeout=20).sha)
    except GatedRepoError as error:
        raise _refused(
            name,
            "the hub shows it only to accounts that its owner has admitted",
            f"accept the conditions at huggingface.co/{name}, then set HF_TOKEN, or download it and import the folder",
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise _refused(name, "no such folder here, and no such model on the hub", "correct the name") from error
    except RevisionNotFoundError as error:
        raise _refused(name, f"no commit or branch {revision}", "correct `--revision`") from error
    except (OSError, OfflineModeIsEnabled) as error:
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
                    f"{file} of {name} is not the file that was imported",
                    given=given,
                    expected=f"sha256 {expected}",
                    do=f"restore it, or take the present one: `clozeline import {name}`",
                )
            place = Path(made) / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(found.resolve())
        yield Path(made)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refused(name: str, given: str, do: str) -> ArtifactError:
    return ArtifactError(
        f"{name} cannot be imported",
        given=given,
        expected="a folder, or a model that the hub gives to everybody",
        do=do,
    )


def _unanswered(name: str, error: Any) -> TransientError:
    return TransientError(
        f"{name} is not a folder here, and the hub does not answer",
        given=" ".join(str(error).split())[:200],
        expected="a folder with a model, or a name on the hub and a network",
        do="correct the path; or try again with a network; or copy the model here and give its folder",
    )
