"""Of old text, a training that continues sees the share that was asked for, chosen by seed and document alone."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from clozeline.language.objectives import Split, TargetBatch
from clozeline.language.shards import NUM_BOUNDARY_TOKENS, RowTokens, TokenShards
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import PretrainParams, WordDropoutParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.feeding import Replay, WordDropout
from clozeline.records.reading.tokens import SpecialIds, documents_path
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.training.state import Batch
from tests.language.test_masking import SPELLING
from tests.language.test_masking import tokens as ids_of_all_kinds

NUM_DOCUMENTS, NUM_NEW = 300, 60
KEYS = np.arange(NUM_DOCUMENTS, dtype=np.uint64) * np.uint64(7919)


@pytest.fixture
def tokens(tiny_tokens: Path) -> Path:
    np.save(documents_path(tiny_tokens, "train"), KEYS)
    return tiny_tokens


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """The folder of an encoder that was trained on all but every fifth document."""
    folder = tmp_path / "start"
    folder.mkdir()
    np.save(documents_path(folder, "train"), KEYS[np.arange(NUM_DOCUMENTS) % 5 != 0])
    return folder


def replay(tokens: Path, start: Path, fraction: float | None, seed: int = 1) -> Replay:
    split = Split.open(TokenShards.open(tokens, "train"), max_length=16)
    return Replay.of(split, tokens, start, fraction, seed)


def documents_of(found: Replay) -> set[int]:
    return set(found.split.rows.document_R.tolist())


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.75])
def test_old_text_gets_its_share_of_the_rows_and_all_new_text_is_kept(
    tokens: Path, start: Path, fraction: float
) -> None:
    found = replay(tokens, start, fraction)
    assert {document for document in documents_of(found) if document % 5 == 0} == set(range(0, NUM_DOCUMENTS, 5))
    assert found.num_old_rows / len(found.split.rows) == pytest.approx(fraction, abs=0.03)
    assert found.num_new_rows + found.num_old_rows == len(found.split.rows)


def test_a_document_is_kept_whole(tokens: Path, start: Path) -> None:
    whole = np.bincount(replay(tokens, start, None).split.rows.document_R)
    kept = np.bincount(replay(tokens, start, 0.3).split.rows.document_R, minlength=len(whole))
    assert ((kept == whole) | (kept == 0)).all()


def test_a_larger_share_adds_documents_and_another_seed_draws_others(tokens: Path, start: Path) -> None:
    some, more = (documents_of(replay(tokens, start, fraction)) for fraction in (0.2, 0.5))
    assert some < more
    assert documents_of(replay(tokens, start, 0.5)) == more
    assert documents_of(replay(tokens, start, 0.5, seed=2)) != more


def test_the_choice_of_documents_does_not_depend_on_their_order(tokens: Path, start: Path) -> None:
    here = set(KEYS[sorted(documents_of(replay(tokens, start, 0.5)))].tolist())
    np.save(documents_path(tokens, "train"), KEYS[::-1])
    there = set(KEYS[::-1][sorted(documents_of(replay(tokens, start, 0.5)))].tolist())
    assert here <= there or there <= here  # documents differ in rows


def test_null_keeps_all_text_and_zero_only_new_text(tokens: Path, start: Path) -> None:
    assert len(documents_of(replay(tokens, start, None))) == NUM_DOCUMENTS
    assert len(documents_of(replay(tokens, start, 0.0))) == NUM_NEW


def test_all_old_text_is_used_if_none_is_new(tokens: Path, start: Path) -> None:
    np.save(documents_path(start, "train"), KEYS)
    found = replay(tokens, start, 0.5)
    assert (found.num_new_rows, len(documents_of(found))) == (0, NUM_DOCUMENTS)


def test_old_text_below_the_requested_share_is_used_completely(tokens: Path, start: Path) -> None:
    np.save(documents_path(start, "train"), KEYS[:10])
    assert len(documents_of(replay(tokens, start, 0.9))) == NUM_DOCUMENTS


def test_missing_or_mismatched_document_keys_are_refused_by_file_name(tokens: Path, start: Path) -> None:
    np.save(documents_path(tokens, "train"), KEYS[:10])
    with pytest.raises(ArtifactError, match=str(documents_path(tokens, "train"))):
        replay(tokens, start, 0.5)
    documents_path(start, "train").unlink()
    with pytest.raises(ArtifactError, match=str(documents_path(start, "train"))):
        replay(tokens, start, 0.5)


def test_batches_of_continued_training_do_not_depend_on_the_number_of_workers(
    tokens: Path, start: Path, tiny_tokenizer: Path, tiny_pretraining: PretrainParams, tmp_path: Path
) -> None:
    pretraining.pretrain(tiny_pretraining, seed=1, tokens=tokens, tokenizer=tiny_tokenizer).save(tmp_path / "encoder")
    shutil.copytree(tmp_path / "encoder", start, dirs_exist_ok=True)
    curves = []
    for num_workers in (0, 2):
        params = tiny_pretraining.model_copy(
            update={"start": str(start), "replay_fraction": 0.5, "num_workers": num_workers, "steps": 10}
        )
        work = tmp_path / f"work{num_workers}"
        job = pretraining.prepare(params, seed=1, tokens=tokens, tokenizer=tiny_tokenizer, work=work, continues=True)
        assert job.replay is not None
        assert job.num_rows == job.replay.num_new_rows + job.replay.num_old_rows < 2 * NUM_DOCUMENTS
        curves.append(job.run().curve)
    assert curves[0] == curves[1]


def test_other_document_keys_give_another_checkpoint_folder(
    tokens: Path, tiny_tokenizer: Path, tiny_pretraining: PretrainParams, tmp_path: Path
) -> None:
    def folder() -> Path:
        job = pretraining.prepare(tiny_pretraining, seed=1, tokens=tokens, tokenizer=tiny_tokenizer, work=tmp_path)
        return job.loop.checkpoints.folder

    before = folder()
    np.save(documents_path(tokens, "train"), KEYS[::-1])
    assert folder() != before


USUAL = WordDropoutParams(text_share=0.3, word_share=0.1)
BOUNDARY = SpecialIds(pad=0, cls=2, sep=3, mask=4, unk=1, every=(0, 1, 2, 3, 4))


def rows(length: int = 50) -> RowTokens:
    """Documents of 100 tokens, of which every third continues a word, in rows of `length` tokens."""
    input_ids_N, document_N, position_N = ids_of_all_kinds(100_000)
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
