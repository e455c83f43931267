"""Your own encoder under heads of ours: imported by the name in params.yaml, built, and tried before it is trained.

Write a function in a module that Python can import from the project's folder, and name it in params.yaml:
`pretrain.model.family: "mypackage.mymodule:build"`. Nothing else has to be registered.

    def build(params: ModelParams, ids: TokenIds) -> nn.Module: ...

The module it returns

- has `hidden_size: int`, H;
- is called as `encoder(input_ids_BL, attention_mask=attention_mask_BL)` with integers; the mask is 1 at real tokens, or
  None if all tokens are real;
- returns the hidden states [B, L, H], or an object that has them as `last_hidden_state`;
- has `get_input_embeddings() -> nn.Embedding` of [V, H], if `tie_word_embeddings` is on;
- initializes its own weights (the random state is seeded before) and attends to both sides: the objective is `mlm`;
- can be traced by `torch.export` for any B and L, if it is to be exported.

`params` is the section `pretrain.model`; use it as you like (`architecture.shape_of` gives the numbers of a named
size).

A saved model is a config.json with the arguments of `build`, and the weights. Only the params decide which code opens
it. Stock transformers does not know it.

Shapes: B rows, L longest row, H hidden, V vocabulary; P any axes of positions.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig

from clozeline.encoder.architecture import HeadShape, Positions, shape_of
from clozeline.encoder.families.layout import HeadKind, TaskHead, TokenIds, class_name_of
from clozeline.encoder.layers import Head, Hidden
from clozeline.encoder.model import HeadedModel, draw_head, write_model
from clozeline.params.model import ModelParams, is_own
from clozeline.system.errors import ArtifactError, ClozelineError, ParamsError

# Length of the rows of the trial in tokens, unless the encoder reads fewer.
_TRIED_TOKENS = 8
# Largest difference that padding may make, relative to the largest hidden state.
_MOST_OF_PADDING = 1e-4
_CONTRACT = "read the contract: docs/pretraining.md, under “Your own encoder”"

OWN_MODEL_TYPE = "clozeline-encoder"

_KINDS: tuple[HeadKind, ...] = ("mlm", *get_args(TaskHead))


def built(params: ModelParams, ids: TokenIds) -> nn.Module:
    """Return the encoder that the function `params.family` builds, after a trial on two short rows.

    Raises:
        ParamsError: the function is missing or fails, or what it returns lacks what heads need, fails in the trial,
            returns another shape, or reads padding.
    """
    build = _imported(params.family)
    encoder: nn.Module = _tried(params.family, "cannot be built", lambda: build(params, ids))
    _check_parts(encoder, params, ids)
    with torch.no_grad():
        _check_answers(encoder, params, ids)
    return encoder


def hidden_of(output: Any) -> Tensor:
    """Return `hidden_BLH` of what your encoder returned: a tensor, or an object with `last_hidden_state`."""
    hidden_BLH: Tensor = output if isinstance(output, Tensor) else output.last_hidden_state
    return hidden_BLH


def sources_of_family(family: str) -> list[Path]:
    """Return the files of the top-level module or package that `family` names, without importing it; empty for a
    family of ours.
    """
    found = find_spec(family.partition(":")[0].partition(".")[0]) if is_own(family) else None
    if found is None:
        return []
    if folders := found.submodule_search_locations:
        return sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    return [Path(found.origin)] if found.has_location and found.origin is not None else []


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except Exception as error:  # an import runs code of yours, which can raise anything
        raise ParamsError(
            f"`family: {name}` names an encoder of your own that cannot be imported: {_said(error)}",
            do="write `package.module:build`, with the module installed or in the project's folder, and run there",
        ) from error
    return found


def _tried(family: str, what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ClozelineError:
        raise
    except Exception as error:  # code of yours can raise anything
        raise ParamsError(
            f"your own encoder (`family: {family}`) {what}: {_said(error)}", do=f"correct your code; {_CONTRACT}"
        ) from error


def _check_parts(encoder: Any, params: ModelParams, ids: TokenIds) -> None:
    hidden_size = getattr(encoder, "hidden_size", None)
    if not (isinstance(encoder, nn.Module) and isinstance(hidden_size, int)):
        raise ParamsError(
            f"`{params.family}` gives {type(encoder).__name__} with `hidden_size` {hidden_size}, not a torch.nn.Module"
            " with an integer",
            do=_CONTRACT,
        )
    if not params.tie_word_embeddings:
        return
    embedding_of: Callable[[], nn.Module | None] = getattr(encoder, "get_input_embeddings", lambda: None)
    embedding = embedding_of()
    shape = tuple(embedding.weight.shape) if isinstance(embedding, nn.Embedding) else None
    expected = (ids.vocab_size, hidden_size)
    if shape != expected:
        raise ParamsError(
            f"the head is tied to an nn.Embedding of {expected}, and your encoder has "
            + (f"one of {shape}" if shape else "no `get_input_embeddings()`"),
            do="add the method, or set `tie_word_embeddings: false`",
        )


def _check_answers(encoder: Any, params: ModelParams, ids: TokenIds) -> None:
    """Compare a padded row of a batch with the same row alone."""
    length = min(_TRIED_TOKENS, params.max_position_embeddings)
    num_real = length - length // 2
    input_ids_BL = torch.arange(length).remainder(ids.vocab_size).expand(2, -1).clone()
    attention_mask_BL = torch.ones_like(input_ids_BL)
    input_ids_BL[1, num_real:], attention_mask_BL[1, num_real:] = ids.pad_id, 0
    was_training = encoder.training
    encoder.eval()

    def answer(rows: Tensor, mask: Tensor | None) -> Any:
        return _tried(params.family, "fails on short rows", lambda: hidden_of(encoder(rows, attention_mask=mask)))

    batch, alone = answer(input_ids_BL, attention_mask_BL), answer(input_ids_BL[1:, :num_real], None)
    encoder.train(was_training)
    expected = (2, length, encoder.hidden_size)
    shape = tuple(getattr(batch, "shape", ()))
    if not isinstance(batch, Tensor) or shape != expected:
        raise ParamsError(
            f"your encoder gives {shape or type(batch).__name__} for 2 rows of {length} tokens, not {expected}",
            do=_CONTRACT,
        )
    if batch.is_meta:  # shapes without numbers, as in `clozeline plan`
        return
    difference = (batch[1, :num_real] - alone[0]).abs().max()
    if not difference <= _MOST_OF_PADDING * alone.abs().max():
        raise ParamsError(
            f"your own encoder reads padding or is not finite: a padded row gets other states, by {difference:.2g}",
            do="use `attention_mask` in `forward`: a row would get other answers in a batch than alone",
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


class OwnConfig(PretrainedConfig):  # type: ignore[misc]  # transformers loads its classes lazily, without types
    """Arguments of the function that builds your encoder, and the facts of it that tasks and export read."""

    model_type = OWN_MODEL_TYPE

    def __init__(
        self,
        params: Mapping[str, Any] | None = None,
        ids: Mapping[str, int] | None = None,
        hidden_size: int = 0,
        **more: Any,
    ) -> None:
        """Every argument has a default, because transformers compares a configuration with an empty one.

        `hidden_size` is that of the built encoder.
        """
        super().__init__(**more)
        self.params, self.ids, self.hidden_size = dict(params or {}), dict(ids or {}), hidden_size
        if params and ids:
            own = self.model_params
            self.vocab_size, self.pad_token_id = self.token_ids.vocab_size, self.token_ids.pad_id
            self.max_position_embeddings = own.max_position_embeddings
            self.num_attention_heads = shape_of(own, gated=False).num_attention_heads

    @classmethod
    def of(cls, params: ModelParams, ids: TokenIds) -> Self:
        return cls(params.model_dump(), asdict(ids))

    @property
    def model_params(self) -> ModelParams:
        return ModelParams(**self.params)

    @property
    def token_ids(self) -> TokenIds:
        return TokenIds(**self.ids)


def read_config(name: str, facts: Mapping[str, Any]) -> OwnConfig:
    """Return the configuration with the facts of the config.json in the folder `name`.

    Raises:
        ArtifactError: they are not the arguments of a function that builds an encoder.
    """
    try:
        if not (facts.get("params") and facts.get("ids")):
            raise ValueError("no `params`, or no `ids`")
        # AutoTokenizer opens the config.json beside a tokenizer, and warns of a class that it does not know.
        AutoConfig.register(OWN_MODEL_TYPE, OwnConfig, exist_ok=True)
        config: OwnConfig = OwnConfig.from_dict(dict(facts))
        return config
    except (TypeError, ValueError) as error:  # pydantic's for an unknown knob is a ValueError
        raise ArtifactError(
            f"config.json of {name} does not say how your own encoder is built: {str(error).partition(chr(10))[0]}",
            do="train again: `dvc repro pretrain`",
        ) from error


def opened_config(name: str, facts: Mapping[str, Any], family: str | None) -> OwnConfig:
    """Return the configuration in the folder `name`, whose code may run.

    Args:
        family: value of `pretrain.model.family` in the params. A config.json can name any module, and importing a
            module runs it, so only the module that the params name is imported.

    Raises:
        ArtifactError: config.json names another module than `family`, or is damaged.
    """
    config = read_config(name, facts)
    named = config.model_params.family
    if family is None or not is_own(family) or named != family:
        raise ArtifactError(
            f"{name} holds a model with the code `{named}`, but the params name `family: {family or 'none'}`",
            do="name it as `family`, but only if that code is yours: no folder decides which code runs",
        )
    return config


class OwnEncoder(nn.Module):
    """Your module, called as our encoder is."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        positions: Positions | None = None,
    ) -> Hidden:
        """Return the hidden states at `positions`; None: at all. Your encoder computes all, and gets no token types."""
        hidden_BLH = hidden_of(self.own(input_ids, attention_mask=attention_mask))
        return Hidden(hidden_BLH if positions is None else positions.of(hidden_BLH))


