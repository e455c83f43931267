"""A trained model folder of any family, opened for export: model, tokenizer, and the facts for the manifest.

The architecture in config.json tells which kind of model a folder holds. Some families cannot be exported.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from huggingface_hub.errors import StrictDataclassError
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from clozeline.encoder import architecture, checkpoints
from clozeline.encoder.families.layout import HeadKind
from clozeline.exporting.graph import MAX_PROTOBUF_BYTES
from clozeline.inference.package import MODEL_KINDS, ModelKind, kind_of
from clozeline.params.delivery import ImportParams
from clozeline.params.model import NOT_EXPORTED
from clozeline.records.finetune.scored_items import ConfigFacts
from clozeline.records.package import ScoreFunction, Task
from clozeline.records.published import TOKENIZER, inspect_model, published_folder
from clozeline.system.errors import ArtifactError

# Keys of config.json that mark a pair model: a cross-encoder of sentence-transformers.
_PAIR_MARKS = ("sentence_transformers", "sbert_ce_default_activation_function")

# Errors that values in a configuration file cause.
_FAULTS_OF_VALUES = (KeyError, TypeError, ValueError)
# What to do about missing weights.
_GET_WHOLE = (
    "download or save the model again; if it was published without its head, import its encoder "
    "(`--task feature-extraction`), or fine-tune a head (docs/tasks.md)"
)


def task_of(folder: Path) -> Task:
    """Return the kind of model in a folder.

    Raises:
        ArtifactError: there is no model in it, or none that can be exported.
    """
    config = folder / "config.json"
    try:
        facts = facts_in(config)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(f"{folder} holds no model: no {config}", do="train it: `dvc repro`") from error
    names, known = architectures_in(config)
    kind = str(facts.get("model_type"))
    if kind in NOT_EXPORTED:
        raise ArtifactError(
            f"{folder}: model_type {kind} cannot be exported to ONNX: {NOT_EXPORTED[kind]}",
            do="train another family, or remove this model from `models`",
        )
    if len(known) != 1:
        raise ArtifactError(
            f"{config}: no export of the architectures: {', '.join(names) or 'none'}, only {', '.join(_endings())}",
            do="save the model with its head (`AutoModelForMaskedLM`, `AutoModelForTokenClassification`, …)",
        )
    return known[0]


def architectures_in(config: Path) -> tuple[list[str], list[Task]]:
    """Return the names in `architectures` of a config.json, and the kinds of model that they stand for."""
    architectures = facts_in(config).get("architectures") or []
    names = [str(name) for name in (architectures if isinstance(architectures, list) else [architectures])]
    endings = _endings()
    longest_first = sorted(endings, key=len, reverse=True)
    found = [next((ending for ending in longest_first if name.endswith(ending)), None) for name in names]
    return names, list(dict.fromkeys(endings[ending] for ending in found if ending is not None))


def _endings() -> dict[str, Task]:
    """Return ending of the name of an architecture → kind of model."""
    return {ending: task for task, kind in MODEL_KINDS.items() for ending in kind.architectures}


def facts_in(file: Path, kind: type = dict) -> Any:
    """Return the JSON object (or list, by `kind`) in a file.

    Raises:
        ArtifactError: the file holds something else.
    """
    try:
        facts = json.loads(file.read_bytes())
        given = f"a {type(facts).__name__}"
    except ValueError as error:  # invalid JSON or UTF-8
        facts, given = None, str(error)
    if not isinstance(facts, kind):
        raise damaged(file, given, "a JSON object" if kind is dict else "a JSON list")
    return facts


def damaged(file: Path, given: str, expected: str) -> ArtifactError:
    return ArtifactError(
        f"{file} is damaged: expected {expected}, got {given}",
        do="if a stage made it, run `dvc repro`, which restores it; otherwise download or save it again",
    )


@dataclass(frozen=True)
class TrainedModel:
    """A model in evaluation mode with its head and its tokenizer, and the facts of its configuration for a package."""

    folder: Path
    task: Task
    model: checkpoints.AnyModel
    tokenizer: PreTrainedTokenizerFast
    published: ImportParams | None = None  # what a published model says outside its config.json

    @property
    def kind(self) -> ModelKind:
        """Kind of model that belongs to the task."""
        return kind_of(self.task)

    @property
    def family(self) -> str:
        family: str = self.model.config.model_type
        return family

    @property
    def max_length(self) -> int:
        """Longest input in tokens: the lowest limit of the positions, the tokenizer, and what was published."""
        longest = min(self.num_positions, self.tokenizer.model_max_length)
        return int(longest if self.published is None else min(longest, self.published.max_length))

    @property
    def num_positions(self) -> int:
        """Longest input in tokens that the positions allow."""
        return architecture.longest_row_of(self.model.config)

    @property
    def pooling(self) -> str:
        """How the vectors of tokens become the vector of a text, as in `POOLINGS`."""
        return "mean" if self.published is None else self.published.pooling

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of a classifier or a tagger in the order of its logits; otherwise empty."""
        if self.kind.labels == "none":
            return ()
        names: Mapping[int, str] = self.model.config.id2label
        return tuple(names[place] for place in range(len(names)))

    @property
    def label_scores(self) -> ScoreFunction:
        """Function from a classifier's logits to scores, chosen as transformers' pipeline does."""
        config = self.model.config
        if config.problem_type == "regression":
            return "none"
        is_each_for_itself = config.problem_type == "multi_label_classification" or config.num_labels == 1
        return "sigmoid" if self.kind.labels == "of a text" and is_each_for_itself else "softmax"

    @property
    def decision_threshold(self) -> float | None:
        """Score above which a label is given, if each label has an independent score; otherwise None."""
        if self.label_scores != "sigmoid":
            return None
        threshold = ConfigFacts.of(self.model.config).decision_threshold
        return 0.5 if threshold is None else float(threshold)

    @property
    def reads_pairs(self) -> bool:
        """Whether the model is a classifier that is marked as trained on pairs of texts."""
        config = self.model.config
        if self.published is not None:
            return self.published.reads_pairs
        is_said = ConfigFacts.of(config).reads_pairs or any(getattr(config, name, None) for name in _PAIR_MARKS)
        return self.kind.labels == "of a text" and is_said

    @property
    def types_tell_pairs(self) -> bool:
        """Whether the saved tokenizer tells the texts of a pair apart by token types."""
        return "token_type_ids" in self.tokenizer.model_input_names

    @property
    def no_answer_margin(self) -> float | None:
        margin = ConfigFacts.of(self.model.config).no_answer_margin
        return None if margin is None else float(margin)


