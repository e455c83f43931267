"""plots/evaluate/*.csv: the encoder's loss by groups of tokens, a row for each group that has targets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CalibrationRow:
    """A reliability table (DeGroot and Fienberg 1983): where confidence is honest, it is equal to accuracy."""

    confidence_above: float
    confidence_to: float
    targets: int
    mean_confidence: float
    accuracy: float


@dataclass(frozen=True)
class FrequencyRow:
    """Tokens by how often they are in the training text."""

    times_in_training: str
    kinds_of_token: int
    targets: int
    loss_nats_per_token: float
    top1: float
    top5: float


@dataclass(frozen=True)
class PlaceRow:
    """Tokens by their place in the row, counted from [CLS]."""

    place_from: int
    place_to: int
    targets: int
    loss_nats_per_token: float
    top1: float
    top5: float


@dataclass(frozen=True)
class WordClassRow:
    """Whole words, first pieces of longer ones, and later pieces."""

    word_class: str
    targets: int
    loss_nats_per_token: float
    top1: float
    top5: float
