"""The two losses of replaced-token detection, logged separately during training."""

import logging
from dataclasses import dataclass, replace
from typing import Self

from clozeline.language_modelling.detection import ReplacedTokenPair
from clozeline.pretraining.judging import Judge
from clozeline.pretraining.losses import TargetLoss
from clozeline.training.callbacks import Callback, PlateauWarning
from clozeline.training.curves import Look

_LOG = logging.getLogger(__name__)
_PATIENCE_LOOKS = 3


@dataclass(frozen=True)
class ShownParts(Callback):
    """Logs both losses at each validation pass, and warns if the generator stays on the unigram plateau.

    Their sum does not show either: a better generator makes the discriminator's task harder.
    """

    model: ReplacedTokenPair
    generator: Judge
    discriminator_weight: float
    plateau: PlateauWarning

    @classmethod
    def of(
        cls, model: ReplacedTokenPair, judge: Judge, discriminator_weight: float, unigram_loss: float, first_step: int
    ) -> Self:
        """`judge`: measures the sum of both losses. `unigram_loss`, `first_step`: as in `PlateauWarning`."""
        plateau = PlateauWarning(unigram_loss, first_step, patience_points=_PATIENCE_LOOKS)
        return cls(model, replace(judge, loss=TargetLoss(model)), discriminator_weight, plateau)

    def on_look(self, look: Look) -> None:
        was_training = self.model.training
        self.model.eval()
        generator = self.generator.measure().loss
        self.model.train(was_training)
        discriminator = (look.loss - generator) / self.discriminator_weight
        _LOG.info("  generator %.3f nats per target, discriminator %.4f nats per token", generator, discriminator)
        self.plateau.hear(look.step, generator)
