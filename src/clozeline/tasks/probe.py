"""Linear probe: logistic regression on the features that the head computes from the frozen encoder.

Training starts from it, because a random output layer first distorts what the encoder knows (LP-FT, Kumar et al. 2022).

Shapes: T texts or words, F features, C classes, K classes that occur.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
# Logit of a label that every training text has. A label that no text has gets the negative.
_CERTAIN_LOGIT = 10.0
# Texts or words that the probe is fitted on; more add time rather than accuracy.
_MOST_FITTED = 20_000


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
    num_classes: int,
    has_bias: bool,
    is_balanced: bool = False,
) -> Probe:
    """Return the probe with the highest score; of equal ones, the most regularized.

    Args:
        targets_T: the class of each text, or with a second axis C 1 for each label of the text.
        score: score on the validation split, such as `-log_loss`.
        num_classes: number of classes; those without a text are never the likeliest.
    """
    mean_F = feature_TF.mean(axis=0, dtype=np.float64) if has_bias else np.zeros(feature_TF.shape[1])
    scale = float((feature_TF - mean_F).std()) or 1.0
    scaled_TF = (feature_TF - mean_F) / scale
    fit = partial(_fit_classes, num_classes) if targets_T.ndim == 1 else _fit_labels
    fitted = []
    for strength in _INVERSE_REGULARIZATIONS:
        weight_CF, bias_C = fit(scaled_TF, targets_T, _regression(strength, is_balanced, has_bias))
        weight_CF = weight_CF / scale
        fitted.append(Probe(weight_CF, bias_C - weight_CF @ mean_F))
    return max(fitted, key=score)


def fitted_output(
    output: nn.Linear,
    train: tuple[Features, npt.NDArray[Any]],
    validation: tuple[Features, npt.NDArray[Any]],
    *,
    is_balanced: bool = False,
) -> Probe:
    """Fit the output layer of a head on features and targets, and return its weights.

    The regularization with the lowest loss on the validation split is chosen: among few texts, it is less a matter of
    chance than their accuracy.
    """
    probe = best_probe(
        *train,
        lambda probe: -log_loss(probe.logits(validation[0]), validation[1]),
        num_classes=output.out_features,
        has_bias=output.bias is not None,
        is_balanced=is_balanced,
    )
    probe.write_to(output)
    return probe


def places_to_fit(num_rows: int) -> npt.NDArray[np.int64]:
    """Return the places of the rows that the probe is fitted on: all, or an even choice of a large number."""
    return np.linspace(0, num_rows - 1, min(num_rows, _MOST_FITTED)).astype(np.int64)


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


def _regression(strength: float, is_balanced: bool, has_bias: bool) -> Any:
    from sklearn.linear_model import LogisticRegression  # takes two seconds to import

    return LogisticRegression(
        C=strength, max_iter=_MOST_STEPS, class_weight="balanced" if is_balanced else None, fit_intercept=has_bias
    )


def _fitted(model: Any, scaled_TF: Scaled, class_T: npt.NDArray[Any]) -> tuple[Any, Any]:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Further steps change no answer that matters: the strength is chosen on the validation split.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(scaled_TF, class_T)
    return model.coef_, np.broadcast_to(model.intercept_, len(model.coef_))


def _fit_classes(num_classes: int, scaled_TF: Scaled, class_T: npt.NDArray[Any], model: Any) -> tuple[Any, Any]:
    present_K = np.unique(class_T)
    if len(present_K) == 1:
        weight_KF, bias_K = np.zeros((1, scaled_TF.shape[1])), np.zeros(1)
    else:
        weight_KF, bias_K = _fitted(model, scaled_TF, class_T)
        if len(weight_KF) == 1:  # two classes: half of the logit for each
            weight_KF, bias_K = np.concatenate([-weight_KF, weight_KF]) / 2, np.concatenate([-bias_K, bias_K]) / 2
    weight_CF = np.zeros((num_classes, scaled_TF.shape[1]))
    bias_C = np.full(num_classes, bias_K.min() - _CERTAIN_LOGIT)
    weight_CF[present_K], bias_C[present_K] = weight_KF, bias_K
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
