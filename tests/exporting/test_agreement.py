"""Agreement counts what INT8 and fp32 have in common, on masks that are a function of the text."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.exporting.agreement import agreement, hidden_places
from clozeline.inference.encoder import Encoder
from clozeline.inference.manifest import Precision
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import load

SPECIALS = (0, 1, 2, 3, 4)
TEXTS = ["the encoder reads a sentence and fills in the word", "small models answer quickly", "a " * 200]


def opened(package: Path, precision: Precision = "int8") -> OpenModel:
    return load(package, precision=precision)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=80))
def test_about_one_in_seven_is_hidden_never_a_special_token_and_always_the_same(ids: list[int]) -> None:
    ids_L = np.array(ids, dtype=np.int64)
    places = hidden_places(ids_L, SPECIALS)
    num_ordinary = sum(token_id not in SPECIALS for token_id in ids)
    assert len(places) == np.ceil(0.15 * num_ordinary)
    assert not np.isin(ids_L[places], SPECIALS).any()
    assert (places == hidden_places(ids_L.copy(), SPECIALS)).all()


def test_hidden_places_differ_between_texts_and_are_spread() -> None:
    places = [hidden_places(np.arange(60) + shift, ()) for shift in range(100)]
    counts = np.bincount(np.concatenate(places), minlength=60)
    assert counts.min() > 0
    assert len({tuple(place) for place in places}) == 100


@pytest.mark.parametrize("package", ["encoder_package", "classifier_package"])
def test_a_graph_agrees_with_itself(package: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(package)
    assert agreement(opened(folder), opened(folder), TEXTS).top1_agreement == 1


def test_masks_are_counted_over_what_the_model_reads(encoder_package: Path) -> None:
    model = opened(encoder_package)
    lengths = [len(text) - 2 for text in model.tokenize(TEXTS, truncate=True)]
    assert lengths[2] == 62
    counted = agreement(model, opened(encoder_package, "fp32"), TEXTS).num_items
    assert counted == sum(int(np.ceil(0.15 * length)) for length in lengths)


def test_the_true_token_is_the_one_that_was_hidden(encoder_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that always says token 5 is right wherever token 5 was hidden."""
    model = opened(encoder_package)
    assert isinstance(model, Encoder)
    texts = model.tokenize(TEXTS, truncate=True)
    hidden = np.concatenate([text.ids_L[hidden_places(text.ids_L, SPECIALS)] for text in texts])
    favourite = int(hidden[0])

    def always(self: Encoder, masked: list) -> object:
        for position, text in enumerate(masked):
            logits_MV = np.zeros((int((text.ids_L == 4).sum()), 90), dtype=np.float32)
            logits_MV[:, favourite] = 1
            yield position, logits_MV

    monkeypatch.setattr(Encoder, "logits_at_masks", always)
    found = agreement(model, model, TEXTS)
    assert found.fp32_top1 == pytest.approx((hidden == favourite).mean())
    assert found.top1_agreement == 1


def test_another_model_agrees_less(encoder_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fp32, int8 = opened(encoder_package, "fp32"), opened(encoder_package)
    assert isinstance(int8, Encoder)
    monkeypatch.setattr(
        int8, "logits_at_masks", lambda masked: ((p, -logits) for p, logits in Encoder.logits_at_masks(int8, masked))
    )
    assert agreement(fp32, int8, TEXTS).top1_agreement == 0
