"""Linear probe: logistic regression on the features that the head computes from the frozen encoder.

Training starts from it, because a random output layer first distorts what the encoder knows (LP-FT, Kumar et al. 2022).

Shapes: T texts, F features, C classes.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

Features = npt.NDArray[np.float32]
Logits = npt.NDArray[np.float32]
Scaled = npt.NDArray[np.float64]
NAME = "logistic regression on the frozen encoder"
_INVERSE_REGULARIZATIONS = (0.01, 0.1, 1.0, 10.0)
_MOST_STEPS = 100
_CERTAIN_LOGIT = 10.0
"""Logit of a label that all training texts have; of one that none has, its negative."""


@dataclass(frozen=True)
class Probe:
    """Weights of an output layer."""

    weight_CF: npt.NDArray[np.float64]
    bias_C: npt.NDArray[np.float64]

    def logits(self, feature_TF: Features) -> Logits:
        logits_TC: Logits = (feature_TF @ self.weight_CF.T + self.bias_C).astype(np.float32)
        return logits_TC

    @torch.no_grad()
    def write_to(self, output: nn.Linear) -> None:
        output.weight.copy_(torch.from_numpy(self.weight_CF))
        if output.bias is not None:
            output.bias.copy_(torch.from_numpy(self.bias_C))


def best_probe(
    feature_TF: Features,
    targets_T: npt.NDArray[Any],
    score: Callable[[Probe], float],
    *,
    is_balanced: bool,
    has_bias: bool,
) -> Probe:
    """Return the probe with the highest score; of equal ones, the most regularized.

    Args:
        targets_T: the class of each text, or with a second axis C 1 for each label of the text.
        score: score on the validation split, such as `-log_loss`.
    """
    mean_F = feature_TF.mean(axis=0, dtype=np.float64) if has_bias else np.zeros(feature_TF.shape[1])
    scale = float((feature_TF - mean_F).std()) or 1.0
    scaled_TF = (feature_TF - mean_F) / scale
    fit = _fit_classes if targets_T.ndim == 1 else _fit_labels
    fitted = []
    for strength in _INVERSE_REGULARIZATIONS:
        weight_CF, bias_C = fit(scaled_TF, targets_T, _regression(strength, is_balanced, has_bias))
        weight_CF = weight_CF / scale
        fitted.append(Probe(weight_CF, bias_C - weight_CF @ mean_F))
    return max(fitted, key=score)


def log_loss(logits_TC: Logits, targets_T: npt.NDArray[Any]) -> float:
    """Return the loss in nats per text; labels that no training text has are left out.

    Args:
        targets_T: as for `best_probe`, but perhaps with further classes after the C of the logits.
    """
    logits, targets = torch.from_numpy(logits_TC), torch.from_numpy(targets_T)
    num_classes = logits.shape[1]
    if targets.ndim == 1:
        known = targets < num_classes
        return float(functional.cross_entropy(logits[known], targets[known]))
    return float(functional.binary_cross_entropy_with_logits(logits, targets[:, :num_classes]))


def _regression(inverse_regularization: float, is_balanced: bool, has_bias: bool) -> Any:
    from sklearn.linear_model import LogisticRegression  # takes two seconds to import

    return LogisticRegression(
        C=inverse_regularization,
        max_iter=_MOST_STEPS,
        class_weight="balanced" if is_balanced else None,
        fit_intercept=has_bias,
    )


def _fitted(model: Any, scaled_TF: Scaled, class_T: npt.NDArray[Any]) -> tuple[Any, Any]:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Further steps change no answer that matters: the strength is chosen on the validation split.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(scaled_TF, class_T)
    return model.coef_, np.broadcast_to(model.intercept_, len(model.coef_))


def _fit_classes(scaled_TF: Scaled, class_T: npt.NDArray[Any], model: Any) -> tuple[Any, Any]:
    weight_CF, bias_C = _fitted(model, scaled_TF, class_T)
    if len(weight_CF) == 1:  # two classes: half of the logit for each
        return np.concatenate([-weight_CF, weight_CF]) / 2, np.concatenate([-bias_C, bias_C]) / 2
    return weight_CF, bias_C


def _fit_labels(scaled_TF: Scaled, is_true_TC: npt.NDArray[Any], model: Any) -> tuple[Any, Any]:
    """Fit one regression per label."""
    weights, biases = [], []
    for is_true_T in is_true_TC.T:
        if is_true_T.min() == is_true_T.max():
            weights.append(np.zeros(scaled_TF.shape[1]))
            biases.append(_CERTAIN_LOGIT if is_true_T[0] else -_CERTAIN_LOGIT)
            continue
        weight_1F, bias_1 = _fitted(model, scaled_TF, is_true_T)
        weights.append(weight_1F[0])
        biases.append(float(bias_1[0]))
    return np.stack(weights), np.array(biases)
