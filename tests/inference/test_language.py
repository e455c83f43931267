"""Answers of an exported encoder equal the trained model's, in any order and from any thread."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from clozeline.inference.language import TOP, TOP_IDS, TOP_SCORES, OpenEncoder
from clozeline.inference.package import open_graph
from clozeline.inference.tokenization import MaskCutOffError, NoMaskError, TargetError, TextTooLongError
from clozeline.records.package import FILES
from tests.make.opened import load_as

TEXTS = [
    "the [MASK] reads",
    "small models answer [MASK] on ordinary [MASK]",
    "a [MASK] cuts text into pieces that the model has seen before, and [MASK] a tensor",
]
LONG = "the " * 100


@pytest.fixture(scope="module")
def encoder(encoder_package: Path) -> OpenEncoder:
    return load_as(OpenEncoder, encoder_package, precision="fp32")


@pytest.fixture(scope="module")
def int8(encoder_package: Path) -> OpenEncoder:
    return load_as(OpenEncoder, encoder_package)


@torch.inference_mode()
def test_candidates_and_embeddings_equal_those_of_the_trained_model(encoder: OpenEncoder, small_encoder: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(small_encoder).eval()
    tokenizer = AutoTokenizer.from_pretrained(small_encoder)
    for text, masks, embedding_H in zip(TEXTS, encoder.fill(TEXTS, top_k=5), encoder.embed(TEXTS), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        best = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].softmax(dim=-1).topk(5)
        assert [[filled.token for filled in mask] for mask in masks] == best.indices.tolist()
        np.testing.assert_allclose([[filled.score for filled in mask] for mask in masks], best.values, atol=1e-5)
        mean_H = model.base_model(**inputs).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(embedding_H, mean_H / mean_H.norm(), atol=1e-5)


def test_each_mask_is_filled_separately_in_the_original_text_and_targets_share_the_probability(
    encoder: OpenEncoder,
) -> None:
    """A word piece joins the word before it."""
    (masks,) = encoder.fill(["Small MODELS answer [MASK] on ordinary [MASK]"], targets=["##er", "the"])
    joined = [next(filled.sequence for filled in mask if filled.token_str == "##er") for mask in masks]
    assert joined == ["Small MODELS answerer on ordinary [MASK]", "Small MODELS answer [MASK] on ordinaryer"]
    first, second = masks[0]
    assert 1 > first.score >= second.score == pytest.approx(1 - first.score)


def test_the_top_words_of_the_graph_equal_those_of_its_logits(encoder: OpenEncoder, encoder_package: Path) -> None:
    """Requests with targets or for more tokens than the graph returns are answered from logits, as older packages."""
    vocab_size = encoder.manifest.vocab_size
    named, counted = (encoder.filling(TEXTS, top_k=top_k) for top_k in (vocab_size, vocab_size + 1))
    assert (named.output, counted.output) == (TOP, "logits")
    assert encoder.filling(TEXTS, targets=["in", "the"]).output == "logits"
    for ours, theirs in zip(encoder.answers(named), encoder.answers(counted), strict=True):
        for mask, expected in zip(ours, theirs, strict=True):
            assert [(it.token, it.sequence) for it in mask] == [(it.token, it.sequence) for it in expected]
            np.testing.assert_allclose([it.score for it in mask], [it.score for it in expected], rtol=1e-5)
    outputs = tuple(spec for spec in encoder.manifest.outputs if spec.name not in (TOP_IDS, TOP_SCORES))
    older = open_graph(encoder_package / FILES.fp32, encoder.manifest.model_copy(update={"outputs": outputs}))
    assert isinstance(older, OpenEncoder)
    assert older.filling(TEXTS).output == "logits"
    tokens = [
        [[filled.token for filled in mask] for text in model.fill(TEXTS) for mask in text] for model in (older, encoder)
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("texts", "how", "kind", "told"),
    [
        *((["the [MASK]"], {"targets": ["the", it]}, TargetError, re.escape(repr(it))) for it in ("語", "[PAD]")),
        (["the [MASK]", "the model"], {}, NoMaskError, "text 1 has no mask"),
        ([f"{LONG}[MASK]"], {"truncate": True}, NoMaskError, "has no mask within the 64 tokens"),
        (
            ["the [MASK]", f"the [MASK] {LONG}[MASK] [MASK]"],
            {"truncate": True},
            MaskCutOffError,
            "text 1 has masks beyond the 64 tokens.*3 masks, the last 2 cut off",
        ),
        ([f"[MASK] {LONG}"], {}, TextTooLongError, "too long"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_by_number_or_target(
    encoder: OpenEncoder, texts: list[str], how: dict[str, Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=f"(?s){told}"):
        encoder.fill(texts, **how)


def test_a_long_text_is_cut_on_request_and_no_texts_give_no_answers(int8: OpenEncoder) -> None:
    (words,) = int8.fill([f"the [MASK] {LONG}"], truncate=True)
    assert len(words) == 1
    assert int8.embed([LONG], truncate=True).shape == (1, 32)
    assert int8.fill([]) == []
    assert int8.embed([]).shape == (0, 32)


def test_other_texts_of_the_batch_do_not_change_an_int8_answer(int8: OpenEncoder) -> None:
    ordered = [*TEXTS, *(" ".join(" ".join(TEXTS).split()[start : start + 9]) for start in range(12))]
    assert (int8.embed(ordered[::-1])[::-1] == int8.embed(ordered)).all()
    alone = np.concatenate([int8.embed([text]) for text in ordered])
    np.testing.assert_allclose(int8.embed(ordered), alone, atol=1e-4)


def test_threads_can_share_an_encoder(int8: OpenEncoder) -> None:
    alone = [int8.fill([text]) for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: int8.fill([text]), TEXTS * 10)) == alone * 10
