"""Sections `pretrain` and `evaluate`; and recipes, named sets of values that are laid over `pretrain`."""

from collections.abc import Mapping
from operator import ge, le
from typing import Annotated, Any, Literal

from pydantic import Field

from clozeline.params import schema
from clozeline.params.model import CAUSAL_FAMILIES, ModelParams, OptimizerParams, ScheduleParams, may_be_causal
from clozeline.params.schema import BelowOne, Count, Fraction, Positive, Requested, Section, Share

Objective = Literal["mlm", "clm", "rtd"]
# Objective whose encoder predicts no tokens → folder in models/ of the generator beside it, which does.
GENERATORS: Mapping[str, str] = {"rtd": "encoder/generator"}
# Value of `start` for the live encoder of the registry, which start.lock resolves.
FROM_CHAMPION = "champion"
# Fields for the length of a training, one of which is set; the editors of params set the others to null then.
BUDGETS = ("steps", "tokens", "epochs")
Setting = str | int | float | bool | None
# Fields of `model` that a training that continues may change.
_FREE = {"dropout", "attention_dropout", "head_dropout", "stochastic_depth", "initializer_range"}

# Values of the fields that need `start`, for random weights instead.
WITHOUT_START: Mapping[str, None] = {"start": None, "start_revision": None, "replay_fraction": None}


def exported_folder(objective: str) -> str:
    """Return the folder in models/ of the pre-trained model that is exported: the one that predicts tokens."""
    return GENERATORS.get(objective, "encoder")


