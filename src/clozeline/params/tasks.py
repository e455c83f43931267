"""Sections `finetune` and `finetune_defaults`: one entry for each task, their defaults, and a table of their kinds.

The behaviour of the kinds is in clozeline/tasks/kinds.py. The layers of a task are shared defaults, overlaid by those
of its kind, by its preset, and by its own values.
"""

from collections.abc import Mapping
from operator import lt
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from clozeline.params.model import OptimizerParams
from clozeline.params.pretraining import is_written, laid_over
from clozeline.params.schema import (
    BelowOne,
    Count,
    Fraction,
    Positive,
    Requested,
    Rule,
    Section,
    Share,
    at_least,
    at_most,
    mapping_at,
    never,
    never_with,
    only_with,
    sum_below_one,
)

OfOneLabel = Literal["accuracy", "macro_f1", "matthews", "f1"]
OfSeveralLabels = Literal["micro_f1", "macro_f1"]
# Metrics by `multi_label`; null stands for the first.
_METRICS = {False: get_args(OfOneLabel), True: get_args(OfSeveralLabels)}

# The blank of a prompt, whatever the tokenizer calls its mask.
BLANK = "[MASK]"

SHARED = "shared"
# Key of a task for the name of a row of `presets`.
PRESET = "preset"
# Key that DVC reads from the task itself, before any layers are merged.
DATA = "data"

_NONE: Mapping[str, Any] = {}


class HubParams(Section):
    """A dataset of the Hugging Face hub, or a local folder of the same layout."""

    dataset: str
    subset: str | None = None
    revision: str | None = None


class SplitsParams(Section):
    """Source of each split: a file of the folder `data`, or a split of the hub dataset.

    A split that is null is taken out of `train`, by `validation_fraction` or `test_fraction`.
    """

    train: str
    validation: str | None = None
    test: str | None = None


class LoraParams(Section):
    """Low-rank adapters beside every matrix of the layers (Hu et al. 2022), merged into the weights at the end."""

    rank: Count
    alpha: Count  # the adapters' product is multiplied by `alpha` / `rank`
    dropout: BelowOne


class FinetuneParams(Section):
    """Knobs of every kind; each kind adds its own in a subclass."""

    kind: str
    # Path that DVC watches: a file, a folder, or for a hub dataset the lock that fixes the version of its reader.
    data: str
    hub: HubParams | None
    splits: SplitsParams | None  # null: one file (or the split `train`); the hash of each record decides its split
    validation_fraction: Fraction
    test_fraction: Fraction
    max_length: Annotated[int, Field(ge=8)]
    batch_size: Count
    # Maximum number of tokens in memory at once, including padding; gradients are summed exactly. Null: no limit.
    micro_batch_tokens: Count | None
    epochs: Count
    validations_per_epoch: Count  # number of validation passes per epoch; the weights of the best one are kept
    # Validation passes without a better figure after which training stops; null: train to the end.
    patience: Count | None
    # Number of training runs, with seeds from `seed` upwards. The best run on the validation split is kept; mean and
    # deviation of the test figure over all runs are reported.
    num_seeds: Count
    optimizer: OptimizerParams
    # Multiples of the learning rate: each trains up to its first validation pass. The first one goes on, unless another
    # is clearly better.
    rate_factors: Annotated[tuple[Positive, ...], Field(min_length=1)]
    warmup_fraction: Share
    # Ratio of each layer's learning rate to that of the layer above it; 1: all equal.
    layer_decay: Annotated[float, Field(gt=0, le=1)]
    # Number of lowest layers that stay frozen, with the embeddings; null: everything is trained.
    frozen_layers: Annotated[int, Field(ge=0)] | None
    lora: LoraParams | None
    precision: Requested
    checkpoint_every_steps: Count | None  # steps between additional checkpoints; null: only one at each validation pass
    num_examples: Annotated[int, Field(ge=0)]  # number of test items shown with the right answer and the model's
    num_threads: Count | None
    rules: ClassVar[tuple[Rule, ...]] = (
        ("validation_fraction test_fraction", sum_below_one, "a sum below 1: the rest is the training split"),
        ("lora frozen_layers", never_with, "`frozen_layers: null` beside `lora`, which trains adapters and head alone"),
        ("micro_batch_tokens max_length", at_least, "`micro_batch_tokens` is not below `max_length`: a row must fit"),
        ("rate_factors", lambda factors: len(set(factors)) == len(factors), "factors that all differ"),
    )
    idle: ClassVar[tuple[str, ...]] = ()  # shared knobs that have no effect in this kind
    # Kind of model that answers, if a text can be asked of it alone; None: it cannot.
    model_kind: ClassVar[str | None] = None

    # What to set, and why, if the encoder is causal and cannot learn this task; empty if it can.
    instead_of_causal: ClassVar[str] = ""
    # What to set, and why, if the encoder is causal and this task reads its first token; empty if it does not.
    instead_of_first_token: ClassVar[str] = ""

    @property
    def reads_pairs(self) -> bool:
        """Whether the model classifies two texts at once."""
        return False