class OwnModel(HeadedModel):
    """Your own encoder with a head."""

    config: OwnConfig
    encoder: OwnEncoder
    head: Head

    def __init__(self, config: OwnConfig, kind: HeadKind) -> None:
        """Build the encoder by the code that the configuration names: check first that the params name it too.

        Raises:
            ArtifactError: an encoder of your own has no such head.
            ParamsError: `build` is missing or fails, or the encoder breaks the contract.
        """
        super().__init__()
        if kind not in _KINDS:
            raise ArtifactError(
                f"an encoder of your own has no head for {kind}, only for {', '.join(_KINDS)}",
                do="choose another objective or kind of task",
            )
        self.config, self.kind = config, kind
        own: Any = built(config.model_params, config.token_ids)
        config.hidden_size = own.hidden_size
        self.encoder = OwnEncoder(own)
        self.head = Head(_shape_of_head(config, kind), own.hidden_size)
        draw_head(self.head)
        if self.head.shape.is_tied:
            assert self.head.output is not None
            self.head.output.weight = own.get_input_embeddings().weight

    @property
    def layers(self) -> nn.ModuleList | None:
        """The repeated layers, lowest first: the longest `ModuleList`; None: there is none."""
        lists = [inner for inner in self.encoder.modules() if isinstance(inner, nn.ModuleList)]
        return max(lists, key=len, default=None)

    def get_input_embeddings(self) -> nn.Module | None:
        """Return None: a table of yours may be read elsewhere than by a call of it, so it is never exchanged."""
        return None

    def set_input_embeddings(self, table: nn.Module) -> None:
        """Raises:
        TypeError: always, because `get_input_embeddings` gives no table to exchange.
        """
        raise TypeError(f"{type(self.encoder.own).__name__} keeps its own table, not {type(table).__name__}")

    def gradient_checkpointing_enable(self) -> None:
        """Turn on gradient checkpointing in your encoder.

        Raises:
            ParamsError: your encoder has no such method.
        """
        own: Any = self.encoder.own
        if not hasattr(own, "gradient_checkpointing_enable"):
            raise ParamsError(
                f"`gradient_checkpointing`: {type(own).__name__} has no method `gradient_checkpointing_enable`",
                do="set it to false, or add the method",
            )
        own.gradient_checkpointing_enable()

    def _write(self, out: Path, kind: HeadKind, weights: Mapping[str, Tensor]) -> None:
        write_model(self.config, class_name_of(OwnConfig, kind), self._kept(kind, weights), out)

    @classmethod
    def loaded(cls, config: OwnConfig, kind: HeadKind, weights: Mapping[str, Tensor]) -> tuple[Self, list[str]]:
        """Load weights, those of the head only if a model of this kind was saved. Missing ones are drawn at random.

        Returns:
            The model, and the names of the missing weights.

        Raises:
            ArtifactError: the weights belong to another state of your module.
            ParamsError: as in `__init__`.
        """
        saved = next(iter(config.architectures or []), None)
        model = cls(config, kind)
        if saved != class_name_of(OwnConfig, kind):
            weights = {name: it for name, it in weights.items() if not name.startswith("head.")}
        try:
            report = model.load_state_dict(weights, strict=False)
            if report.unexpected_keys:
                raise RuntimeError(f"no place for {', '.join(report.unexpected_keys)}")
        except RuntimeError as error:  # torch's for a wrong shape, too
            raise ArtifactError(
                f"the weights are not those of `{config.model_params.family}`, which config.json names: {error}",
                do="restore your module as it was in training, or train again: `dvc repro pretrain`",
            ) from error
        return model, sorted(set(report.missing_keys) - model._repeated())


