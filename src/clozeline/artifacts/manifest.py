"""What is in a package (`dist/<model>/`): how to feed the graphs, how they were made, and the hash of each file."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationError

from clozeline.artifacts.evidence import HalfPrecision, QuantizationScheme, Rung
from clozeline.artifacts.record import Record
from clozeline.errors import ArtifactError

Precision = Literal["int8", "fp32"]
LastLayer = Literal["every position", "first position", "masked positions"]
Task = str
"""What a model answers, in the words of the model hub: the name of a row of inference/model_kinds.py."""
ScoreFunction = Literal["softmax", "sigmoid", "none"]
"""From logits to scores: of labels that exclude each other, of labels that do not, or the logits themselves."""
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PackageFiles(NamedTuple):
    """Names inside a package folder."""

    fp32: str = "model.onnx"
    int8: str = "model.int8.onnx"
    tokenizer: str = "tokenizer.json"
    manifest: str = "manifest.json"


FILES = PackageFiles()
GRAPHS: Mapping[Precision, str] = MappingProxyType({"fp32": FILES.fp32, "int8": FILES.int8})

HALF_GRAPH = "model.fp16.onnx"
"""The graph in float16, for GPUs, if one was asked for; nothing here runs it."""

CONFIG = "config.json"
"""As transformers saves it, of a model whose graph answers as its class does; nothing here reads it."""


def data_file(graph: str) -> str:
    """Where the weights of the graph called `graph` lie if one file cannot hold them: ONNX Runtime reads it itself."""
    return f"{graph}.data"


class TensorSpec(Record):
    """An input or output of both graphs; a name in `shape` is an axis of any size."""

    name: str
    dtype: Literal["int64", "float32", "bool"]
    shape: tuple[str | int, ...]
    meaning: str


class SpecialTokens(Record):
    """The ids that inference itself has to know; a classifier need not have a mask token."""

    ids: tuple[int, ...]
    """All of them."""
    pad_id: int
    mask_id: int | None
    mask_token: str | None


class FileRecord(Record):
    size_bytes: int
    sha256: Sha256


class Manifest(Record):
    format_version: Literal[2]
    task: Task
    family: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: tuple[str, ...]
    """Of a classifier or a tagger, in the order of the logits; empty for others."""
    label_scores: ScoreFunction = "softmax"
    """From a classifier's logits to scores: of labels that exclude each other, of each label for itself, or none."""
    decision_threshold: float | None = None
    """Of scores that are each for itself: above it, a label is given."""
    reads_pairs: bool = False
    """A classifier that was trained on two texts at a time."""
    types_tell_pairs: bool = False
    """Whether the model was trained with another `token_type_ids` for the second text of a pair."""
    no_answer_margin: float | None = None
    """Of question answering: where no answer outscores the best one by more than this, there is none; null: by 0."""
    last_layer: LastLayer = "every position"
    """Where both graphs compute it (at masks: if `masks_only` is true); keys and values are those of all positions."""
    max_length: int
    """Longest input in tokens, special tokens among them."""
    vocab_size: int
    hidden_size: int
    special_tokens: SpecialTokens
    served: Precision
    """Which graph answers who asks for none: INT8 only if it passed what is asked of it."""
    quantization: QuantizationScheme | None
    """Of `model.int8.onnx`; None if there is no such file, because no scheme passed."""
    ladder: tuple[Rung, ...]
    """The schemes that were tried, in their order; the one of `quantization` is served."""
    half: HalfPrecision | None = None
    """Of the graph in float16; None: none was asked for. It is in the package if it passed."""
    opset: int
    versions: dict[str, str]
    """Of the packages that made the files."""
    lock_sha256: Sha256
    """Of the requirements lock that the export ran with."""
    files: dict[str, FileRecord]

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.inputs)

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """What the package has a graph of."""
        return tuple(precision for precision, name in GRAPHS.items() if name in self.files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / FILES.manifest).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read `folder`/manifest.json, without looking at the other files.

    Raises:
        ArtifactError: it is not there, or is not a manifest that this version reads.
    """
    path = folder / FILES.manifest
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"{folder} is not an exported model",
            given=f"no file {path}",
            expected=f"a folder with {', '.join(FILES)}",
            do="run `dvc repro` (stage export), or give the folder under dist/",
        ) from error
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ArtifactError(
            f"{path} cannot be read",
            given=f"{'.'.join(map(str, fault['loc'])) or 'the whole file'}: {str(fault['input'])[:80]!r}",
            expected=fault["msg"],
            do="export the model again with this version (`dvc repro`)",
        ) from error


def verify(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Compare the bytes of the files called `names` (all, if None) with the manifest.

    Raises:
        ArtifactError: naming the first file that is missing or differs, its hash, and the hash expected.
    """
    for name in manifest.files if names is None else names:
        expected = manifest.files[name]
        given = _record_or_nothing(folder / name)
        if given != expected:
            raise ArtifactError(
                f"{folder / name} is not the file that was exported",
                given=f"sha256 {given.sha256}, {given.size_bytes:,} bytes" if given else "no such file",
                expected=f"sha256 {expected.sha256}, {expected.size_bytes:,} bytes",
                do="restore it: of dist/NAME with `dvc repro export@NAME`, of a model version by a new download",
            )


def record_of(path: Path) -> FileRecord:
    """Size and hash of the file at `path`."""
    with path.open("rb") as file:
        return FileRecord(size_bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _record_or_nothing(path: Path) -> FileRecord | None:
    return record_of(path) if path.is_file() else None