class LabelledParams(FinetuneParams):
    """Tasks of texts, or pairs of texts, and their labels."""

    text_field: str
    second_field: str | None  # field of the second text of a pair; null: single texts
    label_field: str
    # For a folder: label → a file with a text in each line, or a folder with a text in each file. Null: the subfolders
    # are the labels.
    label_files: Annotated[dict[str, str], Field(min_length=2)] | None
    multi_label: bool  # whether a text may have several labels, or none
    # Multi-label only: separator of the labels in records that hold them as one string instead of a list.
    label_separator: Annotated[str, Field(min_length=1)]
    # Treatment of a text or pair of more than `max_length` tokens; it is counted in any case.
    too_long: Literal["truncate", "drop", "error"]
    # Headline metric, which also selects the weights that are kept; null: accuracy, or micro-F1 of a multi-label task.
    metric: Literal[OfOneLabel, OfSeveralLabels] | None
    # Label whose F1 is the metric `f1`, or an extra figure beside any other metric; null: none.
    positive_label: str | None
    class_weights: Literal["none", "balanced"]  # balanced: texts of rare classes weigh more in training
    # Number of most frequent labels to keep; texts of rarer ones are dropped and counted. Null: all.
    max_classes: Annotated[int, Field(ge=2)] | None
    max_per_class: Count | None
    max_train: Annotated[int, Field(ge=2)] | None  # maximum number of training texts, chosen by their hashes; null: all
    # Tokens of the window that each step reads of a longer training text, drawn anew each time; null: its beginning,
    # `max_length` tokens.
    train_length: Annotated[int, Field(ge=8)] | None
    rules = (
        *FinetuneParams.rules,
        (
            "multi_label metric",
            lambda multi_label, metric: metric is None or metric in _METRICS[multi_label],
            f"null, or one of: {', '.join(_METRICS[False])}; for a multi-label task: {', '.join(_METRICS[True])}",
        ),
        (
            "metric positive_label",
            lambda metric, positive_label: metric != "f1" or positive_label is not None,
            "`positive_label` beside `metric: f1`: the label whose F1 it is",
        ),
        ("multi_label positive_label", never_with, "`positive_label: null` for a multi-label task"),
        ("multi_label max_per_class", never_with, "`max_per_class: null` for a task whose texts have several labels"),
        ("second_field label_files", never_with, "`second_field: null` beside `label_files`, which hold no pairs"),
        ("train_length max_length", at_most, "`train_length` at most `max_length`, or null"),
        ("train_length second_field", never_with, "`train_length: null` for pairs: a window would hold one alone"),
        ("hub label_files", never_with, "`label_files: null` beside `hub`: the records are on the hub"),
    )

    @property
    def reads_pairs(self) -> bool:
        return self.second_field is not None

    @property
    def named_labels(self) -> frozenset[str]:
        """Labels that can be predicted even if no training text has them."""
        return frozenset()


class ClassificationParams(LabelledParams):
    """Tasks with one label, or any number of them, for each text or pair of texts."""

    model_kind = "text-classification"
    instead_of_first_token: ClassVar[str] = (
        "family `modernbert`, which classifies at the last token if it is causal, or objective `mlm`; other families"
        " classify at the first token, which sees no other in a causal model"
    )


