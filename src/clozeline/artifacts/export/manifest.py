"""manifest.json of a package (`dist/<model>/`): inputs and outputs, how the graphs were made, a hash of each file."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationError, model_validator

from clozeline.artifacts.export.evidence import QuantizationScheme, Rung
from clozeline.artifacts.record import Record, unusable
from clozeline.errors import ArtifactError
from clozeline.storage.fingerprints import sha256_of

Precision = Literal["int8", "fp32"]
LastLayer = Literal["every position", "first position", "masked positions"]
Task = str
"""Kind of model by its name on the model hub: the name of a row in inference/model_kinds.py."""
ScoreFunction = Literal["softmax", "sigmoid", "none"]
"""From logits to scores: `softmax` for exclusive labels, `sigmoid` for independent ones, `none` for raw logits."""
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
MAX_LENGTH_TOKENS = 2**20
"""Upper bound of `max_length`. No encoder reads more; a larger value is a mistake, such as a library's "no limit"."""


def _file_name(name: str) -> str:
    if name != Path(name).name or "\\" in name:
        raise ValueError("the name of a file inside the package, without a folder")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]


class PackageFiles(NamedTuple):
    """File names inside a package folder."""

    fp32: str = "model.onnx"
    int8: str = "model.int8.onnx"
    tokenizer: str = "tokenizer.json"
    manifest: str = "manifest.json"


FILES = PackageFiles()
GRAPHS: Mapping[Precision, str] = MappingProxyType({"fp32": FILES.fp32, "int8": FILES.int8})

CONFIG = "config.json"
"""Configuration as transformers saves it, for clients that load the package as a transformers model."""

CARD = "README.md"
"""The model card: data, figures and limits, for people and for the model hub."""

SBOM = "sbom.cdx.json"
"""Bill of materials in CycloneDX: files, base model, Python packages that serve. Older packages have none."""


def data_file(graph: str) -> str:
    """Name of the external-data file of `graph`, used when one file cannot hold the weights."""
    return f"{graph}.data"


class TensorSpec(Record):
    """An input or output of both graphs. A name in `shape` is a dynamic axis."""

    name: str
    dtype: Literal["int64", "float32", "bool"]
    shape: tuple[str | int, ...]
    meaning: str


class SpecialTokens(Record):
    """Token ids that inference needs. A classifier may have no mask token."""

    ids: tuple[int, ...]
    """Every special token."""
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
    """Labels of a classifier or tagger in the order of the logits; empty for other kinds."""
    label_scores: ScoreFunction = "softmax"
    """How a classifier turns logits into scores."""
    decision_threshold: float | None = None
    """Independent labels: a label applies if its score is above this."""
    reads_pairs: bool = False
    """Whether a classifier was trained on pairs of texts."""
    types_tell_pairs: bool = False
    """Whether the model was trained with `token_type_ids` of 1 for the second text of a pair."""
    no_answer_margin: float | None = None
    """Question answering: "no answer" wins if it outscores the best answer by more than this; None means 0."""
    pooling: str = "mean"
    """How the vectors of tokens become the vector of a text, by the name of sentence-transformers."""
    prompts: dict[str, str] = Field(default_factory=dict)
    """Embedders: name of a prompt → text that is put before each text embedded with it."""
    default_prompt: str | None = None
    """Name of the prompt of texts that are embedded without one; None: no prompt."""
    last_layer: LastLayer = "every position"
    """Positions at which both graphs compute the last layer (masks only if `masks_only` is true). Keys and values are
    computed at every position."""
    max_length: Annotated[int, Field(ge=1, le=MAX_LENGTH_TOKENS)]
    """Longest input in tokens, including special tokens."""
    num_positions: Annotated[int, Field(ge=1)] | None = None
    """Longest input that the positions of the graph allow; `max_length` is not above it. None: older packages."""
    vocab_size: int
    hidden_size: int
    special_tokens: SpecialTokens
    served: Precision
    """Precision that serves by default: INT8 only if it passed every check."""
    quantization: QuantizationScheme | None
    """Scheme of `model.int8.onnx`; None if no scheme passed and there is no such file."""
    ladder: tuple[Rung, ...]
    """Schemes in the order they were tried; the one that is served is `quantization`."""
    opset: int
    versions: dict[str, str]
    """Versions of the Python packages that made the files."""
    lock_sha256: Sha256
    """Hash of the requirements lock that the export ran with."""
    files: dict[FileName, FileRecord]

    @model_validator(mode="before")
    @classmethod
    def _without_half(cls, given: Any) -> Any:
        """Ignore what earlier versions say of a graph in float16, which nothing here runs."""
        return {key: value for key, value in given.items() if key != "half"} if isinstance(given, dict) else given

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.inputs)

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Precisions for which the package has a graph."""
        return tuple(precision for precision, name in GRAPHS.items() if name in self.files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / FILES.manifest).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read `folder`/manifest.json; other files are not checked.

    Raises:
        ArtifactError: it is missing, lies outside the folder, or this version cannot read it.
    """
    path = _inside(folder, FILES.manifest)
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ArtifactError(
            f"{folder} is not an exported model: there is no file {path}",
            do="run `dvc repro` (stage export), or give the folder under dist/",
        ) from error
    except ValidationError as error:
        raise unusable(path, error, do="export the model again with this version (`dvc repro`)") from error


def verify(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Compare the files called `names` (None: all) with the manifest.

    Raises:
        ArtifactError: a file is missing, differs, is not listed, or is a symbolic link that leads out of the folder;
            names the first one, with its hash and the expected hash.
    """
    for name in manifest.files if names is None else names:
        expected = manifest.files.get(name)
        given = _record_if_file(_inside(folder, name))
        if expected is None:
            raise ArtifactError(
                f"{folder / FILES.manifest} does not list {name}, but {', '.join(manifest.files) or 'no files'}",
                do="export the model again (`dvc repro export@NAME`)",
            )
        if given != expected:
            raise ArtifactError(
                f"{folder / name} is not the file that was exported: expected"
                f" {expected.size_bytes:,} bytes of sha256 {expected.sha256}, got "
                + (f"{given.size_bytes:,} of {given.sha256}" if given else "no such file"),
                do="restore it: `dvc repro export@NAME` for dist/NAME, a new download for a model version",
            )


def package_sha256(folder: Path) -> str:
    """Return the identity of the package in `folder`: the hash of its manifest, which has the hash of each file."""
    return hashlib.sha256((folder / FILES.manifest).read_bytes()).hexdigest()


def record_of(path: Path) -> FileRecord:
    """Return size and hash of the file at `path`."""
    return FileRecord(size_bytes=path.stat().st_size, sha256=sha256_of(path))


def _inside(folder: Path, name: str) -> Path:
    """Return the path of the file `name`; refuse a symbolic link that leads out of `folder`."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ArtifactError(
            f"{path} leads out of the package, to {path.resolve()}",
            do="copy the file there (in a DVC checkout: `dvc config cache.type copy`, then `dvc checkout --relink`)",
        )
    return path


def _record_if_file(path: Path) -> FileRecord | None:
    return record_of(path) if path.is_file() else None
