"""Your own encoder under our head.

Write a function in a module that Python can import from the project's folder, and name it in params.yaml:
`pretrain.model.family: "mypackage.mymodule:build"`. Nothing else has to be registered.

    def build(params: ModelParams, ids: TokenIds) -> nn.Module: ...

The module it returns

- has `hidden_size: int`, H;
- is called as `encoder(input_ids_BL, attention_mask=attention_mask_BL)` with integers; the mask is 1 at real tokens, or
  None if all tokens are real;
- returns an object with `last_hidden_state`, [B, L, H];
- has `get_input_embeddings() -> nn.Embedding` of [V, H], if `tie_word_embeddings` is on;
- initializes its own weights (the random state is seeded before) and attends to both sides: the objective is `mlm`.

`params` is the section `pretrain.model`; use it as you like (`sizes.shape_of` gives the numbers of a named size).
Add your file to the deps of `pretrain` and `evaluate` in dvc.yaml, so that a change of it reruns them.

Clozeline trains, saves, loads and evaluates it. Stock transformers does not know it, so it can be neither fine-tuned
nor exported to ONNX.

Shapes: B rows, L longest row, T targets, H hidden, V vocabulary.
"""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from clozeline.encoder.activations import activation_of
from clozeline.encoder.families import TokenIds
from clozeline.encoder.model import Logits
from clozeline.encoder.positions import Positions
from clozeline.encoder.saving import failed_writes_as_os_errors
from clozeline.errors import ArtifactError, ParamsError
from clozeline.params import ModelParams
from clozeline.params.model import is_own

OWN_ARCHITECTURE = "OwnEncoderWithHead"
OWN_MODEL_TYPE = "clozeline-encoder"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_TIED = "head.decoder.weight"


@dataclass(frozen=True)
class OwnEncoderConfig:
    """Content of config.json: what the encoder was built from."""

    params: ModelParams
    ids: TokenIds
    model_type: ClassVar[str] = OWN_MODEL_TYPE

    @property
    def vocab_size(self) -> int:
        return self.ids.vocab_size

    @property
    def pad_token_id(self) -> int:
        return self.ids.pad_id

    @property
    def max_position_embeddings(self) -> int:
        return self.params.max_position_embeddings

    def write(self, path: Path) -> None:
        facts = {
            "architectures": [OWN_ARCHITECTURE],
            "model_type": OWN_MODEL_TYPE,
            "params": self.params.model_dump(),
            "ids": asdict(self.ids),
        }
        path.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.of(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """Return the configuration with the facts of a config.json."""
        return cls(ModelParams(**facts["params"]), TokenIds(**facts["ids"]))


class MaskedHead(nn.Module):
    """Dense, activation, norm, vocabulary: BERT's head (Devlin et al. 2018)."""

    def __init__(self, hidden_size: int, vocab_size: int, params: ModelParams) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = activation_of(params.activation)
        self.norm = nn.LayerNorm(hidden_size, eps=params.norm_epsilon)
        self.decoder = nn.Linear(hidden_size, vocab_size)
        for linear in (self.dense, self.decoder):
            nn.init.normal_(linear.weight, std=params.initializer_range)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden_TH: Tensor) -> Tensor:
        logits_TV: Tensor = self.decoder(self.norm(self.activation(self.dense(hidden_TH))))
        return logits_TV