class QuestionAnsweringParams(FinetuneParams):
    """Tasks that find the span of a context that answers a question, or say that no span does."""

    model_kind = "question-answering"
    question_field: str
    context_field: str
    # Field of the answers, `{text: [...], answer_start: [...]}`; both lists are empty if the context has no answer.
    answers_field: str
    stride: Annotated[int, Field(ge=0)]  # number of tokens that two neighbouring windows of a long context share
    max_question_tokens: Count
    max_answer_tokens: Count
    rules: ClassVar[tuple[Rule, ...]] = (
        *FinetuneParams.rules,
        (
            "max_length max_question_tokens stride",
            lambda length, question, stride: question + stride + 3 < length,
            "`max_question_tokens` + `stride` + 3 special tokens below `max_length`: otherwise windows do not advance",
        ),
    )
    instead_of_causal: ClassVar[str] = "objective `mlm`, because a causal model has not read the context after a word"


class SimilarityParams(FinetuneParams):
    """Tasks that measure how similar two texts are, by the cosine of their embeddings or by reading both at once."""

    model_kind = "feature-extraction"
    first_field: str
    second_field: str
    score_field: str | None  # field of a pair's score; null: pairs have no score, and each is a match
    lowest_score: float  # score of pairs that have nothing in common: cosine 0
    highest_score: float  # score of pairs with the same meaning: cosine 1
    # Whether the model reads both texts of a pair at once and answers with a score, as GLUE has it; otherwise it has a
    # vector for each text.
    read_together: bool
    # Column names of tab-separated files without a header, in which quotes are ordinary characters.
    columns: Annotated[tuple[str, ...], Field(min_length=2)] | None
    # Field of a text that is split into a pair: its first sentence, and the rest. Null: two fields.
    docstring_field: str | None
    title_field: str | None  # field of the qualified name of that text, which is removed from both; null: none
    max_train: Annotated[int, Field(ge=2)] | None  # maximum number of training pairs, chosen by their hashes; null: all
    # Tokens at which texts are cut in training: more pairs in the same time. Null: `max_length`.
    train_length: Annotated[int, Field(ge=8)] | None
    temperature: Positive  # matching pairs: divisor of their cosines before the softmax over a batch
    # Headline metric of matching pairs: share of first texts with a match among this many nearest texts.
    recall_at: Count
    rules: ClassVar[tuple[Rule, ...]] = (
        *FinetuneParams.rules,
        ("lowest_score highest_score", lt, "`lowest_score` below `highest_score`"),
        ("train_length max_length", at_most, "`train_length` at most `max_length`, or null"),
        ("read_together score_field", only_with, "`score_field` beside `read_together: true`, which learns scores"),
        ("docstring_field score_field", never_with, "`score_field: null` beside `docstring_field`: its parts match"),
        ("title_field docstring_field", only_with, "`title_field: null`, or a `docstring_field` beside it"),
    )

    @property
    def reads_pairs(self) -> bool:
        return self.read_together


class TaggingParams(FinetuneParams):
    """Tasks with a tag for each word: entities by type and extent."""

    model_kind = "token-classification"
    tokens_field: str  # JSON Lines, Parquet and hub datasets: field of the list of words
    # ... and field of the list of their tags.
    tags_field: str
    # Files in columns (CoNLL): column of the words, counted from 0, or from the last one back if negative.
    token_column: int
    tag_column: int
    instead_of_causal: ClassVar[str] = (
        "objective `mlm`, because a causal model has not read the words after the one that it tags"
    )


class EntailmentParams(Section):
    """A classifier of pairs of texts with a label `entailment`."""

    model: str  # folder, such as models/finetuned/mnli, or name on the hub
    revision: str | None = None  # commit on the hub


