"""An encoder of your own, under our head.

Write a function in a module that Python finds from the project's folder, and name it in params.yaml:
`pretrain.model.family: "mypackage.mymodule:build"`. That line is all there is to register.

    def build(params: ModelParams, ids: TokenIds) -> nn.Module: ...

The module it returns

- has `hidden_size: int`, H;
- is called as `encoder(input_ids_BL, attention_mask=attention_mask_BL)`, integers, 1 where a token is real; the mask
  is None where every token is;
- returns an object with `last_hidden_state`, [B, L, H];
- has `get_input_embeddings() -> nn.Embedding` of [V, H], if `tie_word_embeddings` is on;
- initializes its own weights (the random state is set by the seed before) and looks both ways: the objective is `mlm`.

`params` is the section `pretrain.model`, to be read as you like (`sizes.shape_of` gives the numbers of a named size).
Add your file to the deps of `pretrain` and `evaluate` in dvc.yaml, so that a change of it runs them again.

It is trained, saved, loaded and evaluated by Clozeline. Stock transformers does not know it, so it is not fine-tuned
or exported to ONNX.

Shapes: B rows, L longest row, T targets, H hidden, V vocabulary.
"""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

from clozeline.encoder.families import TokenIds
from clozeline.encoder.model import Logits
from clozeline.encoder.positions import Positions
from clozeline.encoder.saving import telling_of_disk
from clozeline.errors import ArtifactError, ParamsError
from clozeline.params import ModelParams

OWN_ARCHITECTURE = "OwnEncoderWithHead"
OWN_MODEL_TYPE = "clozeline-encoder"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_TIED = "head.decoder.weight"


@dataclass(frozen=True)
class OwnEncoderConfig:
    """What the encoder was made from: all of config.json."""

    params: ModelParams
    ids: TokenIds

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
        facts = json.loads(path.read_text(encoding="utf-8"))
        return cls(ModelParams(**facts["params"]), TokenIds(**facts["ids"]))


class MaskedHead(nn.Module):
    """Dense, activation, norm, vocabulary: BERT's head (Devlin et al. 2018)."""

    def __init__(self, hidden_size: int, vocab_size: int, params: ModelParams) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACT2FN[params.activation]
        self.norm = nn.LayerNorm(hidden_size, eps=params.norm_epsilon)
        self.decoder = nn.Linear(hidden_size, vocab_size)
        for linear in (self.dense, self.decoder):
            nn.init.normal_(linear.weight, std=params.initializer_range)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden_TH: Tensor) -> Tensor:
        logits_TV: Tensor = self.decoder(self.norm(self.activation(self.dense(hidden_TH))))
        return logits_TV


class OwnEncoderWithHead(nn.Module):
    """An encoder of yours with a head that names hidden tokens.

    Raises:
        ParamsError: `build` is not there, or what it gives has not what it must have.
    """

    kind: Literal["mlm"] = "mlm"
    head_dropout = 0.0
    """Of the hidden states that the head is given, in training."""

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
        """The encoder, as transformers calls it."""
        encoder: nn.Module = self.encoder
        return encoder

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, positions: Positions | None = None
    ) -> Logits:
        """`positions`: what the head is asked for; None: every position."""
        hidden_PH: Tensor = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        if positions is not None:
            hidden_PH = positions.of(hidden_PH)
        if self.training and self.head_dropout:
            hidden_PH = functional.dropout(hidden_PH, self.head_dropout)
        return Logits(self.head(hidden_PH))

    def gradient_checkpointing_enable(self) -> None:
        """Raises:
        ParamsError: your encoder has no such method.
        """
        if not hasattr(self.encoder, "gradient_checkpointing_enable"):
            raise ParamsError(
                "params.yaml: `pretrain.gradient_checkpointing` is not known to an encoder of your own",
                given=f"{type(self.encoder).__name__} without a method `gradient_checkpointing_enable`",
                expected="false, or that method",
                do="set it to false, or write the method",
            )
        self.encoder.gradient_checkpointing_enable()

    def save(self, out: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write config.json and model.safetensors, a tied weight once; `weights` in place of those it has.

        Raises:
            OSError: the disk did not take it.
        """
        self.config.write(out / _CONFIG)
        whole = {name: weight.contiguous() for name, weight in (weights or self.state_dict()).items()}
        if self.config.params.tie_word_embeddings:
            whole.pop(_TIED, None)
        with telling_of_disk():
            save_file(whole, out / _WEIGHTS, metadata={"format": "pt"})

    def save_encoder(self, out: Path, weights: Mapping[str, Tensor] | None = None) -> NoReturn:
        """Raises:
        ParamsError: it is saved whole.
        """
        raise ParamsError(
            "an encoder of your own cannot be saved without its head",
            given=self.config.params.family,
            expected="a family of transformers",
            do="save the model whole; `.encoder` of what is loaded is yours",
        )


def load_own(folder: Path) -> OwnEncoderWithHead:
    """What `save` wrote of an encoder of your own; its module must still be there.

    Raises:
        ArtifactError: the weights are damaged, or are those of another state of your module.
        ParamsError: the module is gone.
    """
    config = OwnEncoderConfig.read(folder / _CONFIG)
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
            expected=f"every weight of what `{config.params.family}` builds, and no other",
            do="bring your module back to the state it was trained in, or train again: `dvc repro pretrain`",
        ) from error
    return model


def sources_of(model: object) -> list[Path]:
    """The files that define an encoder of your own: the module that `family` names, and those of the same package that
    its parts are classes of. Of a stock model none."""
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
            f"params.yaml: `pretrain.model.family` names an encoder of your own that cannot be found: {error}",
            given=name,
            expected="`package.module:build`, the module in the project's folder or installed",
            do="check the spelling, and run from the project's folder",
        ) from error


def _check(encoder: Any, params: ModelParams, ids: TokenIds) -> None:
    hidden_size = getattr(encoder, "hidden_size", None)
    if not (isinstance(encoder, nn.Module) and isinstance(hidden_size, int)):
        raise ParamsError(
            "an encoder of your own is not what it must be",
            given=f"`{params.family}` gives {type(encoder).__name__}",
            expected="a torch.nn.Module with `hidden_size`, an integer",
            do="see the docstring of clozeline.encoder.encoders",
        )
    if not params.tie_word_embeddings:
        return
    embedding_of: Callable[[], nn.Module | None] = getattr(encoder, "get_input_embeddings", lambda: None)
    embedding = embedding_of()
    shape = tuple(embedding.weight.shape) if isinstance(embedding, nn.Embedding) else None
    expected = (ids.vocab_size, hidden_size)
    if shape != expected:
        raise ParamsError(
            "an encoder of your own has no embedding that the head can be tied to",
            given="no `get_input_embeddings()`" if shape is None else f"one of {shape}",
            expected=f"an nn.Embedding of {expected}",
            do="give it that method, or set `pretrain.model.tie_word_embeddings: false`",
        )
