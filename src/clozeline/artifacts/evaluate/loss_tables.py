"""plots/evaluate/*.csv: the encoder's loss by groups of tokens, one row for each group with targets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CalibrationRow:
    """Targets by confidence (DeGroot & Fienberg 1983); a calibrated model's accuracy equals its confidence."""

    confidence_above: float
    confidence_to: float
    targets: int
    mean_confidence: float
    accuracy: float


@dataclass(frozen=True)
class FrequencyRow:
    """Targets by the frequency of their token in the training text."""

    times_in_training: str
    kinds_of_token: int
    targets: int
    loss_nats_per_token: float
    top1: float
    top5: float


@dataclass(frozen=True)
class PlaceRow:
    """Targets by their position in the row, counted from [CLS]."""

    place_from: int
    place_to: int
    targets: int
    loss_nats_per_token: float
    top1: float
    top5: float


@dataclass(frozen=True)
class WordClassRow:
    """Targets by kind: a whole word, the first piece of a longer word, or a later piece."""

    word_class: str
    targets: int
    loss_nats_per_token: float
    top1: float
    top5: float
