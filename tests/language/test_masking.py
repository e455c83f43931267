"""Claim: P2 to P9, P11, P12 hold for every unit: no special token, right rate, right shares, no state, no order;
words and spans are masked as units, at every position equally often.
"""

import hashlib
import json
import time
from collections.abc import Callable

import numpy as np
import pytest

from clozeline.language.draws import Stream, first_uniform, second_uniform, token_hashes
from clozeline.language.masking import Masked, Masker, Vocabulary, span_unit
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import MaskingParams
from clozeline.system.errors import ParamsError

VOCABULARY = Vocabulary(size=1000, mask_id=4, special_ids=frozenset(range(5)) | {500})
NUM_TOKENS = 200_000


def masking(unit: str = "token", **changes: object) -> MaskingParams:
    values: dict[str, object] = {
        **{"unit": unit, "mean_span_tokens": 3.8 if unit == "span" else None, "mask_rate": 0.2},
        **{"final_mask_rate": None, "mask_share": 0.8, "random_share": 0.1, "keep_share": 0.1, "protected_tokens": ()},
    }
    return MaskingParams.model_validate(values | changes)


MASKING = masking()
UNITS = {unit: masking(unit) for unit in ("token", "word", "span")}
every_unit = pytest.mark.parametrize("unit", UNITS)


def wordpieces(vocabulary: Vocabulary, continues: Callable[[int], bool]) -> Spelling:
    """w0 … w999, where `continues` says which ids continue the word before them."""
    ids = {f"##w{id_}" if continues(id_) else f"w{id_}": id_ for id_ in range(vocabulary.size)}
    special = [{"content": f"[{id_}]", "id": id_} for id_ in vocabulary.special_ids]
    model = {"type": "WordPiece", "vocab": ids, "continuing_subword_prefix": "##"}
    return Spelling.of(json.dumps({"model": model, "added_tokens": special, "pre_tokenizer": None}))


SPELLING = wordpieces(VOCABULARY, lambda id_: id_ % 3 == 0)


