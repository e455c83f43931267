"""The one reader of params.yaml: types and bounds of every knob; the values are in the file alone."""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from clozeline.errors import ParamsError

Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class SourceParams(_Section):
    kind: Literal["python-docs", "files", "wikipedia-xml", "hub"]
    path: str
    pattern: str
    one_document_per: Literal["paragraph", "line", "file"]
    """Plain text only: other formats say themselves where a document ends."""
    text_field: str
    label_field: str | None
    dataset: str | None
    subset: str | None
    revision: str | None

    @model_validator(mode="after")
    def _hub_has_a_name(self) -> Self:
        if (self.kind == "hub") != (self.dataset is not None):
            raise ValueError("`dataset` names a hub dataset: set it for kind `hub` and leave it null for any other")
        return self


class PreprocessParams(_Section):
    source: SourceParams
    min_characters: Count
    max_characters: Count
    near_duplicate_similarity: Fraction
    same_side_similarity: Fraction
    validation_fraction: Fraction
    holdout_fraction: Annotated[float, Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.min_characters > self.max_characters:
            raise ValueError("`min_characters` is above `max_characters`: no text could pass")
        if self.same_side_similarity > self.near_duplicate_similarity:
            raise ValueError("`same_side_similarity` must not be above `near_duplicate_similarity`")
        if self.validation_fraction + self.holdout_fraction >= 1:
            raise ValueError("`validation_fraction` + `holdout_fraction` leave no text to train on")
        return self


class TokenizeParams(_Section):
    algorithm: Literal["wordpiece", "bpe", "unigram", "existing"]
    existing: str | None
    vocab_size: Annotated[int, Field(ge=64, le=1_000_000)]
    min_frequency: Count
    lowercase: bool
    shard_tokens: Count

    @model_validator(mode="after")
    def _existing_is_named(self) -> Self:
        if (self.algorithm == "existing") != (self.existing is not None):
            raise ValueError("`existing` names a tokenizer: set it for algorithm `existing`, null for any other")
        return self


class ModelParams(_Section):
    family: str
    """A row of the table in clozeline/model/families.py."""
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    max_position_embeddings: Count
    dropout: Annotated[float, Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("`hidden_size` must be a multiple of `num_attention_heads`")
        return self


class MaskingParams(_Section):
    mask_rate: Fraction
    """Share of maskable tokens that become targets, 0-1 (Devlin et al. 2018, section 3.1: 0.15)."""
    mask_share: Share
    random_share: Share
    keep_share: Share

    @model_validator(mode="after")
    def _shares_add_up(self) -> Self:
        if abs(self.mask_share + self.random_share + self.keep_share - 1) > 1e-9:
            raise ValueError("`mask_share` + `random_share` + `keep_share` must be 1")
        return self


class OptimizerParams(_Section):
    learning_rate: Positive
    beta1: Annotated[float, Field(ge=0, lt=1)]
    beta2: Annotated[float, Field(ge=0, lt=1)]
    epsilon: Positive
    weight_decay: NotNegative
    clip_norm: Positive


class ScheduleParams(_Section):
    decay: Literal["cosine", "linear"]
    warmup_steps: Annotated[int, Field(ge=0)]
    final_fraction: Share


class PretrainParams(_Section):
    model: ModelParams
    max_length: Annotated[int, Field(ge=8)]
    batch_tokens: Count
    masking: MaskingParams
    optimizer: OptimizerParams
    schedule: ScheduleParams
    steps: Count | None
    tokens: Count | None
    log_every_steps: Count
    checkpoint_every_steps: Count
    num_checkpoints: Count
    num_threads: Count | None

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if (self.steps is None) == (self.tokens is None):
            raise ValueError("the budget is `steps` or `tokens`: set one and leave the other null")
        if self.max_length > self.model.max_position_embeddings:
            raise ValueError("`max_length` is above `model.max_position_embeddings`")
        if self.batch_tokens < self.max_length:
            raise ValueError("`batch_tokens` is below `max_length`: not one row would fit")
        return self


class EvaluateParams(_Section):
    num_folds: Annotated[int, Field(ge=2)]
    max_length: Annotated[int, Field(ge=8)]
    batch_tokens: Count
    num_examples: Annotated[int, Field(ge=0)]


class FinetuneParams(_Section):
    kind: Literal["classification"]
    data: str
    text_field: str
    label_field: str
    max_classes: Annotated[int, Field(ge=2)]
    max_per_class: Count
    validation_fraction: Fraction
    test_fraction: Fraction
    max_length: Annotated[int, Field(ge=8)]
    batch_size: Count
    epochs: Count
    optimizer: OptimizerParams
    warmup_fraction: Share
    num_threads: Count | None

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError("`validation_fraction` + `test_fraction` leave nothing to train on")
        return self


class ExportParams(_Section):
    models: dict[str, str]
    opset: Annotated[int, Field(ge=14, le=20)]
    """20 is the highest that the exporter of torch 2.13 under optimum writes."""
    per_token: bool
    per_channel: bool
    reduce_range: bool
    quantize_embeddings: bool
    num_agreement_texts: Count
    max_parity_difference: Positive


class ReleaseParams(_Section):
    min_int8_agreement: Share
    max_perplexity_ratio: Positive
    min_accuracy_delta: Annotated[float, Field(ge=-1, le=1)]


class Params(_Section):
    """The whole of params.yaml: one section for each stage, and one for the release flow."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    preprocess: PreprocessParams
    tokenize: TokenizeParams
    pretrain: PretrainParams
    evaluate: EvaluateParams
    finetune: dict[str, FinetuneParams]
    export: ExportParams
    release: ReleaseParams

    @model_validator(mode="after")
    def _exported_models_exist(self) -> Self:
        known = {"encoder", *(f"finetuned/{task}" for task in self.finetune)}
        for name, folder in self.export.models.items():
            if folder not in known:
                raise ValueError(f"`export.models.{name}` is {folder!r}; models are: {', '.join(sorted(known))}")
        return self


def read_params(path: Path) -> Params:
    """Read and check `path`.

    Raises:
        ParamsError: naming the file, the key, what was given, what was expected, and what to do.
    """
    try:
        tree = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        return Params.model_validate(tree)
    except FileNotFoundError as error:
        raise ParamsError(
            f"there is no {path}",
            given=path.resolve(),
            expected="the project's params.yaml",
            do="run from the project's root folder",
        ) from error
    except MarkedYAMLError as error:
        raise ParamsError(
            f"{path} is not YAML",
            given=" ".join(str(error).split()),
            expected="`key: value` lines, indented with spaces",
            do="mend the line named above",
        ) from error
    except ValidationError as error:
        raise _first_fault(path, error) from error


def _first_fault(path: Path, error: ValidationError) -> ParamsError:
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    key = ".".join(str(part) for part in fault["loc"]) or "(whole file)"
    more = f" (1 of {len(faults)} faults)" if len(faults) > 1 else ""
    if fault["type"] == "extra_forbidden":
        known = _keys_beside(fault["loc"])
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        return ParamsError(
            f"{path}: unknown key `{key}`{more}",
            given=f"{fault['loc'][-1]}: {_short(fault['input'])}",
            expected=f"one of: {', '.join(known)}",
            do=f"rename it to `{near[0]}`" if near else "remove it, or correct its name",
        )
    return ParamsError(
        f"{path}: `{key}` cannot be used{more}",
        given="nothing" if fault["type"] == "missing" else _short(fault["input"]),
        expected=fault["msg"].removeprefix("Value error, "),
        do=f"set `{key}` in {path}",
    )


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """Names of the keys that may stand where `location` stands."""
    kind: Any = Params
    for part in location[:-1]:
        kind = get_args(kind)[1] if get_origin(kind) is dict else kind.model_fields[part].annotation
    return sorted(kind.model_fields)


def _short(value: object, limit: int = 160) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