class OwnEncoderWithHead(nn.Module):
    """Your own encoder with a head that predicts hidden tokens.

    Raises:
        ParamsError: `build` is missing, or what it returns lacks a required attribute.
    """

    kind: Literal["mlm"] = "mlm"
    head_dropout = 0.0
    """Dropout rate on the input of the head, in training."""

    def __init__(self, params: ModelParams, ids: TokenIds) -> None:
        super().__init__()
        self.config = OwnEncoderConfig(params, ids)
        self.encoder: Any = _imported(params.family)(params, ids)
        _check(self.encoder, params, ids)
        self.head = MaskedHead(self.encoder.hidden_size, ids.vocab_size, params)
        if params.tie_word_embeddings:
            self.head.decoder.weight = self.encoder.get_input_embeddings().weight

    @property
    def base_model(self) -> nn.Module:
        """The encoder, under transformers' name for it."""
        encoder: nn.Module = self.encoder
        return encoder

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, positions: Positions | None = None
    ) -> Logits:
        """Return logits. `positions`: positions that the head computes; None: all."""
        hidden_PH: Tensor = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        if positions is not None:
            hidden_PH = positions.of(hidden_PH)
        if self.training and self.head_dropout:
            hidden_PH = functional.dropout(hidden_PH, self.head_dropout)
        return Logits(self.head(hidden_PH))

    def gradient_checkpointing_enable(self) -> None:
        """Turn on gradient checkpointing in your encoder.

        Raises:
            ParamsError: your encoder has no such method.
        """
        if not hasattr(self.encoder, "gradient_checkpointing_enable"):
            raise ParamsError(
                "your own encoder does not support `gradient_checkpointing`",
                given=f"{type(self.encoder).__name__} without a method `gradient_checkpointing_enable`",
                expected="this method, or `gradient_checkpointing: false`",
                do="set it to false, or add the method",
            )
        self.encoder.gradient_checkpointing_enable()

    def save(self, out: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write config.json and model.safetensors, a tied weight once. `weights`: used instead of the model's own.

        Raises:
            OSError: the write failed.
        """
        self.config.write(out / _CONFIG)
        whole = {name: weight.contiguous() for name, weight in (weights or self.state_dict()).items()}
        if self.config.params.tie_word_embeddings:
            whole.pop(_TIED, None)
        with failed_writes_as_os_errors():
            save_file(whole, out / _WEIGHTS, metadata={"format": "pt"})

    def save_encoder(self, out: Path, weights: Mapping[str, Tensor] | None = None) -> NoReturn:
        """Refuse: your own encoder is saved whole.

        Raises:
            ParamsError: always.
        """
        raise ParamsError(
            "your own encoder cannot be saved without its head",
            given=self.config.params.family,
            expected="a family of transformers",
            do="save the whole model; `.encoder` of the loaded model is yours",
        )


def load_own(folder: Path, family: str | None) -> OwnEncoderWithHead:
    """Load what `save` wrote; the module of your encoder must still exist.

    Args:
        family: value of `pretrain.model.family` in the params. A config.json can name any module, and importing a
            module runs it, so only the module that the params name is imported.

    Raises:
        ArtifactError: config.json names another module than `family`; or the weights are damaged, or belong to another
            state of your module.
        ParamsError: the module is missing.
    """
    config = OwnEncoderConfig.read(folder / _CONFIG)
    if family is None or not is_own(family) or config.params.family != family:
        raise ArtifactError(
            f"{folder} holds a model whose code the params do not name",
            given=f"`{config.params.family}` in config.json, `family: {family or 'none'}` in the params",
            expected="the same in both, because a folder must not decide which code runs",
            do="name it as `family`, but only if that code is yours",
        )
    with torch.random.fork_rng(devices=[]):
        model = OwnEncoderWithHead(config.params, config.ids)
    try:
        weights = load_file(folder / _WEIGHTS)
        if config.params.tie_word_embeddings:
            # A tied weight is loaded under its other name.
            weights[_TIED] = weights[_name_of_tied(model)]
        model.load_state_dict(weights)
    except (SafetensorError, RuntimeError, KeyError, FileNotFoundError) as error:
        raise ArtifactError(
            f"{folder / _WEIGHTS} does not hold the weights of the encoder that config.json names",
            given=str(error),
            expected=f"exactly the weights of what `{config.params.family}` builds",
            do="restore your module as it was in training, or train again: `dvc repro pretrain`",
        ) from error
    return model


def sources_of(model: object) -> list[Path]:
    """Return the files that define your own encoder: the module that `family` names, and the modules of the same
    package that define its parts. Empty for other models.
    """
    if not isinstance(model, OwnEncoderWithHead):
        return []
    named = model.config.params.family.partition(":")[0]
    package = named.partition(".")[0]
    modules = {named, *(kind.__module__ for part in model.encoder.modules() for kind in type(part).__mro__)}
    own = (sys.modules[name] for name in modules if name.partition(".")[0] == package)
    return sorted(Path(file) for module in own if (file := module.__file__) is not None)


def _name_of_tied(model: OwnEncoderWithHead) -> str:
    tied = model.head.decoder.weight
    return next(name for name, weight in model.named_parameters(remove_duplicate=False) if weight is tied)


def _imported(name: str) -> Any:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ParamsError(
            f"`family` names an encoder of your own that cannot be imported: {error}",
            given=name,
            expected="`package.module:build`, with the module in the project's folder or installed",
            do="check the spelling, and run from the project's folder",
        ) from error


def _check(encoder: Any, params: ModelParams, ids: TokenIds) -> None:
    hidden_size = getattr(encoder, "hidden_size", None)
    if not (isinstance(encoder, nn.Module) and isinstance(hidden_size, int)):
        raise ParamsError(
            "your own encoder lacks what the head needs",
            given=f"`{params.family}` gives {type(encoder).__name__}",
            expected="a torch.nn.Module with `hidden_size`, an integer",
            do="see the docstring of clozeline.language_modelling.encoders",
        )
    if not params.tie_word_embeddings:
        return
    embedding_of: Callable[[], nn.Module | None] = getattr(encoder, "get_input_embeddings", lambda: None)
    embedding = embedding_of()
    shape = tuple(embedding.weight.shape) if isinstance(embedding, nn.Embedding) else None
    expected = (ids.vocab_size, hidden_size)
    if shape != expected:
        raise ParamsError(
            "your own encoder has no embedding to tie the head to",
            given="no `get_input_embeddings()`" if shape is None else f"an embedding of {shape}",
            expected=f"an nn.Embedding of {expected}",
            do="add the method, or set `tie_word_embeddings: false`",
        )
