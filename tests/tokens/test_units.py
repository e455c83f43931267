"""Claim: words and spans are hidden as one, at exactly the stated rate, equally at every position (P7, P9)."""

import json
import time

import numpy as np
import pytest

from clozeline.language.draws import Stream, first_uniform, second_uniform, token_hashes
from clozeline.language.masking import Masked, Masker, Vocabulary, span_unit
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import MaskingParams
from clozeline.system.errors import ParamsError

VOCABULARY = Vocabulary(size=100, mask_id=4, special_ids=frozenset(range(5)))
NUM_DOCUMENTS, LENGTH = 5000, 40


def masking(**changes: object) -> MaskingParams:
    values: dict[str, object] = {"unit": "token", "mask_rate": 0.15, "final_mask_rate": None}
    values |= {"mask_share": 0.8, "random_share": 0.1, "keep_share": 0.1, "mean_span_tokens": None}
    return MaskingParams.model_validate(values | {"protected_tokens": ()} | changes)


WORD = masking(unit="word")
SPAN = masking(unit="span", mean_span_tokens=3.8)
UNITS = {"token": masking(), "word": WORD, "span": SPAN}


def spelling() -> Spelling:
    """Return a spelling in which even ids begin a word and odd ids continue it."""
    ids = {f"##w{id_}" if id_ % 2 else f"w{id_}": id_ for id_ in range(VOCABULARY.size)}
    special = [{"content": f"[{id_}]", "id": id_} for id_ in VOCABULARY.special_ids]
    model = {"type": "WordPiece", "vocab": ids, "continuing_subword_prefix": "##"}
    return Spelling.of(json.dumps({"model": model, "added_tokens": special, "pre_tokenizer": None}))


SPELLING = spelling()


def tokens() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ordinary tokens; the number of tokens of a word is geometrically distributed."""
    num_tokens = NUM_DOCUMENTS * LENGTH
    every_N = np.arange(num_tokens)
    input_ids_N = np.random.default_rng(0).integers(5, VOCABULARY.size, num_tokens)
    return input_ids_N, every_N // LENGTH, every_N % LENGTH


def masked(params: MaskingParams) -> Masked:
    return Masker.create(params, VOCABULARY, 7, SPELLING).mask(0, *tokens())


def runs(is_target_N: np.ndarray) -> np.ndarray:
    """Return the lengths of the runs of targets."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_target_N.astype(int), [0]])))
    return edges[1::2] - edges[::2]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rate", [0.05, 0.15, 0.4, 0.8])
def test_the_mask_rate_of_units_is_exact_and_equal_at_all_positions(unit: str, rate: float) -> None:
    """P7: at each position the targets of 5,000 documents are a binomial draw, also at the first and the last."""
    is_target_DL = masked(UNITS[unit].model_copy(update={"mask_rate": rate})).is_target_N.reshape(-1, LENGTH)
    sigma = (rate * (1 - rate) / NUM_DOCUMENTS) ** 0.5
    z_L = (is_target_DL.mean(axis=0) - rate) / sigma
    assert abs(z_L).max() < 4.5
    # Words and spans mask neighbouring positions together, so chi-square uses positions 5 (spans: 13) apart.
    apart = 5 if unit != "span" else 13
    assert (z_L[::apart] ** 2).sum() < {5: 26.1, 13: 18.5}[apart]  # 99.9 % quantiles at 8 and 4 degrees of freedom


def test_a_word_is_masked_whole_or_not_at_all() -> None:
    """P9."""
    input_ids_N, _, position_N = tokens()
    word_N = np.cumsum((input_ids_N % 2 == 0) | (position_N == 0))
    targets_W = np.bincount(word_N, masked(WORD).is_target_N)[1:]
    length_W = np.bincount(word_N)[1:]
    assert set(np.unique(targets_W / length_W)) == {0.0, 1.0}
    assert length_W.max() > 5


def test_long_words_are_chosen_as_often_as_short_ones() -> None:
    """P9: thus the share of hidden tokens equals the rate; filling a quota from shuffled words would miss it."""
    input_ids_N, _, position_N = tokens()
    starts_N = (input_ids_N % 2 == 0) | (position_N == 0)
    length_W = np.bincount(np.cumsum(starts_N))[1:]
    chosen_W = masked(WORD).is_target_N[starts_N]
    for length in (1, 2, 3, 4):
        assert chosen_W[length_W == length].mean() == pytest.approx(0.15, abs=0.012)
    assert chosen_W[length_W > 4].mean() == pytest.approx(0.15, abs=0.02)


