"""The record of a package: manifest.json in `dist/<model>/`, and metrics/export/<model>.json beside it.

The manifest has inputs and outputs, how the graphs were made, a hash of each file, and the evidence, measured at
export, that an INT8 graph is fit to be served. The metrics have parity, INT8 quality and sizes.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from clozeline.records import record
from clozeline.system import errors, files

Precision = Literal["int8", "fp32"]
LastLayer = Literal["every position", "first position", "masked positions"]
# Kind of model by its name on the model hub: the name of a row in inference/package.py.
Task = str
# From logits to scores: `softmax` for exclusive labels, `sigmoid` for independent ones, `none` for raw logits.
ScoreFunction = Literal["softmax", "sigmoid", "none"]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
# Upper bound of `max_length`. No encoder reads more; a larger value is a mistake, such as a library's "no limit".
MAX_LENGTH_TOKENS = 2**20

# Configuration as transformers saves it, for clients that load the package as a transformers model.
CONFIG = "config.json"

# The model card: data, figures and record, for people and for the model hub.
CARD = "README.md"

# Bill of materials in CycloneDX: files, base model, Python packages that serve. Older packages have none.
SBOM = "sbom.cdx.json"


class QuantizationScheme(record.Record):
    """How `model.int8.onnx` differs from `model.onnx`."""

    activations: Literal["uint8 per token, dynamic"]  # how the activations outside `static_activations` are quantized
    weights: Literal["int8 per column, symmetric", "uint8 per column, around 128"]
    # `int7` in params.yaml, stored as int8: sums of signed 8-bit products saturate on processors without VNNI.
    reduce_range: bool
    # A table shared with the vocabulary head keeps all 8 bits in both uses.
    embeddings: Literal["int8 per row, symmetric", "float32"]
    quantized_matmuls: int
    quantized_embeddings: int
    # Names of the products with a constant that stay in float32. Products of two activations always do.
    exact_matmuls: tuple[str, ...]
    quantized_activations: int  # number of tensors that the quantized products read
    # Names of the activations with a fixed scale, calibrated on some texts and stored as uint8.
    static_activations: tuple[str, ...] = ()
    # Names of the static activations whose outlier channels are divided by a factor that multiplies the matching rows
    # of the weights (SmoothQuant, Xiao et al. 2023).
    smoothed_activations: tuple[str, ...] = ()
    # Largest ratio, over the static activations, of the fixed step to the step of a typical token's own scale.
    static_ratio: float = 0.0

    @property
    def kind(self) -> str:
        """Short readable name. With `exact_share: 1.0` a rung has no product in INT8."""
        if self.quantized_matmuls:
            return "INT8"
        return "products in fp32, embeddings in INT8" if self.quantized_embeddings else "fp32, nothing in INT8"

    def __str__(self) -> str:
        """Description in the terms of `export.ladder`; different schemes have different descriptions."""
        weights = self.weights.replace("int8", "int7") if self.reduce_range else self.weights
        num_exact, num_static = len(self.exact_matmuls), len(self.static_activations)
        summary = f"weights {weights}; {num_exact} of {self.quantized_matmuls + num_exact} weight products in fp32"
        summary = f"{summary}; embeddings {self.embeddings}; activations {self.activations}"
        if not num_static:
            return summary
        smoothed = f", {len(self.smoothed_activations)} smoothed" if self.smoothed_activations else ""
        fixed = f"{num_static} of {self.quantized_activations} activations with a fixed scale"
        return f"{summary}; {fixed} (ratios up to {self.static_ratio:g}{smoothed})"


class Measured(record.Record):
    """A figure with its 95 % confidence interval."""

    value: float
    low: float
    high: float  # `low` and `high` are the ends of the interval over other texts of the same kind
    num_items: int
    # Texts that the items come from. The bootstrap resamples texts.
    num_texts: int


class Rung(record.Record):
    """Evidence for the INT8 graph of one scheme of the ladder: measured beside fp32, on the texts of the export."""

    size_bytes: int  # size of the graph file
    # Share of items that the graph answers as fp32 does. What an item is depends on the kind of model:
    #
    # - encoder: a masked token;
    # - classifier: a text; with several labels for each text, a label that either graph gives;
    # - tagger: a word that either graph puts into an entity;
    # - embedder: the first half of a text (does it find the same second half?), the first text of a pair (does it find
    #   the same second text?), or a scored pair (is it more similar than the pair before?).
    agreement: Measured
    # Name of the quality metric. Without labels it is the agreement with fp32.
    metric: str
    fp32_metric: float
    metric_ratio: Measured  # the metric of the graph / `fp32_metric`
    # Encoders: mean cosine between the embeddings of a text by fp32 and by the graph.
    embedding_cosine_mean: float | None = None
    embedding_cosine_min: float | None = None
    # Mean cosine between the vectors of a token by fp32 and by the graph, for a model that gives them.
    token_cosine_mean: float | None = None
    token_cosine_min: float | None = None
    checks: tuple[record.Limit, ...]
    scheme: QuantizationScheme
    different_answers: int  # number of distinct answers of fp32 over all items
    int8_metric: float
    batch_flips: Measured  # share of answers that change when a text is padded in a batch instead of running alone
    # Smallest cosine between the embeddings of a text run alone and run in a batch.
    batch_cosine_min: float | None = None
    # Largest difference of a logit from the same graph with 32-bit sums, on the processor of the export.
    saturation: float

    @property
    def is_passed(self) -> bool:
        return all(check.is_passed for check in self.checks)


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
GRAPHS: Mapping[Precision, str] = {"fp32": FILES.fp32, "int8": FILES.int8}


def data_file(graph: str) -> str:
    """Name of the external-data file of `graph`, used when one file cannot hold the weights."""
    return f"{graph}.data"


class TensorSpec(record.Record):
    """An input or output of both graphs. A name in `shape` is a dynamic axis."""

    name: str
    dtype: Literal["int64", "float32", "bool"]
    shape: tuple[str | int, ...]
    meaning: str


class SpecialTokens(record.Record):
    """Token ids that inference needs. A classifier may have no mask token."""

    ids: tuple[int, ...]  # every special token
    pad_id: int
    mask_id: int | None
    mask_token: str | None


class FileRecord(record.Record):
    size_bytes: int
    sha256: Sha256


class Manifest(record.Record):
    format_version: Literal[2]
    task: Task
    family: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: tuple[str, ...]  # labels of a classifier or tagger in the order of the logits; empty for other kinds
    label_scores: ScoreFunction = "softmax"  # how a classifier turns logits into scores
    decision_threshold: float | None = None  # independent labels: a label applies if its score is above this
    reads_pairs: bool = False  # whether a classifier was trained on pairs of texts
    # Whether the model was trained with `token_type_ids` of 1 for the second text of a pair.
    types_tell_pairs: bool = False
    # Question answering: "no answer" wins if it outscores the best answer by more than this; None means 0.
    no_answer_margin: float | None = None
    pooling: str = "mean"  # how the vectors of tokens become the vector of a text, by the name of sentence-transformers
    # Embedders: name of a prompt → text that is put before each text embedded with it.
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt: str | None = None  # name of the prompt of texts that are embedded without one; None: no prompt
    # Positions at which both graphs compute the last layer (masks only if `masks_only` is true). Keys and values are
    # computed at every position.
    last_layer: LastLayer = "every position"
    max_length: Annotated[int, Field(ge=1, le=MAX_LENGTH_TOKENS)]  # longest input in tokens, including special tokens
    # Longest input that the positions of the graph allow; `max_length` is not above it. None: older packages.
    num_positions: Annotated[int, Field(ge=1)] | None = None
    vocab_size: int
    hidden_size: int
    special_tokens: SpecialTokens
    served: Precision  # precision that serves by default: INT8 only if it passed every check
    # Scheme of `model.int8.onnx`; None if no scheme passed and there is no such file.
    quantization: QuantizationScheme | None
    ladder: tuple[Rung, ...]  # schemes in the order they were tried; the one that is served is `quantization`
    opset: int
    versions: dict[str, str]  # versions of the Python packages that made the files
    lock_sha256: Sha256  # hash of the requirements lock that the export ran with
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


def read_manifest(folder: Path) -> Manifest:
    """Read `folder`/manifest.json; other files are not checked.

    Raises:
        ArtifactError: it is missing, lies outside the folder, or this version cannot read it.
    """
    path = _inside(folder, FILES.manifest)
    if not path.is_file():
        raise errors.ArtifactError(
            f"{folder} is not an exported model: there is no file {path}",
            do="run `dvc repro` (stage export), or give the folder under dist/",
        )
    return Manifest.read(path, do="export the model again with this version (`dvc repro`)")


def verify(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Compare the files called `names` (None: all) with the manifest.

    Raises:
        ArtifactError: a file is missing, differs, is not listed, or is a symbolic link that leads out of the folder;
            names the first one, with its hash and the expected hash.
    """
    for name in manifest.files if names is None else names:
        expected = manifest.files.get(name)
        path = _inside(folder, name)
        given = record_of(path) if path.is_file() else None
        if expected is None:
            raise errors.ArtifactError(
                f"{folder / FILES.manifest} does not list {name}, but {', '.join(manifest.files) or 'no files'}",
                do="export the model again (`dvc repro export@NAME`)",
            )
        if given != expected:
            raise errors.ArtifactError(
                f"{folder / name} is not the file that was exported: expected"
                f" {expected.size_bytes:,} bytes of sha256 {expected.sha256}, got "
                + (f"{given.size_bytes:,} of {given.sha256}" if given else "no such file"),
                do="restore it: `dvc repro export@NAME` for dist/NAME, a new download for a model version",
            )


