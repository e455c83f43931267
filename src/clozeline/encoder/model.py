"""A model on our layers: an encoder with a head, from random initial weights to the published layout that is saved.

Initial weights come from the global random state. Stock transformers reads what is saved; its own messages are
controlled here too.

Shapes: B rows, L tokens, H hidden; P any axes of positions.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers.utils import logging

from clozeline.encoder import families, layers
from clozeline.encoder.architecture import ChosenPositions, FirstPosition, Pooling, Positions
from clozeline.encoder.families.layout import HEADS, HeadKind, Layout, class_name_of
from clozeline.system.errors import ArtifactError

# Matrices that write to the residual stream.
_ADDED = ("attention.output", "mlp.output")

_BIAS = "head.output.bias"
# Standard deviation of new rows over that of trained rows; its square is the 1e-9 of transformers.
_NARROW = 10**-4.5


@contextmanager
def failed_writes_as_os_errors() -> Iterator[None]:
    """Turn safetensors' own error for a failed write into an OSError.

    Raises:
        OSError: the write failed.
    """
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code.group(1)), str(error)) from error


def write_model(config: Any, class_name: str, weights: Mapping[str, Tensor], out: Path) -> None:
    """Write config.json, which names `class_name`, and model.safetensors.

    Raises:
        OSError: the write failed.
    """
    config.architectures = [class_name]
    config.dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    config.save_pretrained(out)
    whole = {name: weight.detach().contiguous() for name, weight in weights.items()}
    with failed_writes_as_os_errors():
        save_file(whole, out / "model.safetensors", metadata={"format": "pt"})


def draw_encoder(encoder: layers.Encoder, only: Collection[str] | None = None) -> None:
    """Draw the weights of an encoder. `only`: names of the parameters to draw; None: all."""
    way = encoder.architecture.initialization
    for name, module in encoder.named_modules():
        std = way.out_std if name.endswith(_ADDED) else way.std
        _draw(module, name, std, way.cutoff, only)
    if way.zeroes_padding:
        _zero_padding(encoder, only)


def draw_head(head: layers.Head, only: Collection[str] | None = None) -> None:
    """Draw the weights of a head. `only`: names of the parameters to draw; None: all."""
    stds = {"dense": head.shape.dense_std, "output": head.shape.output_std}
    for name, module in head.named_modules():
        _draw(module, name, stds.get(name, 0.0), head.shape.cutoff, only)


@torch.no_grad()
def _draw(module: nn.Module, name: str, std: float, cutoff: float | None, only: Collection[str] | None) -> None:
    for leaf, parameter in module.named_parameters(prefix=name, recurse=False):
        if only is not None and leaf not in only:
            continue
        if leaf.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        elif cutoff is None:
            parameter.normal_(std=std)
        else:
            nn.init.trunc_normal_(parameter, std=std, a=-cutoff * std, b=cutoff * std)


@torch.no_grad()
def _zero_padding(encoder: layers.Encoder, only: Collection[str] | None) -> None:
    for name, module in encoder.named_modules():
        is_drawn = only is None or f"{name}.weight" in only
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and is_drawn:
            module.weight[module.padding_idx].zero_()


class Logits(NamedTuple):
    """Output of a head."""

    # [B, L, C], or [P, C] at requested positions; classifier: [B, C]; replaced-token detection: without C; question
    # answering: C is 2, start and end.
    logits: Tensor


class HeadedModel(nn.Module, ABC):
    """An encoder with a head. Initial weights come from the global random state."""

    config: Any
    kind: HeadKind
    encoder: Any
    head: Any
    head_dropout = 0.0  # dropout rate on the input of the head, in training

    @property
    def base_model(self) -> Any:
        """The encoder, under transformers' name for it."""
        return self.encoder

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def prefix(self) -> str:
        """Prefix of the encoder's published weights."""
        return "encoder"

    def of_encoder(self, published: Iterable[str]) -> list[str]:
        """Return those of the model's published names that belong to the encoder itself, without head and pooler."""
        return [name for name in published if name.startswith(f"{self.prefix}.")]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        positions: Positions | None = None,
    ) -> Logits:
        """Return logits. `positions`: as in `Encoder.forward`, ignored by a head that pools.

        A head that pools one token computes that token only.
        """
        pooling: Pooling | None = self.head.shape.pooling
        if pooling is not None:
            positions = _POOLED_AT[pooling](self, input_ids)
        hidden = self.encoder(input_ids, attention_mask, token_type_ids, positions).last_hidden_state
        if pooling is not None:
            hidden = layers.mean_over_tokens(hidden, attention_mask) if pooling == "mean" else hidden[:, 0]
        return Logits(self.says(hidden))

    def says(self, hidden_PH: Tensor) -> Tensor:
        """Return the logits of the encoder's hidden states: run the head alone."""
        if self.training and self.head_dropout:
            hidden_PH = functional.dropout(hidden_PH, self.head_dropout)
        logits_PC: Tensor = self.head(hidden_PH)
        return logits_PC.squeeze(-1) if HEADS[self.kind].is_single else logits_PC

    def save(self, out: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write config.json and model.safetensors in the form that stock transformers reads.

        `weights`: used instead of the model's own, under our names.

        Raises:
            OSError: the write failed.
        """
        self._write(out, self.kind, weights or self.state_dict())

    def save_encoder(self, out: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the encoder without its head, in the form that stock `AutoModel` reads."""
        self._write(out, "feature-extraction", weights or self.state_dict())

    def _kept(self, kind: HeadKind, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what a model of this kind writes of its own weights: shared ones once."""
        repeated = self._repeated()
        is_whole = kind == self.kind
        return {
            name: weight
            for name, weight in weights.items()
            if name not in repeated and (is_whole or name.startswith("encoder."))
        }

    def _repeated(self) -> set[str]:
        """Return the further names of shared weights, such as that of a tied head."""
        every = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        return every - {name for name, _ in self.named_parameters()}

    @abstractmethod
    def _write(self, out: Path, kind: HeadKind, weights: Mapping[str, Tensor]) -> None:
        """Write the model as one of this kind; of another kind than its own, the encoder alone."""


class EncoderModel(HeadedModel):
    """A model on our layers."""

    encoder: layers.Encoder
    head: layers.Head

    def __init__(self, config: Any, kind: HeadKind) -> None:
        """`config`: a transformers configuration of a family in LAYOUTS.

        Raises:
            ArtifactError: the family has no such head, or our layers do not support the configuration.
        """
        super().__init__()
        self.config, self.kind = config, kind
        if kind not in self.layout.heads:
            raise ArtifactError(
                f"{config.model_type} has no head for {kind}, only for {', '.join(self.layout.heads)}",
                do="choose another family, or another kind of task",
            )
        architecture = self.layout.architecture(config)
        self.encoder = layers.Encoder(architecture)
        draw_encoder(self.encoder)
        self.head = layers.Head(self.layout.heads[kind].shape(config), architecture.hidden_size)
        draw_head(self.head)
        self.tie()

    def tie(self) -> None:
        """Make the output matrix the token table, if the head is tied."""
        if self.head.shape.is_tied:
            assert self.head.output is not None
            self.head.output.weight = self.encoder.embeddings.tokens.weight

    @property
    def layout(self) -> Layout:
        return families.LAYOUTS[self.config.model_type]

    @property
    def prefix(self) -> str:
        return self.layout.prefix

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embeddings.tokens

    def set_input_embeddings(self, table: nn.Embedding) -> None:
        self.encoder.embeddings.tokens = table

    def resize_token_embeddings(self, vocab_size: int) -> None:
        """Resize the vocabulary.

        New rows are drawn around the mean of the others (Hewitt 2021), from the global random state.
        """
        tokens, output = self.encoder.embeddings.tokens, self.head.output
        tokens.weight = nn.Parameter(_resized(tokens.weight, vocab_size))
        tokens.num_embeddings = self.config.vocab_size = vocab_size
        if output is None or not HEADS[self.kind].predicts_tokens:
            return
        for name, parameter in list(output.named_parameters()):
            setattr(output, name, nn.Parameter(_resized(parameter, vocab_size)))
        output.out_features = vocab_size
        self.tie()

    def gradient_checkpointing_enable(self) -> None:
        self.encoder.recomputes = True

    def _write(self, out: Path, kind: HeadKind, weights: Mapping[str, Tensor]) -> None:
        own = self._kept(kind, weights)
        published = self.layout.published(own, self.config, kind)
        row = self.layout.heads[kind]
        named = {published[name]: weight for name, weight in own.items()}
        if _BIAS in own and "output.bias" in row.names and not self.head.shape.is_tied:
            # transformers 5 reads the bias of an untied output layer only under its second name.
            named[_second_name(published[_BIAS])] = own[_BIAS].clone()
        write_model(self.config, class_name_of(self.layout.config_class, kind), named, out)

    def load(self, weights: Mapping[str, Tensor]) -> list[str]:
        """Load weights by their published names. Parameters without a weight keep their values.

        Returns:
            Our names of the parameters without a weight.

        Raises:
            ValueError: a weight has the wrong shape.
        """
        parameters = dict(self.named_parameters())
        has_prefix = any(name.startswith(f"{self.layout.prefix}.") for name in weights)
        published = self.layout.published(parameters, self.config, self.kind, has_prefix=has_prefix)
        missing = []
        for name, parameter in parameters.items():
            is_second = name == _BIAS and not self.head.shape.is_tied
            weight = _found(weights, _second_name(published[name]) if is_second else published[name])
            weight = _found(weights, published[name]) if weight is None else weight
            if weight is None:
                missing.append(name)
                continue
            if weight.shape != parameter.shape:
                shapes = f"{tuple(weight.shape)}, not {tuple(parameter.shape)} as config.json says"
                raise ValueError(f"{published[name]} is {shapes}")
            with torch.no_grad():
                parameter.copy_(weight)
        return missing

    def of_encoder(self, published: Iterable[str]) -> list[str]:
        own = [name for name, _ in self.named_parameters() if name.startswith("encoder.")]
        names = set(self.layout.published(own, self.config, self.kind).values())
        return [name for name in published if name in names]

    @classmethod
    def loaded(cls, config: Any, kind: HeadKind, weights: Mapping[str, Tensor]) -> tuple["EncoderModel", list[str]]:
        """Load a float32 model. Missing weights are drawn from the global random state.

        Returns:
            The model, and the published names of the missing weights.

        Raises:
            ArtifactError: our layers do not support the configuration.
            ValueError: a weight has the wrong shape.
        """
        with torch.device("meta"):
            model = cls(config, kind)
        model.to_empty(device="cpu")
        model.tie()
        missing = model.load(weights)
        draw_encoder(model.encoder, _inside(missing, "encoder."))
        draw_head(model.head, _inside(missing, "head."))
        return model, sorted(model.layout.published(missing, config, kind).values())


def _inside(names: list[str], prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def _second_name(bias: str) -> str:
    """Return the second published name of a vocabulary bias, such as `cls.predictions.decoder.bias`."""
    return f"{bias.removesuffix('bias')}decoder.bias"


def _found(weights: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return a weight under any of its names; None if it is missing.

    Norms from TensorFlow call their weights gamma and beta; the bias of a vocabulary has a second name.
    """
    stem, _, leaf = name.rpartition(".")
    old = {"weight": "gamma", "bias": "beta"}[leaf]
    names = (name, f"{stem}.{old}", f"{stem}.decoder.{leaf}")
    return next((weights[it] for it in names if it in weights), None)


def _resized(rows_VX: Tensor, num_rows: int) -> Tensor:
    """Return `num_rows` rows. New rows stay close to the mean, so that predictions of old tokens hardly change."""
    kept_VX = rows_VX.detach()[:num_rows]
    added_NX = torch.randn(max(num_rows - len(kept_VX), 0), *rows_VX.shape[1:])
    mean_X, std_X = rows_VX.detach().mean(dim=0), rows_VX.detach().std(dim=0)
    return torch.cat((kept_VX, mean_X + _NARROW * std_X * added_NX))


def _last_real(model: HeadedModel, input_ids_BL: Tensor) -> ChosenPositions:
    """Return the last real token of each row, from which decoders classify."""
    place_L = torch.arange(input_ids_BL.shape[1], device=input_ids_BL.device)
    last_B = (place_L * (input_ids_BL != model.config.pad_token_id)).argmax(dim=1)
    return ChosenPositions(last_B[:, None], input_ids_BL.shape[1])


_POOLED_AT: Mapping[Pooling, Any] = {
    "first": lambda model, input_ids_BL: FirstPosition(),
    "last": _last_real,
    "mean": lambda model, input_ids_BL: None,
}


@contextmanager
def errors_only() -> Iterator[None]:
    """Silence transformers' warnings and progress bars.

    Some warnings report something intended (a fresh head), others concern transformers' own code. The bars are for
    work that takes no time.
    """
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()
