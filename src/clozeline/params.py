"""The one reader of params.yaml: types and bounds of every knob; the values are in the file alone."""

import difflib
from collections.abc import Callable
from functools import reduce
from operator import ge, le
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.reader import ReaderError

from clozeline.errors import ParamsError

Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
FAMILY_NAMES = ("modernbert", "bert")  # the rows of clozeline/model/families.py, which takes seconds to import
_Rule = tuple[str, Callable[..., bool], str]
"""Keys of a section (dotted, spaces between), what must hold for their values, and what a message then expects."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)
    rules: ClassVar[tuple[_Rule, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for keys, holds, expected in self.rules:
            given = {key: reduce(getattr, key.split("."), self) for key in keys.split()}
            if not holds(*given.values()):
                raise ValueError(expected, given)
        return self


def _set_for(kind: str) -> Callable[..., bool]:
    return lambda given, name: (given == kind) == (name is not None)


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
    rules = (("kind dataset", _set_for("hub"), "set `dataset` for kind `hub`, and leave it null for any other"),)


class PreprocessParams(_Section):
    source: SourceParams
    min_characters: Count
    max_characters: Count
    near_duplicate_similarity: Fraction
    same_side_similarity: Fraction
    validation_fraction: Fraction
    holdout_fraction: Annotated[float, Field(ge=0, lt=1)]
    rules = (
        ("min_characters max_characters", le, "`min_characters` is not above `max_characters`: else no text passes"),
        ("same_side_similarity near_duplicate_similarity", le, "`same_side_similarity` is not above the other"),
        ("validation_fraction holdout_fraction", lambda a, b: a + b < 1, "a sum below 1: the rest is trained on"),
    )


class TokenizeParams(_Section):
    algorithm: Literal["wordpiece", "bpe", "unigram", "existing"]
    existing: str | None
    vocab_size: Annotated[int, Field(ge=64, le=1_000_000)]
    min_frequency: Count
    lowercase: bool
    shard_tokens: Count
    rules = (("algorithm existing", _set_for("existing"), "set `existing` for that algorithm, null for any other"),)


class ModelParams(_Section):
    family: str
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    max_position_embeddings: Count
    dropout: Annotated[float, Field(ge=0, lt=1)]
    rules = (
        ("hidden_size num_attention_heads", lambda h, n: h % n == 0, "a multiple of `num_attention_heads`"),
        (
            "family hidden_size num_attention_heads",
            lambda family, h, n: family == "bert" or h // n % 2 == 0,
            "an even `hidden_size` / `num_attention_heads`: rotary positions turn pairs of dimensions",
        ),
    )


class MaskingParams(_Section):
    mask_rate: Fraction
    """Share of maskable tokens that become targets, 0-1 (Devlin et al. 2018, section 3.1: 0.15)."""
    mask_share: Share
    random_share: Share
    keep_share: Share
    rules = (("mask_share random_share keep_share", lambda *s: abs(sum(s) - 1) <= 1e-9, "their sum must be 1"),)


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
    rules = (
        ("model.family", FAMILY_NAMES.__contains__, f"one of: {', '.join(FAMILY_NAMES)}"),
        ("steps tokens", lambda a, b: (a is None) != (b is None), "a budget: set one and leave the other null"),
        (
            "steps schedule.warmup_steps",
            lambda steps, warmup_steps: steps is None or warmup_steps <= steps,
            "a budget that outlasts its warm-up: lower `schedule.warmup_steps` too, or raise `steps`",
        ),
        ("max_length model.max_position_embeddings", le, "`max_length` is not above what the model reads"),
        ("batch_tokens max_length", ge, "`batch_tokens` is not below `max_length`: a row must fit"),
    )


class EvaluateParams(_Section):
    num_folds: Annotated[int, Field(ge=2)]
    max_length: Annotated[int, Field(ge=8)]
    batch_tokens: Count
    num_examples: Annotated[int, Field(ge=0)]
    rules = (("batch_tokens max_length", ge, "`batch_tokens` is not below `max_length`: a row must fit"),)


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
    rules = (("validation_fraction test_fraction", lambda a, b: a + b < 1, "a sum below 1: the rest is trained on"),)


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
    def _sections_agree(self) -> Self:
        bound, most = "pretrain.model.max_position_embeddings", self.pretrain.model.max_position_embeddings
        lengths = {f"finetune.{task}.max_length": section.max_length for task, section in self.finetune.items()}
        for key, length in {"evaluate.max_length": self.evaluate.max_length, **lengths}.items():
            if length > most:
                raise ValueError(f"`{key}` is not above `{bound}`", {key: length, bound: most})
        known = {"encoder", *(f"finetuned/{task}" for task in self.finetune)}
        for name, folder in self.export.models.items():
            if folder not in known:
                raise ValueError(f"one of: {', '.join(sorted(known))}", {f"export.models.{name}": folder})
        return self


def read_params(path: Path) -> Params:
    """Read and check `path`.

    Raises:
        ParamsError: naming the file, the key, what was given, what was expected, and what to do.
    """
    if not path.is_file():
        raise ParamsError(
            f"there is no {path}",
            given=path.resolve(),
            expected="the project's params.yaml",
            do="run from the project's root folder",
        )
    content = path.read_bytes()
    try:
        tree = YAML(typ="safe").load(content.decode("utf-8"))
        if tree is not None:
            return Params.model_validate(tree)
    except ValidationError as error:
        raise _first_fault(path, error) from error
    except (YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that there is not
        raise ParamsError(
            f"{path} is not YAML",
            given=_place_and_reason(path, content, error),
            expected="UTF-8 text: `key: value` lines, indented with spaces, each key once",
            do="mend the line named above",
        ) from error
    raise ParamsError(f"{path} is empty", given="nothing", expected="sections", do=f"run `git checkout -- {path}`")


def _place_and_reason(path: Path, content: bytes, error: Exception) -> str:
    reason = " ".join(str(error).replace('"<unicode string>"', str(path)).split())
    if isinstance(error, UnicodeDecodeError):
        start = error.start
    elif isinstance(error, ReaderError):
        start = content.index(chr(error.character).encode("utf-8"))
    else:
        return reason.partition(" To suppress this check")[0]
    line = content.count(b"\n", 0, start) + 1
    return f"{path}, line {line}: {reason}"


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
    expected, given = fault["msg"], {key: fault["input"]}
    if fault["type"] == "value_error":  # raised above, with the values of some keys of the section
        expected, values = fault["ctx"]["error"].args
        given = {".".join([*map(str, fault["loc"]), inner]): value for inner, value in values.items()}
    names = [f"`{name}`" for name in given]
    return ParamsError(
        f"{path}: {' and '.join(names)} cannot be used{' together' if len(names) > 1 else ''}{more}",
        given="nothing" if fault["type"] == "missing" else ", ".join(f"{k}: {_short(v)}" for k, v in given.items()),
        expected=expected,
        do=f"set {' or '.join(names)} in {path}",
    )


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """Names of the keys that may stand where `location` stands."""
    kind: Any = Params
    for part in location[:-1]:
        kind = get_args(kind)[1] if get_origin(kind) is dict else kind.model_fields[part].annotation
    return sorted(kind.model_fields)


def _short(value: object, limit: int = 160) -> str:
    text = "{…}" if isinstance(value, dict) else repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