def open_trained(folder: Path, published: ImportParams | None = None, family: str | None = None) -> TrainedModel:
    """Open a model from `pretrain` or `finetune`, or a published model of the same families.

    `family`: `pretrain.model.family` of the params, which opens your own encoder.

    Raises:
        ArtifactError: a file is missing, damaged, or does not fit the others; the message names it.
    """
    task = task_of(folder) if published is None else published.task
    kind = cast(HeadKind, kind_of(task).head)
    inspect_model(str(folder))
    for names in (("tokenizer.json",), checkpoints.WEIGHT_FILES):
        if not any((folder / name).is_file() for name in names):
            raise ArtifactError(
                f"{folder} is not a complete model: no {folder / names[0]}",
                do="run `dvc repro`, which restores it from the cache or makes it again",
            )
    # The model comes first: the tokenizer reads config.json too, and would be blamed for a fault in it.
    model = _model(
        folder, kind, family, "save config and weights from the same model" if published is None else _GET_WHOLE
    )
    trained = TrainedModel(folder, task, model, _tokenizer(folder), published)
    _check_facts(trained)
    _check_fit(trained)
    _check_sizes(trained)
    return trained


@contextmanager
def opened_published(published: ImportParams) -> Iterator[TrainedModel]:
    """Open the published model that `imports` of params.yaml names; its files are there until the block ends.

    Raises:
        ArtifactError: a file is missing, is not the one that was imported, or does not fit the others.
        TransientError: the hub does not answer.
    """
    with published_folder(published.model, published.revision, published.sha256) as folder:
        if not (file := folder / TOKENIZER).is_file():
            tokenizer_of_vocabulary(str(folder)).save(str(file))
        yield open_trained(folder, published)