class ZeroShotParams(LabelledParams):
    """Tasks with one label for each text, by a model's answer to a prompt after it: nothing is trained."""

    # These four have one valid value. The other knobs of texts and labels begin as those of `classification`.
    multi_label: bool = False
    second_field: str | None = None
    class_weights: Literal["none", "balanced"] = "none"
    train_length: Annotated[int, Field(ge=8)] | None = None
    prompt: str  # prompt after each text, with one blank
    # Null: which word would the encoder fill in? Otherwise: does the prompt, filled with a label's words, follow from
    # the text?
    entailment: EntailmentParams | None
    # Label → words that stand for it, each one token, or with entailment any phrase; null: the labels themselves.
    label_words: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] | None
    calibrated: bool  # whether a word is scored by how much likelier it is after the text than in the prompt alone
    rules: ClassVar[tuple[Rule, ...]] = (
        *LabelledParams.rules,
        ("prompt", lambda prompt: prompt.count(BLANK) == 1, f"a sentence with one {BLANK}"),
        ("multi_label", never, "`multi_label: false`: one word is filled in"),
        ("second_field", never, "`second_field: null`: one text, with the prompt after it"),
        ("num_seeds", lambda num: num == 1, "`num_seeds: 1`: nothing is random"),
        ("class_weights", lambda weights: weights == "none", "`class_weights: none`: nothing is trained"),
        ("train_length", never, "`train_length: null`: nothing is trained"),
        ("lora", never, "`lora: null`: nothing is trained"),
    )
    idle: ClassVar[tuple[str, ...]] = (
        "micro_batch_tokens",
        "epochs",
        "validations_per_epoch",
        "patience",
        "optimizer",
        "warmup_fraction",
        "layer_decay",
        "frozen_layers",
        "checkpoint_every_steps",
    )

    @property
    def named_labels(self) -> frozenset[str]:
        return frozenset(self.label_words or ())

    instead_of_causal: ClassVar[str] = "objective `mlm`, because a causal model fills no masks; or set `entailment`"


# Section class of each `kind`.
SECTIONS: Mapping[str, type[FinetuneParams]] = {
    "classification": ClassificationParams,
    "tagging": TaggingParams,
    "question_answering": QuestionAnsweringParams,
    "similarity": SimilarityParams,
    "zero_shot": ZeroShotParams,
}


class _ByKind:
    """Validates a task as the class that its `kind` names: pydantic's discriminated union, for any set of classes."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {kind: handler.generate_schema(section) for kind, section in SECTIONS.items()}
        return core_schema.tagged_union_schema(choices, discriminator="kind")


AnyTask = Annotated[FinetuneParams, _ByKind()]


# Keys that `zero_shot` takes of the defaults of `classification`.
_INHERITED = {
    name
    for name in LabelledParams.model_fields.keys() - FinetuneParams.model_fields.keys()
    if ZeroShotParams.model_fields[name].is_required()
}


def whole_task(
    task: Mapping[str, Any], defaults: Mapping[str, Any], presets: Mapping[str, Any] = _NONE
) -> dict[str, Any]:
    """Return `task` completed by the layers under it."""
    whole: dict[str, Any] = {}
    for layer in (*_layers_under(task, defaults, presets).values(), task):
        whole = laid_over(whole, layer)
    whole.pop(PRESET, None)
    return whole


def _layers_under(
    task: Mapping[str, Any], defaults: Mapping[str, Any], presets: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """Return what lies under `task`, by place, the lowest first: defaults, and its preset.

    A key of the task replaces that of its preset whole.
    """
    preset = preset_of(task, presets)
    kind = str(task.get("kind", preset.get("kind")))
    layers = {SHARED: mapping_at(defaults, SHARED)}
    if kind == "zero_shot":
        inherited = mapping_at(defaults, "classification")
        layers["classification"] = {key: value for key, value in inherited.items() if key in _INHERITED}
    layers[kind] = mapping_at(defaults, kind)
    own = {key: preset[key] for key in preset if key not in task}
    return {f"finetune_defaults.{name}": layer for name, layer in layers.items()} | {f"presets.{task.get(PRESET)}": own}


def preset_of(task: Mapping[str, Any], presets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that `task` takes of its preset; none of an unknown one, or of one of another kind."""
    row = presets.get(str(task.get(PRESET)))
    if not isinstance(row, Mapping) or task.get("kind", row.get("kind")) != row.get("kind"):
        return {}
    return {key: value for key, value in row.items() if key != DATA}


def where_laid(key: str, tree: Any) -> str:
    """Return `finetune.TASK.a.b`, or `presets.….a.b` or `finetune_defaults.….a.b` if the value is set there."""
    section, _, rest = key.partition(".")
    name, _, inner = rest.partition(".")
    if section != "finetune" or not inner:
        return key
    task, defaults, presets = tree["finetune"][name], mapping_at(tree, "finetune_defaults"), mapping_at(tree, "presets")
    layers = {**_layers_under(task, defaults, presets), f"finetune.{name}": task}
    return next((f"{place}.{inner}" for place, layer in reversed(layers.items()) if is_written(inner, layer)), key)