def tokens(num_tokens: int = NUM_TOKENS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids of all kinds, with special tokens in mid-row, in documents of 100 tokens."""
    input_ids_N = np.random.default_rng(0).integers(0, VOCABULARY.size, num_tokens)
    every_N = np.arange(num_tokens)
    return input_ids_N, every_N // 100, every_N % 100


def masked(epoch: int = 0, seed: int = 7, params: MaskingParams = MASKING) -> Masked:
    return Masker.create(params, VOCABULARY, seed, SPELLING).mask(epoch, *tokens())


def share(part_N: np.ndarray, whole_N: np.ndarray) -> float:
    return float(part_N.sum() / whole_N.sum())


@every_unit
def test_no_special_token_is_a_target_and_targets_change_at_the_configured_shares(unit: str) -> None:
    """P2, also in mid-row; and only targets change. P8."""
    input_ids_N, _, _ = tokens()
    result = masked(params=UNITS[unit])
    is_special_N = VOCABULARY.is_special_V[input_ids_N]
    assert is_special_N.any()
    assert not result.is_target_N[is_special_N].any()
    is_kept_N = result.input_ids_N == input_ids_N
    assert is_kept_N[~result.is_target_N].all()
    is_mask_N = result.input_ids_N == VOCABULARY.mask_id
    assert share(is_mask_N & result.is_target_N, result.is_target_N) == pytest.approx(0.8, abs=0.006)
    assert share(is_kept_N & result.is_target_N, result.is_target_N) == pytest.approx(0.1, abs=0.005)


def test_token_id_0_can_be_a_target() -> None:
    """P11."""
    vocabulary = Vocabulary(size=10, mask_id=9, special_ids=frozenset({9}))
    masker = Masker.create(MASKING, vocabulary, seed=1)
    result = masker.mask(0, np.zeros(1000, dtype=np.int64), np.zeros(1000, dtype=np.int64), np.arange(1000))
    assert result.is_target_N.any()


@every_unit
def test_a_mask_depends_only_on_seed_epoch_and_token_position(unit: str) -> None:
    """P4, P6: no batch, worker, rank or resumed run can change a mask, because the masker gets none of them. Words and
    spans have their rows around them, but no other rows. P12: numpy's own random numbers are neither used nor drawn.
    """
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    whole, random = masked(params=UNITS[unit]), np.random.default_rng(1)
    assert np.random.random() == expected
    rows = random.permutation(NUM_TOKENS // 100)[:300]
    of_rows_N = (rows[:, None] * 100 + np.arange(100)).ravel()
    order_N = random.permutation(NUM_TOKENS)[:5000] if unit == "token" else of_rows_N
    part = Masker.create(UNITS[unit], VOCABULARY, 7, SPELLING).mask(0, *(array_N[order_N] for array_N in tokens()))
    assert (part.input_ids_N == whole.input_ids_N[order_N]).all()
    assert (part.is_target_N == whole.is_target_N[order_N]).all()


@pytest.mark.parametrize("start", [30, 60])
@pytest.mark.parametrize("unit", ["word", "span"])
def test_no_word_or_span_reaches_from_a_row_into_another_row_of_its_document(unit: str, start: int) -> None:
    """P4: a row that begins in the middle of a word has the same mask whichever row precedes it in the batch."""
    documents, masker = np.arange(300)[:, None] * 100, Masker.create(UNITS[unit], VOCABULARY, 7, SPELLING)
    first, second = documents + np.arange(30), documents + np.arange(start, start + 30)
    input_ids_N, document_N, position_N = tokens()
    input_ids_N[position_N == 20] = 3  # a special token, after which spans begin anew

    def targets(order_RL: np.ndarray) -> np.ndarray:
        order_N = order_RL.ravel()
        given = (array_N[order_N] for array_N in (input_ids_N, document_N, position_N))
        is_target_N = masker.mask(0, *given, row_N=np.arange(len(order_N)) // 30).is_target_N
        return is_target_N.reshape(300, -1)[:, -30:]

    assert (targets(np.concatenate([first, second], axis=1)) == targets(second)).all()


@every_unit
@pytest.mark.parametrize("other", [{"epoch": 1}, {"seed": 8}])
def test_another_epoch_or_seed_gives_different_masks(unit: str, other: dict[str, int]) -> None:
    """P5."""
    one, two = masked(params=UNITS[unit]), masked(params=UNITS[unit], **other)
    both = share(one.is_target_N & two.is_target_N, one.is_target_N)
    assert both == pytest.approx(0.2, abs=0.01)  # what chance gives two independent masks


def test_masks_equal_those_of_earlier_versions() -> None:
    """A reproduced run has to hide the same tokens as the original."""
    position_N = np.arange(100_000)
    result = Masker.create(MASKING, VOCABULARY, 7).mask(2, position_N % 1000, position_N // 64, position_N % 64)
    digest = hashlib.sha256(result.input_ids_N.astype("<i8").tobytes() + result.is_target_N.tobytes())
    assert digest.hexdigest() == "2067b19627f949592784622e669aa6fe29bd7847a5a081d8703f8c4f185d2955"


@every_unit
def test_the_rate_follows_its_schedule_and_a_higher_rate_includes_all_targets_of_a_lower(unit: str) -> None:
    params = UNITS[unit].model_copy(update={"mask_rate": 0.3, "final_mask_rate": 0.15})
    masker = Masker.create(params, VOCABULARY, 7, SPELLING)
    high, middle, low = (masker.mask(0, *tokens(), progress=progress) for progress in (0.0, 0.5, 1.0))
    ordinary_N = ~VOCABULARY.is_special_V[tokens()[0]]
    rates = [share(result.is_target_N, ordinary_N) for result in (high, middle, low)]
    assert rates == pytest.approx([0.3, 0.225, 0.15], abs=0.006)
    assert not (middle.is_target_N & ~high.is_target_N).any()
    assert not (low.is_target_N & ~middle.is_target_N).any()
    assert (low.input_ids_N[low.is_target_N] == high.input_ids_N[low.is_target_N]).all()


@every_unit
def test_random_replacements_include_every_ordinary_token_and_no_special_or_protected_one(unit: str) -> None:
    """P3; P2 for tokens that the user protects."""
    protected = {"protected_tokens": ("w7", "##w9"), "mask_share": 0.0, "random_share": 1.0, "keep_share": 0.0}
    result = masked(params=UNITS[unit].model_copy(update={**protected, "mask_rate": 0.8}))
    assert not result.is_target_N[np.isin(tokens()[0], [7, 9])].any()
    drawn = np.unique(result.input_ids_N[result.is_target_N])
    assert drawn.tolist() == [id_ for id_ in VOCABULARY.ordinary_ids.tolist() if id_ not in (7, 9)]


SHORT_WORDS = Vocabulary(size=100, mask_id=4, special_ids=frozenset(range(5)))
NUM_DOCUMENTS, LENGTH = 5000, 40


SHORT_UNITS = {unit: masking(unit, mask_rate=0.15) for unit in UNITS}
WORD, SPAN = SHORT_UNITS["word"], SHORT_UNITS["span"]
# Even ids begin a word, odd ids continue it.
SHORT_SPELLING = wordpieces(SHORT_WORDS, lambda id_: id_ % 2 == 1)


def short_documents() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ordinary tokens; the number of tokens of a word is geometrically distributed."""
    num_tokens = NUM_DOCUMENTS * LENGTH
    every_N = np.arange(num_tokens)
    input_ids_N = np.random.default_rng(0).integers(5, SHORT_WORDS.size, num_tokens)
    return input_ids_N, every_N // LENGTH, every_N % LENGTH


def masked_short(params: MaskingParams) -> Masked:
    return Masker.create(params, SHORT_WORDS, 7, SHORT_SPELLING).mask(0, *short_documents())


@pytest.mark.parametrize("unit", SHORT_UNITS)
@pytest.mark.parametrize("rate", [0.05, 0.15, 0.4, 0.8])
def test_the_mask_rate_of_units_is_exact_and_equal_at_all_positions(unit: str, rate: float) -> None:
    """P7: at each position the targets of 5,000 documents are a binomial draw, also at the first and the last."""
    params = SHORT_UNITS[unit].model_copy(update={"mask_rate": rate})
    is_target_DL = masked_short(params).is_target_N.reshape(-1, LENGTH)
    sigma = (rate * (1 - rate) / NUM_DOCUMENTS) ** 0.5
    z_L = (is_target_DL.mean(axis=0) - rate) / sigma
    assert abs(z_L).max() < 4.5
    # Words and spans mask neighbouring positions together, so chi-square uses positions 5 (spans: 13) apart.
    apart = 5 if unit != "span" else 13
    assert (z_L[::apart] ** 2).sum() < {5: 26.1, 13: 18.5}[apart]  # 99.9 % quantiles at 8 and 4 degrees of freedom


def test_a_word_is_masked_whole_or_not_at_all() -> None:
    """P9. P8: each of its tokens is masked, replaced or kept apart from the others."""
    input_ids_N, _, position_N = short_documents()
    result = masked_short(WORD)
    word_N = np.cumsum((input_ids_N % 2 == 0) | (position_N == 0))
    targets_W, length_W = (np.bincount(word_N, weights)[1:] for weights in (result.is_target_N, None))
    assert set(np.unique(targets_W / length_W)) == {0.0, 1.0}
    assert length_W.max() > 5
    is_mask_N = result.input_ids_N == SHORT_WORDS.mask_id
    follows_N = result.is_target_N[1:] & result.is_target_N[:-1] & (input_ids_N[1:] % 2 == 1)
    assert (is_mask_N[1:] & is_mask_N[:-1])[follows_N].mean() == pytest.approx(0.64, abs=0.02)


def test_words_of_a_row_of_200_000_tokens_take_no_longer_than_its_tokens() -> None:
    """P9: linear time."""
    input_ids_N, document_N, _ = short_documents()
    masker = Masker.create(WORD, SHORT_WORDS, 7, SHORT_SPELLING)
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
    if mean == 3.8:  # Joshi et al. 2020, section 3.1: ℓ ~ Geo(0.2) cut at 10
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
    result = Masker.create(SPAN, SHORT_WORDS, 7).mask(0, ids_N, np.full(length, document), np.arange(length))
    assert (result.is_target_N == painted[:length]).all()
    assert painted.any()


def test_no_span_continues_past_a_special_token() -> None:
    """P2: two texts in one row are masked independently of each other, both at the full rate up to their edge."""
    input_ids_N, document_N, position_N = short_documents()
    input_ids_N[position_N == 20] = 3
    result = Masker.create(SPAN, SHORT_WORDS, 7).mask(0, input_ids_N, document_N, position_N)
    is_target_DL = result.is_target_N.reshape(-1, LENGTH)
    before_D, after_D = is_target_DL[:, 19], is_target_DL[:, 21]
    assert not is_target_DL[:, 20].any()
    assert after_D.mean() == pytest.approx(0.15, abs=0.02)
    assert abs(np.corrcoef(before_D, after_D)[0, 1]) < 0.05
    assert np.corrcoef(is_target_DL[:, 30], is_target_DL[:, 32])[0, 1] > 0.3  # without a special token between


def test_words_of_an_unmarked_vocabulary_and_unknown_protected_tokens_are_refused() -> None:
    model = {"type": "BPE", "vocab": {"one": 0, "two": 1}, "merges": []}
    unmarked = Spelling.of(json.dumps({"model": model, "added_tokens": [], "pre_tokenizer": None}))
    with pytest.raises(ParamsError, match=r"`masking.unit: word`"):
        Masker.create(WORD, Vocabulary(2, 1, frozenset({1})), 7, unmarked)
    with pytest.raises(ParamsError, match="`##w8`"):
        Masker.create(masking(protected_tokens=("w7", "##w8")), VOCABULARY, 7, SPELLING)
