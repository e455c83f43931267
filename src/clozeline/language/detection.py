"""Replaced-token detection (Clark et al. 2020, "ELECTRA"): a generator replaces tokens, an encoder finds them.

Shapes: B rows, L longest row, T targets, V vocabulary.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from clozeline.encoder.checkpoints import Checkpoint, opened_whole
from clozeline.encoder.families.layout import LanguageHead
from clozeline.encoder.model import EncoderModel
from clozeline.system.errors import ArtifactError

# Folder of the generator inside that of the discriminator.
GENERATOR = "generator"
# Targets whose distributions are accumulated at a time, in fp64.
_AT_ONCE = 128


class ReplacedTokenPair(nn.Module):
    """A discriminator and its generator, which share one table of embeddings (section 3.2: tokens and positions).

    The discriminator is the encoder of interest: it stands for the pair wherever one encoder is expected.
    """

    def __init__(self, discriminator: EncoderModel, generator: EncoderModel) -> None:
        """`generator`: its embeddings are replaced by those of `discriminator`."""
        super().__init__()
        generator.encoder.embeddings = discriminator.encoder.embeddings
        generator.tie()
        self.discriminator = discriminator
        self.generator = generator

    @property
    def config(self) -> Any:
        return self.discriminator.config

    @property
    def base_model(self) -> Any:
        """The encoder, under transformers' name for it."""
        return self.discriminator.base_model

    def gradient_checkpointing_enable(self) -> None:
        for part in parts_of(self):
            part.gradient_checkpointing_enable()

    def save(self, out: Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write the discriminator to `out` and the generator to its subfolder GENERATOR; each loads on its own.

        `weights`: used instead of the pair's own; shared weights appear once.
        """
        (out / GENERATOR).mkdir()
        named = weights or self.state_dict()
        of_discriminator, of_generator = (_of_part(named, part) for part in ("discriminator.", "generator."))
        shared = {name: it for name, it in of_discriminator.items() if name.startswith("encoder.embeddings.")}
        self.discriminator.save(out, of_discriminator)
        self.generator.save(out / GENERATOR, shared | of_generator)

    def save_encoder(self, out: Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write the discriminator's encoder; `weights` as in `save`."""
        self.discriminator.save_encoder(out, _of_part(weights, "discriminator.") if weights else None)


def parts_of(model: Any) -> tuple[Any, ...]:
    """Return the encoders with heads that make up `model`: itself, or discriminator and generator."""
    return (model.discriminator, model.generator) if isinstance(model, ReplacedTokenPair) else (model,)


def narrowed(config: PretrainedConfig, fraction: float) -> PretrainedConfig:
    """Return a generator's config: as deep as the discriminator `config`, `fraction` as wide (section 3.2, table 6)."""
    narrow = copy.deepcopy(config)
    narrow.num_attention_heads = max(round(config.num_attention_heads * fraction), 1)
    of_head = max(round(config.hidden_size * fraction / narrow.num_attention_heads), 1)
    narrow.hidden_size = of_head * narrow.num_attention_heads
    narrow.intermediate_size = max(round(config.intermediate_size * fraction), 1)
    return narrow


def fresh_generator(discriminator: EncoderModel, fraction: float) -> EncoderModel:
    """Return a generator with random weights from the global random state."""
    return EncoderModel(narrowed(discriminator.config, fraction), "mlm")


def load_pair(folder: Path, head: LanguageHead) -> ReplacedTokenPair:
    """Load what `ReplacedTokenPair.save` wrote.

    Raises:
        ArtifactError: the generator is missing or belongs to another training run, or a weight is missing.
    """
    inner = folder / GENERATOR
    if not (inner / "config.json").is_file():
        raise ArtifactError(
            f"{folder} holds a discriminator without its generator: no {inner / 'config.json'}",
            do="run `dvc repro pretrain`, which writes both",
        )
    discriminator, generator = _opened(folder, head), _opened(inner, "mlm")
    tables = [model.get_input_embeddings().weight for model in (discriminator, generator)]
    if not torch.equal(*tables):
        raise ArtifactError(
            f"{inner} holds the generator of another discriminator: their embedding tables differ",
            do="keep the two folders together as `pretrain` wrote them: `dvc repro pretrain`",
        )
    return ReplacedTokenPair(discriminator, generator)


def _opened(folder: Path, kind: LanguageHead) -> EncoderModel:
    model = opened_whole(Checkpoint(str(folder)), kind)
    assert isinstance(model, EncoderModel)
    return model


def detection_logits(model: ReplacedTokenPair, input_ids_BL: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
    """Return `logits_BL` of the discriminator: positive where it takes the token for a replaced one."""
    logits_BL: Tensor = model.discriminator(input_ids_BL, attention_mask_BL).logits
    return logits_BL


@torch.no_grad()
def draw(logits_TV: Tensor, uniform_T: Tensor, is_fixed_V: Tensor) -> Tensor:
    """Return `guess_T`: a token for each target, drawn from the generator's distribution by inverse transform sampling.

    A token depends only on its distribution and its number in `uniform_T`, not on a random state or on other targets. A
    different rounding of the distribution changes the token only if the number falls between two tokens, once in
    millions. The choice passes no gradient (section 2: "we do not back-propagate the discriminator loss through the
    generator").

    Args:
        uniform_T: numbers in [0, 1).
        is_fixed_V: tokens that are never drawn, because special tokens occur in no text.
    """
    guesses = []
    for part_SV, uniform_S in zip(logits_TV.split(_AT_ONCE), uniform_T.split(_AT_ONCE), strict=True):
        share_SV = part_SV.double().masked_fill(is_fixed_V, -torch.inf).softmax(dim=1).cumsum(dim=1)
        sought_S1 = uniform_S[:, None] * share_SV[:, -1:]
        # The first token whose sum exceeds it: never one of share 0, whose sum equals that of the token before.
        guesses.append(torch.searchsorted(share_SV, sought_S1, right=True)[:, 0])
    return torch.cat(guesses).clamp(max=logits_TV.shape[1] - 1)


def _of_part(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
