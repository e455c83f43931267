"""Replaced-token detection (Clark et al. 2020, "ELECTRA"): a generator replaces tokens, an encoder finds them.

Shapes: B rows, L longest row, T targets, V vocabulary.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from clozeline.encoder.families import FAMILIES, FORMS
from clozeline.encoder.families.form import Form
from clozeline.encoder.saving import save_weights
from clozeline.errors import ArtifactError

GENERATOR = "generator"
"""Folder of the generator, in that of the discriminator."""
_AT_ONCE = 128
"""Targets whose distributions are summed up at once, in fp64."""


class ReplacedTokenPair(nn.Module):
    """A discriminator and its generator, which have one table of embeddings (section 3.2: tokens and positions).

    The discriminator is the encoder that is wanted: it stands for the pair where one encoder is asked for.
    """

    def __init__(self, discriminator: Any, generator: Any) -> None:
        """`generator`: its embeddings are given up for those of `discriminator`."""
        super().__init__()
        generator.base_model.embeddings = discriminator.base_model.embeddings
        generator.tie_weights()
        self.discriminator = discriminator
        self.generator = generator

    @property
    def config(self) -> PretrainedConfig:
        return self.discriminator.config

    @property
    def base_model(self) -> nn.Module:
        """The encoder, as transformers calls it."""
        encoder: nn.Module = self.discriminator.base_model
        return encoder

    def gradient_checkpointing_enable(self, *arguments: Any) -> None:
        for part in parts_of(self):
            part.gradient_checkpointing_enable(*arguments)

    def save(self, out: Path, weights: dict[str, Tensor] | None = None) -> None:
        """Fill `out` with the discriminator, and the folder GENERATOR in it with the generator; each loads alone.

        `weights`: in place of the pair's own; a shared one is there once.
        """
        (out / GENERATOR).mkdir()
        if weights is None:
            save_weights(self.discriminator, out)
            save_weights(self.generator, out / GENERATOR)
            return
        of_discriminator, of_generator = (_of_part(weights, part) for part in ("discriminator.", "generator."))
        shared = f"{self.discriminator.base_model_prefix}.embeddings."
        both = {name: weight for name, weight in of_discriminator.items() if name.startswith(shared)}
        save_weights(self.discriminator, out, of_discriminator)
        save_weights(self.generator, out / GENERATOR, both | of_generator)


def parts_of(model: Any) -> tuple[Any, ...]:
    """The encoders with a head that `model` is made of: itself, or discriminator and generator."""
    return (model.discriminator, model.generator) if isinstance(model, ReplacedTokenPair) else (model,)


def narrowed(config: PretrainedConfig, fraction: float) -> PretrainedConfig:
    """Of a generator for the discriminator `config`: as deep, `fraction` as wide (section 3.2 and table 6)."""
    narrow = copy.deepcopy(config)
    narrow.num_attention_heads = max(round(config.num_attention_heads * fraction), 1)
    of_head = max(round(config.hidden_size * fraction / narrow.num_attention_heads), 1)
    narrow.hidden_size = of_head * narrow.num_attention_heads
    narrow.intermediate_size = max(round(config.intermediate_size * fraction), 1)
    return narrow


def fresh_generator(discriminator: PreTrainedModel, form: Form, fraction: float) -> PreTrainedModel:
    """A generator with random weights, from the global random state."""
    return form.model_class._from_config(narrowed(discriminator.config, fraction), attn_implementation=form.attention)


def load_pair(folder: Path, form: Form) -> ReplacedTokenPair:
    """What `ReplacedTokenPair.save` wrote; `form` is that of the discriminator.

    Raises:
        ArtifactError: there is no generator, or it is of another training.
    """
    inner = folder / GENERATOR
    if not (inner / "config.json").is_file():
        raise ArtifactError(
            f"{folder} holds a discriminator without its generator",
            given=f"no {inner / 'config.json'}",
            expected="both, as `pretrain` writes them",
            do="run `dvc repro pretrain`",
        )
    discriminator = _stock(folder, form)
    of_generator = next(family.forms["mlm"] for family in FAMILIES.values() if family.forms.get("rtd") is form)
    generator = _stock(inner, of_generator)
    tables = [model.get_input_embeddings().weight for model in (discriminator, generator)]
    if not torch.equal(*tables):
        raise ArtifactError(
            f"{inner} holds the generator of another discriminator",
            given="two tables of embeddings that differ",
            expected="the one table that both were trained with",
            do="keep the two folders together as `pretrain` wrote them: `dvc repro pretrain`",
        )
    return ReplacedTokenPair(discriminator, generator)


def _stock(folder: Path, form: Form) -> PreTrainedModel:
    model: PreTrainedModel = form.model_class.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, attn_implementation=form.attention
    )
    return model


def detection_logits(model: ReplacedTokenPair, input_ids_BL: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
    """`logits_BL` of the discriminator: above 0 where it takes the token for a replaced one."""
    _, form = FORMS[type(model.discriminator).__name__]
    hidden_BLH = model.base_model(input_ids_BL, attention_mask=attention_mask_BL).last_hidden_state
    return form.project(model.discriminator, hidden_BLH)


@torch.no_grad()
def draw(logits_TV: Tensor, uniform_T: Tensor, is_fixed_V: Tensor) -> Tensor:
    """`guess_T`: a token for each target from the generator's distribution, by inverting its cumulative sum.

    A token is a function of its distribution and of its target's number alone: of no random state, and not of the
    targets beside it. Two roundings of one distribution may differ where the number falls between two tokens, once in
    millions. No gradient goes back through the choice (section 2: "we do not back-propagate the discriminator loss
    through the generator").

    Args:
        uniform_T: in [0, 1).
        is_fixed_V: never drawn: special tokens are in no text.
    """
    guesses = []
    for part_SV, uniform_S in zip(logits_TV.split(_AT_ONCE), uniform_T.split(_AT_ONCE), strict=True):
        share_SV = part_SV.double().masked_fill(is_fixed_V, -torch.inf).softmax(dim=1).cumsum(dim=1)
        sought_S1 = uniform_S[:, None] * share_SV[:, -1:]
        # The first token whose sum is above: never one of share 0, whose sum is that of the token before.
        guesses.append(torch.searchsorted(share_SV, sought_S1, right=True)[:, 0])
    return torch.cat(guesses).clamp(max=logits_TV.shape[1] - 1)


def _of_part(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
