"""Claim: the probe is scikit-learn's logistic regression on the features, for classes and for labels."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss as reference_loss
from torch import nn

from clozeline.tasks.probe import Probe, best_probe, log_loss

DRAW = np.random.default_rng(0)
FEATURE_TF = (DRAW.normal(size=(200, 6)) * 3 + 5).astype(np.float32)
CENTRED_TF = FEATURE_TF - FEATURE_TF.mean(axis=0, dtype=np.float64)
fitted = partial(best_probe, FEATURE_TF, score=lambda probe: 0.0, num_classes=4, has_bias=True)
Classes = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def class_T(num_classes: int) -> Classes:
    return np.digitize(FEATURE_TF[:, 0] + DRAW.normal(size=len(FEATURE_TF)), np.linspace(3, 7, num_classes - 1))


def reference(right_T: Classes) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    scaled_TF = CENTRED_TF / CENTRED_TF.std()
    return LogisticRegression(C=0.01, max_iter=300).fit(scaled_TF, right_T).predict_proba(scaled_TF)


def test_classes_and_labels_get_the_probabilities_of_scikit_learn() -> None:
    for num_classes in (2, 4):
        right_T = class_T(num_classes)
        logits_TC = fitted(right_T, num_classes=num_classes).logits(FEATURE_TF)
        np.testing.assert_allclose(torch.from_numpy(logits_TC).softmax(dim=1), reference(right_T), atol=1e-4)
    is_true_TC = np.stack([class_T(2), class_T(2), np.zeros(200), np.ones(200)], axis=1).astype(np.float32)
    share_TC = torch.from_numpy(fitted(is_true_TC).logits(FEATURE_TF)).sigmoid().numpy()
    for column in (0, 1):
        np.testing.assert_allclose(share_TC[:, column], reference(is_true_TC[:, column])[:, 1], atol=1e-4)
    assert share_TC[:, 2].max() < 0.01
    assert share_TC[:, 3].min() > 0.99
    right_T = (DRAW.normal(size=200) > 1.5).astype(np.int64)
    plain, balanced = (fitted(right_T, is_balanced=given).logits(FEATURE_TF) for given in (False, True))
    assert (balanced[:, 1] - balanced[:, 0]).mean() > (plain[:, 1] - plain[:, 0]).mean() + 1, "rare ones are likelier"


def test_a_class_without_a_text_is_never_the_likeliest() -> None:
    for present in ([3], [1, 3], [0, 1, 4]):
        place_T = np.arange(len(FEATURE_TF)) % len(present)
        logits_TC = fitted(np.array(present)[place_T], num_classes=6).logits(FEATURE_TF)
        assert (logits_TC.shape[1], set(logits_TC.argmax(axis=1)) <= set(present)) == (6, True)
        known_TK = fitted(place_T, num_classes=len(present)).logits(FEATURE_TF)
        np.testing.assert_allclose(logits_TC[:, present], known_TK, atol=1e-6)


def strength(probe: Probe) -> float:
    return float(np.abs(probe.weight_CF).sum())


@pytest.mark.parametrize(("score", "choose"), [(strength, max), (lambda probe: 0.0, min)])
def test_the_best_probe_is_chosen_and_of_equal_ones_the_most_regularized(
    score: Callable[[Probe], float], choose: Callable[..., float]
) -> None:
    seen: list[Probe] = []
    chosen = fitted(class_T(3), score=lambda probe: seen.append(probe) or score(probe), num_classes=3)
    strengths = {strength(probe) for probe in seen}
    assert strength(chosen) == choose(strengths)
    assert len(strengths) == len(seen) > 1
    for has_bias in (True, False):
        output = nn.Linear(6, 3, bias=has_bias)
        probe = fitted(class_T(3), score=score, num_classes=3, has_bias=has_bias)
        probe.write_to(output)
        with torch.inference_mode():
            np.testing.assert_allclose(output(torch.from_numpy(FEATURE_TF)), probe.logits(FEATURE_TF), atol=1e-4)


def test_the_loss_is_that_of_scikit_learn_without_labels_that_no_training_text_has() -> None:
    right_T = class_T(3)
    logits_TC = fitted(right_T, num_classes=3).logits(FEATURE_TF)
    share_TC = torch.from_numpy(logits_TC).softmax(dim=1).numpy()
    assert log_loss(logits_TC, right_T) == pytest.approx(reference_loss(right_T, share_TC, labels=[0, 1, 2]), rel=1e-5)
    unseen_T = np.where(np.arange(len(right_T)) < 50, 3, right_T)
    assert log_loss(logits_TC, unseen_T) == pytest.approx(log_loss(logits_TC[50:], right_T[50:]), rel=1e-5)
    losses = [reference_loss(right_T == label, torch.from_numpy(logits_TC[:, label]).sigmoid()) for label in range(3)]
    assert log_loss(logits_TC, np.eye(4, dtype=np.float32)[right_T]) == pytest.approx(np.mean(losses), rel=1e-5)