def package_sha256(folder: Path) -> str:
    """Return the identity of the package in `folder`: the hash of its manifest, which has the hash of each file."""
    return files.sha256_of(folder / FILES.manifest)


def record_of(path: Path) -> FileRecord:
    """Return size and hash of the file at `path`."""
    return FileRecord(size_bytes=path.stat().st_size, sha256=files.sha256_of(path))


def _inside(folder: Path, name: str) -> Path:
    """Return the path of the file `name`; refuse a symbolic link that leads out of `folder`."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise errors.ArtifactError(
            f"{path} leads out of the package, to {path.resolve()}",
            do="copy the file there (in a DVC checkout: `dvc config cache.type copy`, then `dvc checkout --relink`)",
        )
    return path


class ExportMetrics(record.MetricFile):
    """Holds no timing and no machine name, so that the file is reproducible.

    The other figures are those of the scheme that is served; `ladder` has every `Rung` that was tried.
    """

    served: Precision  # `int8` if a scheme passed every check, else `fp32`
    fp32_size_bytes: int
    int8_size_bytes: int | None = None
    parity_max_abs_difference: float
    last_layer: LastLayer  # positions at which both graphs compute the last layer
    num_agreement_texts: int  # number of texts, pairs or questions that both graphs answered
    int8_agreement: float | None = None  # share of items that INT8 answers as fp32 does: `Rung.agreement`

    @model_validator(mode="after")
    def _int8_has_its_figures(self) -> Self:
        if self.served == "int8" and (self.int8_size_bytes is None or self.int8_agreement is None):
            raise ValueError("`int8_size_bytes` and `int8_agreement`, because `served` is int8")
        return self
