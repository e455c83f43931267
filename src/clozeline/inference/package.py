"""Opening of a package (`dist/<model>/`), with its files checked against the manifest; the kinds of model.

Everything that differs between kinds of model, from export to HTTP, is in one row of a table. Objects that need torch
or a web server are named as `module:name` and imported on use, because inference needs neither.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from clozeline.inference.answerer import Answerer
from clozeline.inference.classifier import Classifier, Tagger
from clozeline.inference.completer import Completer
from clozeline.inference.language import Embedder, OpenEncoder
from clozeline.inference.open_model import GraphSession, OpenModel, PerToken
from clozeline.inference.tokenization import TextTokenizer, is_panic
from clozeline.records.package import FILES, GRAPHS, Manifest, Precision, data_file, read_manifest, verify
from clozeline.system.errors import ArtifactError, ClozelineError

# No stage imports these modules, because no output of a stage depends on them.
_TEXTS, _LABELS = "clozeline.serving.http.house_texts", "clozeline.serving.http.house_labels"

_RESTORE = "export the model again (`dvc repro export@NAME`), or download the model version again"


@dataclass(frozen=True)
class ModelKind:
    """One kind of model, from the trained model to its answers."""

    architectures: tuple[str, ...]  # endings of the name in `architectures` of config.json
    head: str  # name of the head in the room `encoder`
    form: str  # `module:name` of what the graph computes
    exam: str  # `module:name` of the function that returns the exam, of an open model and a sample
    model: type[OpenModel]  # class that answers with the graph
    answers: str  # `module:name` of its answers over HTTP
    methods: tuple[str, ...] = ()  # methods of the Python API's `Model` that ask it
    model_type: str = "embedding"  # name of the kind in text-embeddings-inference, where that has it
    says: str = ""  # description of its answers; empty: its labels
    labels: Literal["none", "of a text", "of each token"] = "none"  # unit to which a label of the configuration belongs
    is_language_model: bool = False  # whether the graph predicts tokens: at masks, or after the text
    fills_masks: bool = False

    @property
    def is_per_token(self) -> bool:
        """Whether the graph gives an output for each token."""
        return issubclass(self.model, PerToken)


# Kinds of model, keyed by `task` of the manifest: the name of the task on the model hub, if it has one there.
MODEL_KINDS: Mapping[str, ModelKind] = {
    "fill-mask": ModelKind(
        architectures=("ForMaskedLM",),
        head="mlm",
        form="clozeline.exporting.forms:MASKS",
        exam="clozeline.exporting.exams:masks_exam",
        model=OpenEncoder,
        methods=("fill", "embed", "tokens"),
        answers=f"{_TEXTS}:MASKS",
        says="a masked language model",
        is_language_model=True,
        fills_masks=True,
    ),
    "text-generation": ModelKind(
        architectures=("ForCausalLM", "LMHeadModel"),
        head="clm",
        form="clozeline.exporting.forms:NEXT_TOKENS",
        exam="clozeline.exporting.exams:next_tokens_exam",
        model=Completer,
        methods=("complete", "embed", "tokens"),
        answers=f"{_TEXTS}:NEXT_TOKENS",
        says="a causal language model",
        is_language_model=True,
    ),
    "text-classification": ModelKind(
        architectures=("ForSequenceClassification",),
        head="text-classification",
        form="clozeline.exporting.forms:LABELS",
        exam="clozeline.exporting.task_exams:labels_exam",
        model=Classifier,
        methods=("classify",),
        answers=f"{_LABELS}:LABELS",
        model_type="classifier",
        labels="of a text",
    ),
    "token-classification": ModelKind(
        architectures=("ForTokenClassification",),
        head="token-classification",
        form="clozeline.exporting.forms:TAGS",
        exam="clozeline.exporting.task_exams:tags_exam",
        model=Tagger,
        methods=("tag",),
        answers=f"{_LABELS}:ENTITIES",
        model_type="token_classifier",
        labels="of each token",
    ),
    "question-answering": ModelKind(
        architectures=("ForQuestionAnswering",),
        head="question-answering",
        form="clozeline.exporting.forms:ENDS",
        exam="clozeline.exporting.task_exams:answers_exam",
        model=Answerer,
        methods=("answer",),
        answers=f"{_LABELS}:ANSWERS",
        model_type="question_answerer",
        says="the span of a context that answers a question",
    ),
    "feature-extraction": ModelKind(
        architectures=("Model",),
        head="feature-extraction",
        form="clozeline.exporting.forms:EMBEDDINGS",
        exam="clozeline.exporting.task_exams:similarity_exam",
        model=Embedder,
        methods=("embed", "tokens"),
        answers=f"{_TEXTS}:EMBEDDINGS",
        says="a vector for each text",
    ),
}


def kind_of(task: str) -> ModelKind:
    """Return the kind of model for a manifest's task.

    Raises:
        ArtifactError: the task is unknown.
    """
    if task not in MODEL_KINDS:
        raise ArtifactError(
            f"this version of Clozeline knows no models for the task {task}, only {', '.join(MODEL_KINDS)}",
            do="export the model again with this version (`dvc repro`)",
        )
    return MODEL_KINDS[task]


@cache
def resolved(name: str) -> Any:
    """Import the object that a row names as `module:name`."""
    return resolve_name(name)


def load(folder: Path, *, precision: Precision | None = None, num_threads: int = 1) -> OpenModel:
    """Open the package in `folder`; the returned model is thread-safe.

    Args:
        folder: folder with the files of `manifest.FILES`.
        precision: which graph answers; None: the one that the manifest names in `served`.
        num_threads: cores that one run may use. Many texts are fastest with 1 here and one thread per core outside;
            the latency of one short text is lowest with every core here.

    Raises:
        ArtifactError: a file is missing, lies elsewhere or differs from the exported one; the package has no graph in
            this precision; or as `open_graph`.
    """
    manifest = read_manifest(folder)
    graph = GRAPHS[precision or manifest.served]
    if graph not in manifest.files:
        raise ArtifactError(
            f"{folder} has no {precision} graph: no INT8 scheme of its `ladder` passed ({FILES.manifest})",
            do="leave the precision out to use fp32, or export again with other INT8 schemes",
        )
    weights = [data_file(graph)] if data_file(graph) in manifest.files else []
    verify(folder, manifest, [graph, *weights, FILES.tokenizer])
    return open_graph(folder / graph, manifest, num_threads=num_threads)


def open_graph(path: Path, manifest: Manifest, *, num_threads: int = 1, wide_sums: bool = False) -> OpenModel:
    """Open one graph beside its tokenizer.json without checking hashes; `wide_sums` as in `GraphSession`.

    Raises:
        ArtifactError: the graph or the tokenizer is damaged, or does not match the manifest.
    """
    rules = path.parent / FILES.tokenizer
    with _opening(rules, "a tokenizer.json that the tokenizers library saved"):
        tokenizer = TextTokenizer(
            rules,
            max_length=manifest.max_length,
            mask_id=manifest.special_tokens.mask_id,
            types_tell_pairs=manifest.types_tell_pairs,
        )
        _check(rules, _faults_of_tokenizer(tokenizer, manifest))
    with _opening(path, "an ONNX graph with its weights in the same folder"):
        session = GraphSession(path, input_names=manifest.input_names, num_threads=num_threads, wide_sums=wide_sums)
    _check(path, _faults_of_graph(session, manifest))
    return kind_of(manifest.task).model(manifest, tokenizer, session)


@contextmanager
def _opening(path: Path, expected: str) -> Iterator[None]:
    """Round every failure to open `path` into an `ArtifactError` that names the file.

    ONNX Runtime and tokenizers raise nothing narrower than `Exception`, and a panic of tokenizers derives from
    `BaseException` only.
    """
    try:
        yield
    except ClozelineError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        given = " ".join(str(error).split())[:300]
        raise ArtifactError(f"{path} is not {expected}: {given}", do=_RESTORE) from error


def _faults_of_tokenizer(tokenizer: TextTokenizer, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the given and the expected part of the error for each mismatch between tokenizer and manifest."""
    special = manifest.special_tokens
    if tokenizer.last_id >= manifest.vocab_size:
        yield f"token ids up to {tokenizer.last_id:,}", f"ids below {manifest.vocab_size:,} (`vocab_size`)"
    if tokenizer.mask_token != special.mask_token:
        yield f"the mask token {tokenizer.mask_token}", f"{special.mask_token} (`mask_token`)"
    if not 0 <= special.pad_id <= tokenizer.last_id:
        yield f"token ids up to {tokenizer.last_id:,}", f"a padding token with the id {special.pad_id} (`pad_id`)"
    names = kind_of(manifest.task).model.pair_names(reads_pairs=manifest.reads_pairs)
    num_added = tokenizer.num_added(pairs=names is not None)
    if num_added >= manifest.max_length:
        yield f"{num_added} special tokens around a text", f"fewer than {manifest.max_length} (`max_length`)"


def _faults_of_graph(session: GraphSession, manifest: Manifest) -> Iterator[tuple[str, str]]:
    outputs = {spec.name for spec in manifest.outputs}
    if manifest.num_positions is not None and manifest.max_length > manifest.num_positions:
        yield f"`max_length` {manifest.max_length:,}", f"at most {manifest.num_positions:,} (`num_positions`)"
    if session.takes != set(manifest.input_names):
        yield f"the inputs {_listed(session.takes)}", _listed(manifest.input_names)
    if not outputs <= session.gives:
        yield f"the outputs {_listed(session.gives)}", _listed(outputs)


def _check(path: Path, faults: Iterator[tuple[str, str]]) -> None:
    for given, expected in faults:
        raise ArtifactError(f"{path} is not that of the manifest: expected {expected}, got {given}", do=_RESTORE)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
