"""Claim: word dropout deletes whole words of some texts, by their identity, and the rest stays as it was."""

from pathlib import Path

import numpy as np
import pytest

from clozeline.language.objectives import TargetBatch
from clozeline.language.shards import NUM_BOUNDARY_TOKENS, Boundary, RowTokens
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import PretrainParams, WordDropoutParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.feeding import WordDropout
from clozeline.system.errors import ParamsError
from clozeline.training.state import Batch
from tests.tokens.test_masking import SPELLING, tokens

USUAL = WordDropoutParams(text_share=0.3, word_share=0.1)
BOUNDARY = Boundary(cls_id=2, sep_id=3, pad_id=0)


def rows(length: int = 50) -> RowTokens:
    """Documents of 100 tokens, of which every third continues a word, in rows of `length` tokens."""
    input_ids_N, document_N, position_N = tokens(100_000)
    row_N = np.arange(len(input_ids_N)) // length
    length_B = np.full(row_N[-1] + 1, length + NUM_BOUNDARY_TOKENS)
    ends_B = (np.arange(len(length_B)) + 1) * length % 100 == 0
    return RowTokens(input_ids_N, document_N, position_N, row_N, position_N % length, length_B, ends_B)


def shortened(whole: RowTokens, epoch: int = 0, params: WordDropoutParams = USUAL) -> RowTokens:
    dropout = WordDropout.of(params, 7, SPELLING)
    assert dropout is not None
    return dropout.shorten(whole, epoch)


def kept(whole: RowTokens, short: RowTokens) -> np.ndarray:
    """Return whether each token of `whole` is in `short`."""
    return np.isin(whole.document_N * 100 + whole.position_N, short.document_N * 100 + short.position_N)


def test_a_tenth_of_the_words_is_deleted_in_three_texts_of_ten() -> None:
    whole = rows()
    is_kept_N = kept(whole, shortened(whole))
    lost_D = np.bincount(whole.document_N, ~is_kept_N) > 0
    assert lost_D.mean() == pytest.approx(0.3, abs=0.05)
    assert (~is_kept_N)[lost_D[whole.document_N]].mean() == pytest.approx(0.1, abs=0.01)


def test_words_are_deleted_whole() -> None:
    whole = rows()
    is_kept_N = kept(whole, shortened(whole))
    continues_N = (whole.input_ids_N % 3 == 0) & (whole.place_N > 0) & ~np.isin(whole.input_ids_N, [0, 1, 2, 3, 4])
    inside_N = continues_N[1:] & ~np.isin(whole.input_ids_N[:-1], [0, 1, 2, 3, 4, 500])
    assert inside_N.sum() > 10_000
    assert (is_kept_N[1:] == is_kept_N[:-1])[inside_N].all()


def test_what_stays_closes_the_gaps_and_keeps_its_positions() -> None:
    whole = rows()
    short = shortened(whole)
    is_kept_N = kept(whole, short)
    assert (short.position_N == whole.position_N[is_kept_N]).all()
    assert short.length_B.sum() == len(short.input_ids_N) + NUM_BOUNDARY_TOKENS * len(short.length_B)
    for row in np.flatnonzero(short.length_B < whole.length_B)[:5].tolist():
        padded = short.padded(short.input_ids_N, BOUNDARY)[row].tolist()
        content = whole.input_ids_N[is_kept_N & (whole.row_N == row)].tolist()
        assert padded == [2, *content, 3] + [0] * (short.longest - len(content) - 2)


def test_a_deletion_depends_on_epoch_and_identity_alone() -> None:
    whole = rows()
    one, other = shortened(whole), shortened(whole, epoch=1)
    assert (kept(whole, one) != kept(whole, other)).any()
    half = rows(length=25)  # other rows: only the words that a row's end cuts may differ
    assert (kept(whole, one) != kept(half, shortened(half))).mean() < 0.01


def test_a_row_never_loses_all_its_words() -> None:
    short = shortened(rows(length=2), params=WordDropoutParams(text_share=1.0, word_share=0.9))
    assert short.length_B.min() > NUM_BOUNDARY_TOKENS


def test_it_is_off_without_texts_and_refused_without_marks_of_words() -> None:
    unmarked = Spelling(SPELLING.ids, SPELLING.ends, marks_words=False)
    assert WordDropout.of(WordDropoutParams(text_share=0.0, word_share=0.1), 7, unmarked) is None
    with pytest.raises(ParamsError, match=r"(?s)word_dropout.*text_share: 0"):
        WordDropout.of(USUAL, 7, unmarked)


def test_batches_of_a_training_hold_the_shorter_rows(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    def first_batch(text_share: float) -> Batch[TargetBatch]:
        params = tiny_pretraining.model_copy(
            update={"word_dropout": WordDropoutParams(text_share=text_share, word_share=0.5)}
        )
        given = {"seed": 1, "tokens": tiny_tokens, "tokenizer": tiny_tokenizer, "work": tmp_path}
        return next(pretraining.prepare(params, **given).loop.batches_from(0, 0))

    whole, short = first_batch(0.0), first_batch(1.0)
    assert short.num_tokens == int((short.inputs.input_ids_BL != 0).sum())
    assert 0.4 < short.num_tokens / whole.num_tokens < 0.7
