"""Published models as they are imported: access to the hub, inspection of their files, and the files that each has.

Settings in a folder or in a hub repository can decide which code runs (CVE-2026-4372 was a field of config.json), and
weights can be a pickle, which is a program. Every function that opens such files with transformers inspects them here
first.

Files are resolved to a commit and to hashes. Access to the hub is announced by one log line instead of one per failed
attempt.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clozeline.system.errors import ArtifactError, ClozelineError, TransientError
from clozeline.system.files import sha256_of

_LOG = logging.getLogger(__name__)
_CLIENT = logging.getLogger("huggingface_hub")
_COMMIT = re.compile("[0-9a-f]{40}")
# Files of which every model or tokenizer has one.
_COMMON = ("config.json", "tokenizer_config.json", "tokenizer.json")

_SETTINGS = ("config.json", "tokenizer_config.json")
_ADAPTER = "adapter_config.json"
_PICKLES = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
_ATTENTION = ("_attn_implementation", "attn_implementation")
# Refused keys, at any depth: what each requires, and what to do.
_REFUSED_KEYS: Mapping[str, tuple[str, str]] = {
    "auto_map": (
        "custom code, which would run here",
        "save it with a class that transformers itself has, and delete `auto_map`",
    ),
    "configuration_files": ("another file in its place", "rename that file to config.json"),
    **dict.fromkeys(_ATTENTION, ("a kernel of the hub, which would run here", "delete that line")),
    "_attn_implementation_internal": ("code of the hub to run for attention", "delete that line"),
    "_experts_implementation_internal": ("code of the hub to run for experts", "delete that line"),
    "quantization_config": (
        "quantized weights, which are neither trained nor evaluated here",
        "save it in single precision (`model.dequantize().save_pretrained(FOLDER)`)",
    ),
}
# Class with which a model is converted if its config.json names none.
_USUAL_CLASS = "AutoModelForMaskedLM"
# Implementations in transformers itself; any other name is that of a kernel to fetch from the hub.
_OWN_ATTENTION = (None, "eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")

WEIGHTS = "model.safetensors"
# List of the shards of weights that are not in one file.
INDEX = "model.safetensors.index.json"
_WEIGHTS = (WEIGHTS, INDEX)
TOKENIZER = "tokenizer.json"
POOLING = "1_Pooling/config.json"
# Files that an import reads, where a model has them, beside the weights.
READ = (
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
# Files that the tokenizer is made from if there is no `TOKENIZER`.
VOCABULARIES = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)

_GET_IT_AGAIN = "download or save the model again"


@contextmanager
def asking_hub(name: str) -> Iterator[None]:
    """Announce calls that look for `name` on the hub, and silence their retries; do nothing if it is a folder.

    Without a network such calls retry for half a minute. The error that they end with reports the failure.
    """
    if Path(name).is_dir() or _CLIENT.level == logging.ERROR:  # an outer call has logged it
        yield
        return
    _LOG.info("%s is not a local folder: asking the Hugging Face hub", name)
    level = _CLIENT.level
    _CLIENT.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _CLIENT.setLevel(level)


def pinned(name: str, revision: str | None) -> str | None:
    """Return the commit that `revision` of a name on the hub stands for now; `revision` itself if it is not on the hub.

    Callers that read the hub in several requests pin the commit first: a branch can move between two requests, and then
    one file is inspected and another is opened.

    Raises:
        TransientError: the hub cannot be reached, or fails.
    """
    if Path(name).is_dir() or _COMMIT.fullmatch(revision or ""):
        return revision
    with asking_hub(name):
        files = (inspected_file(name, file, revision) for file in _COMMON)
        return next((file.parent.name for file in files if file), revision)


def published_file(name: str, file: str, revision: str | None) -> Path | None:
    """Return a file as `fetched_file` does; None also if the hub does not have the name or does not answer."""
    with suppress(OSError):
        return fetched_file(name, file, revision)
    return None


def inspected_file(name: str, file: str, revision: str | None) -> Path | None:
    """Return a file as `published_file` does; but only a hub that answers can say that it lacks the file.

    If one failed request counted as a missing file, that file could be loaded a moment later without inspection. In
    offline mode only cached files can be loaded, so a file missing from the cache needs no inspection.

    Raises:
        TransientError: the hub cannot be reached, or fails.
    """
    if Path(name).is_dir():
        return published_file(name, file, revision)
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return fetched_file(name, file, revision, must_exist=not constants.HF_HUB_OFFLINE)
    except RepositoryNotFoundError:
        return None  # the caller that opens the name reports that
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        raise TransientError(
            f"{file} of {name} cannot be inspected: the hub does not answer: {' '.join(str(error).split())[:300]}",
            do="try again; without a network, `export HF_HUB_OFFLINE=1` opens what is in the cache",
        ) from error
    except OSError:
        return None


def fetched_file(name: str, file: str, revision: str | None, *, must_exist: bool = False) -> Path | None:
    """Return a file of a folder, or of a name on the hub, downloaded if necessary; None if the file does not exist.

    `must_exist`: raise LocalEntryNotFoundError if the hub does not answer and the cache lacks it.

    Raises:
        OSError: the hub does not have the name, or cannot be reached.
    """
    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download  # takes 0.5 s, which local folders do not need
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except EntryNotFoundError as error:
        if must_exist and isinstance(error, LocalEntryNotFoundError):
            raise
        return None
    except HFValidationError as error:
        raise FileNotFoundError(str(error)) from error


def inspect_settings(name: str, revision: str | None = None) -> None:
    """Inspect a tokenizer, or a model whose weights are not loaded.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there. Missing files are ignored here.

    Raises:
        ArtifactError: it is an adapter, or asks for code, kernels or a form of weights outside transformers.
        TransientError: the hub does not answer.
    """
    for folder in _with_inner(name):
        for file in _SETTINGS:
            path = inspected_file(folder, file, revision)
            for key, value in _entries(_read(path)) if path else ():
                _check_entry(f"{folder}/{file}", key, value)
        if inspected_file(folder, _ADAPTER, revision):
            raise ArtifactError(
                f"{folder} holds an adapter ({_ADAPTER}), not a whole model",
                do="merge it with its model: `model.merge_and_unload().save_pretrained(FOLDER)`",
            )


def inspect_model(name: str, revision: str | None = None) -> None:
    """Inspect the settings and the weights of a model, and of models inside its folder, such as a generator.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there.

    Raises:
        ArtifactError: as in `inspect_settings`; or its weights exist as a pickle alone.
        TransientError: the hub does not answer.
    """
    inspect_settings(name, revision)
    for folder in _with_inner(name):
        weights = [path for file in _WEIGHTS if (path := inspected_file(folder, file, revision))]
        for path in weights:
            _check_shards(path)
        pickles = sorted(path.name for ending in _PICKLES for path in Path(folder).glob(ending))
        on_hub = not Path(folder).is_dir() and inspected_file(folder, "config.json", revision)
        if not weights and (pickles or on_hub):
            config = inspected_file(folder, "config.json", revision)
            given = ", ".join(pickles) or f"neither {' nor '.join(_WEIGHTS)}"
            _refuse_pickle(folder, given, _class_in(config))


def _with_inner(name: str) -> list[str]:
    return [name, *sorted(str(path.parent) for path in Path(name).glob("*/config.json"))]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # damaged: the opening caller reports it
        return None


def _entries(facts: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key in a JSON value, at any depth, with its value."""
    if isinstance(facts, dict):
        yield from facts.items()
    for inner in facts.values() if isinstance(facts, dict) else facts if isinstance(facts, list) else ():
        yield from _entries(inner)


