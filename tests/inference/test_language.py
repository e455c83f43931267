"""Answers of an exported encoder equal the trained model's, in any order and from any thread."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


@pytest.fixture(scope="module")
def encoder(encoder_package: Path) -> OpenEncoder:
    return load_as(OpenEncoder, encoder_package, precision="fp32")


@pytest.fixture(scope="module")
def int8(encoder_package: Path) -> OpenEncoder:
    return load_as(OpenEncoder, encoder_package)


def test_candidates_equal_those_of_the_trained_model(encoder: OpenEncoder, small_encoder: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(small_encoder).eval()
    tokenizer = AutoTokenizer.from_pretrained(small_encoder)
    for text, masks in zip(TEXTS, encoder.fill(TEXTS, top_k=5), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            logits_MV = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
        best = logits_MV.softmax(dim=-1).topk(5)
        assert [[filled.token for filled in mask] for mask in masks] == best.indices.tolist()
        np.testing.assert_allclose([[filled.score for filled in mask] for mask in masks], best.values, atol=1e-5)


def test_each_mask_is_filled_separately_in_the_original_text(encoder: OpenEncoder) -> None:
    (masks,) = encoder.fill(["Small MODELS answer [MASK] on ordinary [MASK]"], targets=["the"])
    assert masks[0][0].sequence == "Small MODELS answer the on ordinary [MASK]"
    assert masks[1][0].sequence == "Small MODELS answer [MASK] on ordinary the"


def test_a_word_piece_is_joined_to_the_word_before_it(encoder: OpenEncoder) -> None:
    (((filled,),),) = encoder.fill(["Small MODELS answer [MASK] on ordinary processors"], targets=["##er"])
    assert filled.sequence == "Small MODELS answerer on ordinary processors"


def test_probabilities_are_normalized_over_the_targets(encoder: OpenEncoder) -> None:
    (((first, second),),) = encoder.fill(["the [MASK] reads"], targets=["in", "the"])
    assert {first.token_str, second.token_str} == {"in", "the"}
    assert first.score >= second.score
    assert first.score + second.score == pytest.approx(1)


def test_the_top_words_of_the_graph_equal_those_of_its_logits(encoder: OpenEncoder) -> None:
    vocab_size = encoder.manifest.vocab_size
    named = encoder.filling(TEXTS, top_k=vocab_size)
    counted = encoder.filling(TEXTS, top_k=vocab_size + 1)  # more tokens than the graph returns by itself
    assert (named.output, counted.output) == (TOP, "logits")
    for ours, theirs in zip(encoder.answers(named), encoder.answers(counted), strict=True):
        for mask, expected in zip(ours, theirs, strict=True):
            assert [filled.token for filled in mask] == [filled.token for filled in expected]
            assert [filled.sequence for filled in mask] == [filled.sequence for filled in expected]
            np.testing.assert_allclose(
                [filled.score for filled in mask], [filled.score for filled in expected], rtol=1e-5
            )


def test_requests_with_targets_and_older_packages_are_answered_from_logits(
    encoder: OpenEncoder, encoder_package: Path
) -> None:
    outputs = tuple(spec for spec in encoder.manifest.outputs if spec.name not in (TOP_IDS, TOP_SCORES))
    older = open_graph(encoder_package / FILES.fp32, encoder.manifest.model_copy(update={"outputs": outputs}))
    assert isinstance(older, OpenEncoder)
    assert encoder.filling(TEXTS, targets=["in", "the"]).output == "logits"
    assert older.filling(TEXTS).output == "logits"
    assert tokens(older) == tokens(encoder)


def tokens(encoder: OpenEncoder) -> list[list[list[int]]]:
    return [[[filled.token for filled in mask] for mask in text] for text in encoder.fill(TEXTS, top_k=5)]


@pytest.mark.parametrize("target", ["sentences", "語", "[PAD]"])
def test_a_target_in_pieces_or_unknown_is_refused_by_name(encoder: OpenEncoder, target: str) -> None:
    with pytest.raises(TargetError, match=re.escape(repr(target))):
        encoder.fill(["the [MASK]"], targets=["the", target])


def test_a_text_without_mask_is_refused_by_number(encoder: OpenEncoder) -> None:
    with pytest.raises(NoMaskError, match="text 1 has no mask"):
        encoder.fill(["the [MASK]", "the model"])


def test_a_mask_that_was_cut_off_is_refused(encoder: OpenEncoder) -> None:
    with pytest.raises(NoMaskError, match="has no mask within the 64 tokens"):
        encoder.fill(["the " * 100 + "[MASK]"], truncate=True)


def test_a_text_that_loses_masks_to_truncation_is_refused_with_their_number(encoder: OpenEncoder) -> None:
    long = "the [MASK] " + "the " * 100 + "[MASK] [MASK]"
    with pytest.raises(MaskCutOffError, match="text 1 has masks beyond the 64 tokens") as raised:
        encoder.fill(["the [MASK]", long], truncate=True)
    assert "3 masks, the last 2 cut off" in raised.value.given
    (words,) = encoder.fill(["the [MASK] " + "the " * 100], truncate=True)
    assert len(words) == 1


def test_an_embedding_is_the_mean_of_the_last_hidden_states(encoder: OpenEncoder, small_encoder: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(small_encoder).eval()
    tokenizer = AutoTokenizer.from_pretrained(small_encoder)
    for text, embedding_H in zip(TEXTS, encoder.embed(TEXTS), strict=True):
        with torch.inference_mode():
            hidden_1LH = model.base_model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        mean_H = hidden_1LH[0].mean(dim=0)
        np.testing.assert_allclose(embedding_H, mean_H / mean_H.norm(), atol=1e-5)


def test_embeddings_have_length_one(int8: OpenEncoder) -> None:
    np.testing.assert_allclose(np.linalg.norm(int8.embed(TEXTS), axis=1), 1, rtol=1e-5)


def test_no_texts_give_no_answers(int8: OpenEncoder) -> None:
    assert int8.fill([]) == []
    assert int8.embed([]).shape == (0, 32)


@pytest.mark.parametrize("batch_tokens", [8, 32, 512])
def test_the_order_of_texts_does_not_change_an_int8_answer(encoder_package: Path, batch_tokens: int) -> None:
    encoder = load_as(OpenEncoder, encoder_package, batch_tokens=batch_tokens)
    texts = [" ".join(TEXTS).split()[start : start + 9] for start in range(12)]
    ordered = [" ".join(words) for words in texts]
    embeddings = encoder.embed(ordered)
    assert (encoder.embed(ordered[::-1])[::-1] == embeddings).all()


def test_other_texts_of_the_batch_do_not_change_an_int8_answer(int8: OpenEncoder) -> None:
    alone = np.concatenate([int8.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(int8.embed(TEXTS), alone, atol=1e-4)


def test_threads_can_share_an_encoder(int8: OpenEncoder) -> None:
    alone = [int8.fill([text]) for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: int8.fill([text]), TEXTS * 10))
    assert together == alone * 10


def test_a_long_text_is_refused_unless_truncation_is_requested(int8: OpenEncoder) -> None:
    long = "the model " * 60
    with pytest.raises(TextTooLongError, match="too long"):
        int8.embed([long])
    assert int8.embed([long], truncate=True).shape == (1, 32)