def architecture_of(objective: str, model: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the settings that decide which weights a model has, and what they compute."""
    return {"objective": objective} | {f"model.{key}": value for key, value in model.items() if key not in _FREE}


class MaskingParams(Section):
    # Masking unit: a token (Devlin et al. 2018), a whole word, or a span of tokens (Joshi et al. 2020).
    unit: Literal["token", "word", "span"]
    # Share of maskable tokens that become targets, 0-1 (Devlin et al. 2018, section 3.1: 0.15).
    mask_rate: Fraction
    # Mask rate at the end of the budget, linearly from `mask_rate` (Ankner et al. 2023); null: constant.
    final_mask_rate: Fraction | None
    mask_share: Share
    random_share: Share
    keep_share: Share
    # `span` only: mean length of a span; lengths are geometric, cut at 10 tokens (SpanBERT: 3.8).
    mean_span_tokens: Annotated[float, Field(ge=1, le=5)] | None
    # Tokens, spelled as in the vocabulary, that are never targets and never drawn, like special tokens.
    protected_tokens: tuple[str, ...]
    rules = (
        ("mask_share random_share keep_share", lambda *s: abs(sum(s) - 1) <= 1e-9, "their sum must be 1"),
        ("unit mean_span_tokens", schema.set_for("span"), "set `mean_span_tokens` for unit `span`, null for any other"),
    )


class WordDropoutParams(Section):
    """Augmentation: words are deleted from some texts, and nothing takes their place."""

    text_share: Share  # share of the texts of an epoch that lose words
    word_share: BelowOne  # share of the words of such a text that are deleted


class ValidationParams(Section):
    """Validation during training."""

    every_steps: Count | None  # steps between two validation passes; null: never
    # Validation passes without a lower loss before training stops; the weights with the lowest loss are kept. Null:
    # train to the end.
    patience: Count | None
    rules = (("patience every_steps", schema.only_with, "`patience` counts validation passes: set `every_steps` too"),)


class PretrainParams(Section):
    recipe: str  # key of the section `recipes`, laid over this section
    objective: Objective  # the rows of language/objectives.py
    # Objective `rtd` only (Clark et al. 2020, section 2: λ = 50).
    discriminator_weight: Positive
    # Null: random weights. A folder, a hub name or `FROM_CHAMPION` gives the weights and the shape.
    start: str | None
    start_revision: str | None
    # `FROM_CHAMPION` only: share of the rows from text that the champion was trained on. Null: all text is used.
    replay_fraction: BelowOne | None
    model: ModelParams
    max_length: Annotated[int, Field(ge=8)]
    # Tokens of an optimizer step over all devices and accumulation, neither of which changes what a step learns.
    batch_tokens: Count
    # Maximum number of tokens in memory at once on one device; gradients are summed exactly. Null: no limit.
    micro_batch_tokens: Count | None
    masking: MaskingParams
    word_dropout: WordDropoutParams
    optimizer: OptimizerParams
    schedule: ScheduleParams
    steps: Annotated[int, Field(ge=0)] | None  # 0: no training; the result is `start` itself
    tokens: Count | None
    epochs: Positive | None  # passes over the rows of the training split; a fraction of one is possible
    precision: Requested
    compile: bool
    gradient_checkpointing: bool
    validation: ValidationParams
    log_every_steps: Count
    checkpoint_every_steps: Count
    num_checkpoints: Count
    num_threads: Count | None
    # Processes that build batches during training; 0: none. The batches are the same.
    num_workers: Annotated[int, Field(ge=0)]
    rules = (
        (
            " ".join(BUDGETS),
            lambda *budgets: any(budget is not None for budget in budgets),
            "a budget: set at least one; of several, the smallest counts",
        ),
        (
            "steps start",
            lambda steps, start: steps != 0 or start is not None,
            "`start` beside `steps: 0`: the trained model to use as it is",
        ),
        (
            "objective model.family start",
            lambda objective, family, start: objective != "rtd" or family == "electra" or start is not None,
            "family `electra` for objective `rtd`: no other has a stock class for the discriminator",
        ),
        (
            "objective model.family start",
            lambda objective, family, start: objective != "clm" or start is not None or may_be_causal(family),
            f"one of the families {', '.join(CAUSAL_FAMILIES)} for objective `clm`: no other has a causal form",
        ),
        ("max_length model.max_position_embeddings", le, "`max_length` is not above `model.max_position_embeddings`"),
        ("batch_tokens max_length", ge, "`batch_tokens` is not below `max_length`: a row must fit"),
        ("micro_batch_tokens max_length", schema.at_least, "not below `max_length`: a row must fit"),
        (
            "start start_revision",
            lambda start, revision: revision is None or start not in (None, FROM_CHAMPION),
            "`start_revision` names a state of a folder or hub name in `start`: set `start` to one, or leave it null",
        ),
        (
            "start replay_fraction",
            lambda start, fraction: fraction is None or start == FROM_CHAMPION,
            f"`replay_fraction` is for `start: {FROM_CHAMPION}`: leave it null for any other",
        ),
    )

    @property
    def architecture(self) -> dict[str, Setting]:
        return architecture_of(self.objective, self.model.model_dump())


class EvaluateParams(Section):
    max_length: Annotated[int, Field(ge=8)]
    num_bootstrap_samples: Annotated[int, Field(ge=100)]  # bootstrap samples of the documents, for the 95 % intervals
    # Documents that are also scored by pseudo-log-likelihood: each token hidden alone, one row for each token.
    num_pseudo_documents: Annotated[int, Field(ge=0)]


def laid_over(base: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` overlaid with `recipe`: sections are merged, other values are replaced."""
    result = dict(base)
    for key, value in recipe.items():
        inner = result.get(key)
        result[key] = laid_over(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


def where_written(key: str, tree: Any) -> str:
    """Return `pretrain.a.b`, or `recipes.NAME.a.b` if the chosen recipe sets it."""
    match tree:
        case {"recipes": Mapping() as recipes, "pretrain": {"recipe": str() as name}} if key.startswith("pretrain."):
            inner = key.removeprefix("pretrain.")
            return f"recipes.{name}.{inner}" if is_written(inner, recipes.get(name)) else key
    return key


def is_written(key: str, tree: Any) -> bool:
    """Return whether `tree` has a value, be it null, at the dotted `key`."""
    for part in key.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return False
        tree = tree[part]
    return True
