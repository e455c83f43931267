import numpy as np
import pytest

from clozeline.params import MaskingParams
from clozeline.tokens.masking import Masked, Masker, Vocabulary, evaluation_folds

VOCABULARY = Vocabulary(size=1000, mask_id=4, special_ids=frozenset(range(5)) | {500})
MASKING = MaskingParams(mask_rate=0.2, mask_share=0.8, random_share=0.1, keep_share=0.1)
NUM_TOKENS = 200_000


def tokens(num_tokens: int = NUM_TOKENS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids of all kinds, specials in mid-row among them; documents of 100 tokens."""
    input_ids_N = np.random.default_rng(0).integers(0, VOCABULARY.size, num_tokens)
    every_N = np.arange(num_tokens)
    return input_ids_N, every_N // 100, every_N % 100


def masked(epoch: int = 0, seed: int = 7, params: MaskingParams = MASKING) -> Masked:
    return Masker.create(params, VOCABULARY, seed).mask(epoch, *tokens())


def share(part_N: np.ndarray, whole_N: np.ndarray) -> float:
    return float(part_N.sum() / whole_N.sum())


def test_no_special_token_is_a_target_or_changed() -> None:
    input_ids_N, _, _ = tokens()
    result = masked()
    is_special_N = VOCABULARY.is_special_V[input_ids_N]
    assert is_special_N.any()
    assert not result.is_target_N[is_special_N].any()
    assert (result.input_ids_N[is_special_N] == input_ids_N[is_special_N]).all()


def test_only_targets_change() -> None:
    input_ids_N, _, _ = tokens()
    result = masked()
    assert (result.input_ids_N[~result.is_target_N] == input_ids_N[~result.is_target_N]).all()


def test_the_rate_is_right_and_flat_over_positions() -> None:
    input_ids_N, _, position_N = tokens()
    ordinary_N = ~VOCABULARY.is_special_V[input_ids_N]
    result = masked()
    assert share(result.is_target_N, ordinary_N) == pytest.approx(0.2, abs=0.003)
    targets_P = np.bincount(position_N[result.is_target_N], minlength=100)
    expected_P = np.bincount(position_N[ordinary_N], minlength=100) * 0.2
    chi_square = (((targets_P - expected_P) ** 2) / (expected_P * 0.8)).sum()
    assert chi_square < 148  # 99.9 % quantile at 100 degrees of freedom is 149.4


def test_targets_become_mask_random_or_stay_at_the_stated_shares() -> None:
    input_ids_N, _, _ = tokens()
    result = masked()
    is_mask_N = result.input_ids_N == VOCABULARY.mask_id
    is_kept_N = result.input_ids_N == input_ids_N
    assert share(is_mask_N & result.is_target_N, result.is_target_N) == pytest.approx(0.8, abs=0.006)
    assert share(is_kept_N & result.is_target_N, result.is_target_N) == pytest.approx(0.1, abs=0.005)


def test_random_replacements_are_drawn_from_every_ordinary_token_and_from_no_special_one() -> None:
    result = masked(params=MaskingParams(mask_rate=0.9, mask_share=0.0, random_share=1.0, keep_share=0.0))
    drawn = np.unique(result.input_ids_N[result.is_target_N])
    assert (drawn == VOCABULARY.ordinary_ids).all()


def test_token_id_0_can_be_a_target() -> None:
    vocabulary = Vocabulary(size=10, mask_id=9, special_ids=frozenset({9}))
    masker = Masker.create(MASKING, vocabulary, seed=1)
    result = masker.mask(0, np.zeros(1000, dtype=np.int64), np.zeros(1000, dtype=np.int64), np.arange(1000))
    assert result.is_target_N.any()


def test_a_mask_depends_on_nothing_but_the_token_itself() -> None:
    input_ids_N, document_N, position_N = tokens()
    whole = masked()
    order_N = np.random.default_rng(1).permutation(NUM_TOKENS)[:5000]
    part = Masker.create(MASKING, VOCABULARY, 7).mask(0, input_ids_N[order_N], document_N[order_N], position_N[order_N])
    assert (part.input_ids_N == whole.input_ids_N[order_N]).all()
    assert (part.is_target_N == whole.is_target_N[order_N]).all()


@pytest.mark.parametrize("other", [{"epoch": 1}, {"seed": 8}])
def test_another_epoch_or_seed_has_masks_of_its_own(other: dict[str, int]) -> None:
    one, two = masked(), masked(**other)
    both = share(one.is_target_N & two.is_target_N, one.is_target_N)
    assert both == pytest.approx(0.2, abs=0.01)  # what chance gives two independent masks


def test_masking_leaves_the_global_random_state_alone() -> None:
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    masked()
    assert np.random.random() == expected


def test_every_token_is_in_exactly_one_evaluation_fold_and_folds_are_even() -> None:
    _, document_N, position_N = tokens()
    fold_N = evaluation_folds(7, 7, document_N, position_N)
    sizes = np.bincount(fold_N, minlength=7)
    assert sizes.sum() == NUM_TOKENS
    assert len(sizes) == 7
    assert (abs(sizes / NUM_TOKENS - 1 / 7) < 0.005).all()