def tokenizer_of_vocabulary(name: str, revision: str | None = None) -> Tokenizer:
    """Return the tokenizer that transformers makes from vocab.txt, or from vocab.json and merges.txt.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there.

    Raises:
        ArtifactError: the files of the vocabulary are missing or damaged, or of a kind that needs another library.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
        made: Tokenizer = tokenizer.backend_tokenizer
    except Exception as error:  # tokenizers raises nothing narrower
        given = str(error).strip().partition("\n")[0]
        raise _no_tokenizer(name, given) from error
    if len(made.get_vocab()) <= len(tokenizer.all_special_ids):  # made without a file, from special tokens alone
        raise _no_tokenizer(name, "no tokenizer.json, and no vocabulary")
    return made


def _no_tokenizer(name: str, given: str) -> ArtifactError:
    return ArtifactError(
        f"{name} has no tokenizer.json, vocab.txt, or vocab.json with merges.txt that can be used: {given}",
        do="convert it where its library is installed: `AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)`",
    )


def _tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            facts_in(folder / name)  # one JSON object each
    try:
        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers raises nothing narrower
        raise damaged(folder / "tokenizer.json", str(error), "a tokenizer as transformers saves it") from error
    return tokenizer


def _model(folder: Path, kind: HeadKind, family: str | None, do: str) -> checkpoints.AnyModel:
    checkpoint = checkpoints.Checkpoint(str(folder), family=family)
    try:
        model, missing = checkpoints.opened(checkpoint, checkpoint.config(), kind)
    except (*_FAULTS_OF_VALUES, AttributeError, StrictDataclassError) as error:
        raise damaged(folder / "config.json", str(error), "a configuration that transformers can build") from error
    if kind == "feature-extraction":
        missing = model.of_encoder(missing)  # no output depends on a pooler
    checkpoints.check_whole(folder / "model.safetensors", missing, do)
    broken = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise ArtifactError(
            f"{folder}/model.safetensors has weights that are not finite in {len(broken)} tensors, such as {broken[0]}",
            do="train again, with a lower learning rate if the loss was not finite; an export cannot correct this",
        )
    return model.eval()


def _check_facts(trained: TrainedModel) -> None:
    """Check that the facts in the configuration files can be read."""
    facts: Mapping[str, Callable[[], object]] = {
        "config.json": lambda: (trained.labels, trained.decision_threshold, trained.no_answer_margin),
        "tokenizer_config.json": lambda: trained.max_length,
    }
    for name, read in facts.items():
        try:
            read()
        except _FAULTS_OF_VALUES as error:
            expected = "labels numbered from 0, and numbers in numeric fields"
            raise damaged(trained.folder / name, repr(error), expected) from error


def _check_fit(trained: TrainedModel) -> None:
    for given, expected in _faults(trained):
        raise ArtifactError(
            f"{trained.folder} cannot be exported as it is: expected {expected}, got {given}",
            do="save model, configuration and tokenizer of the same training run",
        )


def _check_sizes(trained: TrainedModel) -> None:
    name, weight = max(trained.model.named_parameters(), key=lambda named: named[1].numel())
    size_bytes = 4 * weight.numel()
    if size_bytes >= MAX_PROTOBUF_BYTES:
        raise ArtifactError(
            f"{trained.folder}: {name} ({' x '.join(map(str, weight.shape))}) exceeds a tensor of ONNX, 2 GiB",
            do="train with fewer tokens (`vocab_size`) or a smaller hidden size",
        )


def _faults(trained: TrainedModel) -> Iterator[tuple[str, str]]:
    """Yield, for each fault, the given and the expected part of the error."""
    config, tokenizer = trained.model.config, trained.tokenizer
    last_id = max(tokenizer.get_vocab().values(), default=-1)
    if last_id >= config.vocab_size:
        given = f"a tokenizer with ids up to {last_id:,}, a model of {config.vocab_size:,} tokens"
        yield given, "a tokenizer made for the model"
    if tokenizer.pad_token_id is None:
        yield "a tokenizer without a padding token", "a padding token, with which the texts of a batch are padded"
    if trained.kind.fills_masks and tokenizer.mask_token_id is None:
        yield "a tokenizer without a mask token", "the mask token that the model fills"
    of_pairs = trained.kind.model.pair_names(reads_pairs=trained.reads_pairs) is not None
    num_special = tokenizer.num_special_tokens_to_add(of_pairs)
    if trained.max_length < num_special + (2 if of_pairs else 1):
        given = f"room for {trained.max_length} tokens, {num_special} of them special"
        yield given, "room for a token of the text, or for one of each text of a pair"
    num_least = 2 if config.problem_type == "single_label_classification" else 1
    fits = num_least <= config.num_labels and not (config.problem_type == "regression" and config.num_labels > 1)
    if trained.kind.labels != "none" and not fits:
        given = f"{config.num_labels} labels, problem type {config.problem_type}"
        yield given, "labels that fit the problem type (regression: 1, single label: at least 2)"
    if not 0 <= (trained.decision_threshold or 0) <= 1:
        yield f"decision_threshold {trained.decision_threshold}", "a probability, from 0 to 1"
    if not math.isfinite(trained.no_answer_margin or 0):
        yield f"no_answer_margin {trained.no_answer_margin}", "a finite number"
