"""Your own encoder under heads of ours.

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

`params` is the section `pretrain.model`; use it as you like (`sizes.shape_of` gives the numbers of a named size).

A saved model is a config.json with the arguments of `build`, and the weights. Only the params decide which code opens
it. Stock transformers does not know it.

Shapes: B rows, L longest row, H hidden, V vocabulary; P any axes of positions.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozeline.encoder.architecture import HeadShape
from clozeline.encoder.families import HeadKind, TokenIds
from clozeline.encoder.heads import Head, mean_over_tokens
from clozeline.encoder.initialization import draw_head
from clozeline.encoder.layers import Hidden
from clozeline.encoder.model import Logits
from clozeline.encoder.own_code import built, hidden_of, sources_of_code
from clozeline.encoder.own_config import OwnConfig
from clozeline.encoder.positions import Positions
from clozeline.encoder.saving import write_model
from clozeline.errors import ArtifactError, ParamsError
from clozeline.params import ModelParams

_CLASSES: Mapping[HeadKind, str] = MappingProxyType(
    {
        "mlm": "OwnForMaskedLM",
        "feature-extraction": "OwnModel",
        "text-classification": "OwnForSequenceClassification",
        "token-classification": "OwnForTokenClassification",
        "question-answering": "OwnForQuestionAnswering",
    }
)
"""Name of each kind of model in config.json, with the ending that transformers gives to its classes."""


class OwnEncoder(nn.Module):
    """Your module, called as our encoder is."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Hidden:
        """Return the hidden states. Your encoder gets no token types: `token_type_ids` is ignored."""
        return Hidden(hidden_of(self.own(input_ids, attention_mask=attention_mask)))


class OwnModel(nn.Module):
    """Your own encoder with a head. Initial weights come from the global random state."""

    head_dropout = 0.0
    """Dropout rate on the input of the head, in training."""

    def __init__(self, config: OwnConfig, kind: HeadKind) -> None:
        """Build the encoder by the code that the configuration names: check first that the params name it too.

        Raises:
            ArtifactError: an encoder of your own has no such head.
            ParamsError: `build` is missing or fails, or the encoder breaks the contract.
        """
        super().__init__()
        if kind not in _CLASSES:
            raise ArtifactError(
                f"an encoder of your own has no head for {kind}, only for {', '.join(_CLASSES)}",
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
    def base_model(self) -> OwnEncoder:
        """The encoder, under transformers' name for it."""
        return self.encoder

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def prefix(self) -> str:
        """Prefix of the encoder's weights."""
        return "encoder"

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

    def of_encoder(self, published: Iterable[str]) -> list[str]:
        """See `Model`."""
        return [name for name in published if name.startswith(f"{self.prefix}.")]

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

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        positions: Positions | None = None,
    ) -> Logits:
        """Return logits. `positions`: positions that the head computes; None: all. A head that pools ignores them."""
        hidden_PH = self.encoder(input_ids, attention_mask).last_hidden_state
        if self.head.shape.pooling is not None:
            hidden_PH = mean_over_tokens(hidden_PH, attention_mask)
        elif positions is not None:
            hidden_PH = positions.of(hidden_PH)
        return Logits(self.says(hidden_PH))

    def says(self, hidden_PH: Tensor) -> Tensor:
        """Return the logits of the encoder's hidden states: run the head alone."""
        if self.training and self.head_dropout:
            hidden_PH = functional.dropout(hidden_PH, self.head_dropout)
        logits_PC: Tensor = self.head(hidden_PH)
        return logits_PC

    def save(self, out: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write config.json and model.safetensors, a shared weight once. `weights`: used instead of the model's own.

        Raises:
            OSError: the write failed.
        """
        self._write(out, self.kind, weights)

    def save_encoder(self, out: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the encoder without its head."""
        self._write(out, "feature-extraction", weights)

    def _write(self, out: Path, kind: HeadKind, weights: Mapping[str, Tensor] | None) -> None:
        repeated = self._repeated()
        kept = {name: it for name, it in (weights or self.state_dict()).items() if name not in repeated}
        if kind == "feature-extraction":
            kept = {name: kept[name] for name in self.of_encoder(kept)}
        write_model(self.config, _CLASSES[kind], kept, out)

    def _repeated(self) -> set[str]:
        """Return the further names of shared weights, such as that of a tied head."""
        every = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        return every - {name for name, _ in self.named_parameters()}

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
        if saved != _CLASSES[kind]:
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
    """Return the files that define your own encoder; empty for other models."""
    if not isinstance(model, OwnModel):
        return []
    return sources_of_code(model.config.model_params.family, model.encoder.own)


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