def _check_entry(file: str, key: str, value: Any) -> None:
    is_own = value in _OWN_ATTENTION if key in _ATTENTION else value is None
    if key in _REFUSED_KEYS and not is_own:
        asks_for, do = _REFUSED_KEYS[key]
        raise ArtifactError(f"{file} requires {asks_for} (`{key}: {json.dumps(value)[:200]}`)", do=do)


def _check_shards(index: Path) -> None:
    """Refuse an index whose shards are not all safetensors files beside it: it may name any file, such as a pickle."""
    facts = _read(index) if index.suffix == ".json" else None
    places = facts.get("weight_map") if isinstance(facts, dict) else None
    for place in sorted(set(map(str, places.values()))) if isinstance(places, dict) else ():
        if Path(place).name != place or Path(place).suffix != ".safetensors":
            _refuse_pickle(str(index), place)


def _class_in(config: Path | None) -> str:
    """Return the class of transformers that config.json names, with which the head is converted too."""
    facts = _read(config) if config else None
    named = facts.get("architectures") if isinstance(facts, dict) else None
    first = named[0] if isinstance(named, list) and named else None
    return first if isinstance(first, str) and first.isidentifier() else _USUAL_CLASS


def _refuse_pickle(where: str, given: str, class_name: str = _USUAL_CLASS) -> None:
    raise ArtifactError(
        f"{where} has no weights that can be read without running code, only {given}: a pickle is a program",
        do="if you trust it, convert it with its tokenizer, and use the folder NEW: "
        f'`python -c "from transformers import {class_name}, AutoTokenizer; '
        f"[it.from_pretrained('{where}').save_pretrained('NEW') for it in ({class_name}, AutoTokenizer)]\"`",
    )


@dataclass(frozen=True)
class Published:
    """A published model of which the name is resolved."""

    name: str  # folder, or name on the hub
    revision: str | None  # commit on the hub; None for a folder

    def file(self, name: str) -> Path | None:
        """Return a local path, downloaded if necessary; None: the model has no such file.

        Raises:
            TransientError: the hub does not answer.
        """
        try:
            with asking_hub(self.name):
                return fetched_file(self.name, name, self.revision, must_exist=True)
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
                f"{INDEX} of {self.name} names {len(shards)} files, and {missing[0]} does not exist", do=_GET_IT_AGAIN
            )
        return sizes

    def _shards(self) -> list[str]:
        index = self.file(INDEX)
        assert index is not None
        try:
            return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                f"{INDEX} of {self.name} has no `weight_map` with the file of each weight: {error!r}", do=_GET_IT_AGAIN
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
        return {name: sha256_of(path) for name, path in files.items() if path is not None}


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
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

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
            given = sha256_of(found) if found else "no such file"
            if found is None or given != expected:
                raise ArtifactError(
                    f"{file} of {name} is not the file that was imported: expected sha256 {expected}, got {given}",
                    do=f"restore it, or take the present one: `clozeline import {name}`",
                )
            place = Path(made) / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(found.resolve())
        try:
            yield Path(made)
        except ClozelineError as error:  # it names the folder, which is gone afterwards
            raise error.with_parts(lambda part: part.replace(made, name)) from error


def _unanswered(name: str, error: Any) -> TransientError:
    return TransientError(
        f"{name} is not a folder here, and the hub does not answer: {' '.join(str(error).split())[:200]}",
        do="correct the path; or try again with a network; or copy the model here and give its folder",
    )