def test_each_token_of_a_chosen_word_is_masked_replaced_or_kept_independently() -> None:
    """P8."""
    input_ids_N, _, _ = tokens()
    result = masked(WORD)
    follows_N = np.append(False, result.is_target_N[1:] & result.is_target_N[:-1] & (input_ids_N[1:] % 2 == 1))
    is_mask_N = result.input_ids_N == VOCABULARY.mask_id
    both = (is_mask_N[1:] & is_mask_N[:-1])[follows_N[1:]].mean()
    assert both == pytest.approx(0.64, abs=0.02)


def test_words_of_a_row_of_200_000_tokens_take_no_longer_than_its_tokens() -> None:
    """P9: linear time."""
    input_ids_N, document_N, _ = tokens()
    masker = Masker.create(WORD, VOCABULARY, 7, SPELLING)
    begun = time.process_time()
    masker.mask(0, input_ids_N, np.zeros_like(document_N), np.arange(len(document_N)))
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("mean", [1.0, 2.0, 3.8, 5.0])
def test_span_lengths_are_geometric_with_the_stated_mean_and_cut_at_10(mean: float) -> None:
    reaches_K = np.array(span_unit(mean).reaches_K)
    assert len(reaches_K) == 10
    assert reaches_K[0] == pytest.approx(1)
    assert reaches_K.sum() == pytest.approx(mean)
    shares = -np.diff(np.append(reaches_K, 0))
    assert shares[2:] * shares[:-2] == pytest.approx(shares[1:-1] ** 2)


def test_a_mean_of_3_8_gives_the_span_lengths_of_spanbert() -> None:
    """Joshi et al. 2020, section 3.1: ℓ ~ Geo(0.2) cut at 10, a mean of 3.8."""
    shares = -np.diff(np.append(span_unit(3.8).reaches_K, 0))
    assert shares[1:] / shares[:-1] == pytest.approx(0.8, abs=0.003)


def test_spans_equal_those_of_a_loop_over_all_start_positions() -> None:
    """The reference goes start by start and marks the tokens that each span covers."""
    unit, document, length = span_unit(3.8), 3, 200
    start_S = np.arange(-9, length)
    hash_S = token_hashes(7, 0, Stream.SPAN, np.full_like(start_S, document), start_S)
    begins_S = first_uniform(hash_S) < unit.threshold(0.15)
    length_S = (second_uniform(hash_S)[:, None] < np.array(unit.reaches_K)).sum(axis=1)
    painted = np.zeros(length + 20, dtype=bool)
    for start, span in zip(start_S[begins_S], length_S[begins_S], strict=True):
        painted[max(start, 0) : max(start + span, 0)] = True
    ids_N = np.full(length, 50)
    result = Masker.create(SPAN, VOCABULARY, 7).mask(0, ids_N, np.full(length, document), np.arange(length))
    assert (result.is_target_N == painted[:length]).all()
    assert painted.any()


def test_targets_come_in_spans() -> None:
    """Chance makes runs of 1 / 0.85 = 1.18 tokens; spans of 3.8 that may touch or overlap make longer ones than 3.8."""
    assert runs(masked(UNITS["token"]).is_target_N).mean() == pytest.approx(1.18, abs=0.02)
    assert 3.8 < runs(masked(SPAN).is_target_N).mean() < 4.8


def test_no_span_continues_past_a_special_token() -> None:
    """P2: two texts in one row are masked independently of each other, both at the full rate up to their edge."""
    input_ids_N, document_N, position_N = tokens()
    input_ids_N[position_N == 20] = 3
    is_target_DL = (
        Masker.create(SPAN, VOCABULARY, 7).mask(0, input_ids_N, document_N, position_N).is_target_N.reshape(-1, LENGTH)
    )
    before_D, after_D = is_target_DL[:, 19], is_target_DL[:, 21]
    assert not is_target_DL[:, 20].any()
    assert after_D.mean() == pytest.approx(0.15, abs=0.02)
    assert abs(np.corrcoef(before_D, after_D)[0, 1]) < 0.05
    assert np.corrcoef(is_target_DL[:, 30], is_target_DL[:, 32])[0, 1] > 0.3  # without a special token between


def test_whole_word_masking_requires_a_tokenizer_that_marks_word_starts() -> None:
    model = {"type": "BPE", "vocab": {"one": 0, "two": 1}, "merges": []}
    unmarked = Spelling.of(json.dumps({"model": model, "added_tokens": [], "pre_tokenizer": None}))
    with pytest.raises(ParamsError, match=r"`masking.unit: word`"):
        Masker.create(WORD, Vocabulary(2, 1, frozenset({1})), 7, unmarked)