def fresh_own(params: ModelParams, ids: TokenIds) -> OwnModel:
    """Return a masked language model with random weights from the global random state; raises as `OwnModel`."""
    return OwnModel(OwnConfig.of(params, ids), "mlm")


def sources_of(model: object) -> list[Path]:
    """Return the files that define your own encoder: the module that its family names, and those of the same package
    that define its parts; empty for other models.
    """
    if not isinstance(model, OwnModel):
        return []
    named = model.config.model_params.family.partition(":")[0]
    package = named.partition(".")[0]
    modules = {named, *(kind.__module__ for part in model.encoder.own.modules() for kind in type(part).__mro__)}
    own = (sys.modules[name] for name in modules if name.partition(".")[0] == package)
    return sorted(Path(file) for module in own if (file := module.__file__) is not None)


def _shape_of_head(config: OwnConfig, kind: HeadKind) -> HeadShape:
    params = config.model_params
    if kind == "mlm":  # BERT's head (Devlin et al. 2018)
        return HeadShape(
            num_outputs=config.vocab_size,
            dense_size=config.hidden_size,
            activation=params.activation,
            norm_epsilon=params.norm_epsilon,
            is_tied=params.tie_word_embeddings,
            dense_std=params.initializer_range,
            output_std=params.initializer_range,
        )
    if kind == "feature-extraction":
        return HeadShape(num_outputs=0)
    return HeadShape(
        num_outputs=config.num_labels,
        dropout_before=params.dropout,
        pooling="mean" if kind == "text-classification" else None,
        output_std=params.initializer_range,
    )
