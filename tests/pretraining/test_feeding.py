"""Of old text, a training that continues sees the share that was asked for, chosen by seed and document alone."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from clozeline.language.objectives import Split
from clozeline.language.shards import NUM_BOUNDARY_TOKENS, RowTokens, TokenShards
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import WordDropoutParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.feeding import Replay, WordDropout
from clozeline.records.reading.tokens import documents_path
from clozeline.system.errors import ArtifactError, ParamsError
from tests.conftest import SPECIAL_IDS
from tests.language.test_masking import SPELLING
from tests.language.test_masking import tokens as ids_of_all_kinds
from tests.training.prepared import Prepare

NUM_DOCUMENTS = 300
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
def test_old_text_gets_its_share_of_the_rows_and_all_new_text_is_kept(tokens, start, fraction: float) -> None:
    found = replay(tokens, start, fraction)
    assert set(range(0, NUM_DOCUMENTS, 5)) <= documents_of(found)
    assert found.num_old_rows / len(found.split.rows) == pytest.approx(fraction, abs=0.03)
    assert found.num_new_rows + found.num_old_rows == len(found.split.rows)
    whole = np.bincount(replay(tokens, start, None).split.rows.document_R)
    kept = np.bincount(found.split.rows.document_R, minlength=len(whole))
    assert ((kept == whole) | (kept == 0)).all(), "a document is kept whole"


@pytest.mark.parametrize(
    ("old", "fraction", "num_documents"),
    [
        (np.arange(NUM_DOCUMENTS) % 5 != 0, None, NUM_DOCUMENTS),
        (np.arange(NUM_DOCUMENTS) % 5 != 0, 0.0, NUM_DOCUMENTS // 5),  # new text alone
        (slice(None), 0.5, NUM_DOCUMENTS),  # nothing is new
        (slice(10), 0.9, NUM_DOCUMENTS),  # all old text is less than its share
    ],
)
def test_all_old_text_is_used_if_none_is_new_or_more_is_wanted(tokens, start, old, fraction, num_documents) -> None:
    np.save(documents_path(start, "train"), KEYS[old])
    assert len(documents_of(replay(tokens, start, fraction))) == num_documents


def test_a_larger_share_adds_documents_another_seed_draws_others_and_their_order_does_not_matter(tokens, start) -> None:
    some, more = (documents_of(replay(tokens, start, fraction)) for fraction in (0.2, 0.5))
    assert some < more
    assert documents_of(replay(tokens, start, 0.5, seed=2)) != more
    np.save(documents_path(tokens, "train"), KEYS[::-1])
    here, there = set(KEYS[list(more)]), set(KEYS[::-1][list(documents_of(replay(tokens, start, 0.5)))])
    assert here <= there or there <= here  # documents differ in rows


def test_missing_or_mismatched_document_keys_are_refused_by_file_name(tokens: Path, start: Path) -> None:
    np.save(documents_path(tokens, "train"), KEYS[:10])
    with pytest.raises(ArtifactError, match=str(documents_path(tokens, "train"))):
        replay(tokens, start, 0.5)
    documents_path(start, "train").unlink()
    with pytest.raises(ArtifactError, match=str(documents_path(start, "train"))):
        replay(tokens, start, 0.5)


def test_continued_training_reads_new_and_some_old_rows(tokens: Path, start: Path, prepare: Prepare) -> None:
    prepare.trained(steps=1).save(start.with_name("encoder"))
    shutil.copytree(start.with_name("encoder"), start, dirs_exist_ok=True)
    params = prepare.params.model_copy(update={"start": str(start), "replay_fraction": 0.5, "steps": 2})
    given = {"tokens": tokens, "tokenizer": prepare.tokenizer, "work": prepare.folder / "work"}
    job = pretraining.prepare(params, seed=1, continues=True, **given)
    assert job.replay is not None
    assert job.num_rows == job.replay.num_new_rows + job.replay.num_old_rows < 2 * NUM_DOCUMENTS
    assert job.run().step == 2
    pair = [params.model_copy(update={"num_workers": number}) for number in (0, 2)]
    jobs = [pretraining.prepare(one, seed=1, continues=True, **given) for one in pair]
    alone, in_workers = (next(it.loop.batches_from(0, 0)).inputs.input_ids_BL for it in jobs)
    assert alone.equal(in_workers)


def rows(length: int = 50) -> RowTokens:
    """Documents of 100 tokens, of which every third continues a word, in rows of `length` tokens."""
    input_ids_N, document_N, position_N = ids_of_all_kinds(100_000)
    row_N = np.arange(len(input_ids_N)) // length
    length_B = np.full(row_N[-1] + 1, length + NUM_BOUNDARY_TOKENS)
    ends_B = (np.arange(len(length_B)) + 1) * length % 100 == 0
    return RowTokens(input_ids_N, document_N, position_N, row_N, position_N % length, length_B, ends_B)


def shortened(whole: RowTokens, epoch: int = 0, share: float = 0.3, word_share: float = 0.1) -> RowTokens:
    dropout = WordDropout.of(WordDropoutParams(text_share=share, word_share=word_share), 7, SPELLING)
    assert dropout is not None
    return dropout.shorten(whole, epoch)


def kept(whole: RowTokens, short: RowTokens) -> np.ndarray:
    """Return whether each token of `whole` is in `short`."""
    return np.isin(whole.document_N * 100 + whole.position_N, short.document_N * 100 + short.position_N)


def test_a_tenth_of_the_words_is_deleted_whole_in_three_texts_of_ten() -> None:
    """What stays closes the gaps, and keeps its positions."""
    whole = rows()
    short = shortened(whole)
    is_kept_N = kept(whole, short)
    lost_D = np.bincount(whole.document_N, ~is_kept_N) > 0
    assert lost_D.mean() == pytest.approx(0.3, abs=0.05)
    assert (~is_kept_N)[lost_D[whole.document_N]].mean() == pytest.approx(0.1, abs=0.01)
    continues_N = (whole.input_ids_N % 3 == 0) & (whole.place_N > 0) & ~np.isin(whole.input_ids_N, [0, 1, 2, 3, 4])
    inside_N = continues_N[1:] & ~np.isin(whole.input_ids_N[:-1], [0, 1, 2, 3, 4, 500])
    assert inside_N.sum() > 10_000
    assert (is_kept_N[1:] == is_kept_N[:-1])[inside_N].all()
    assert (short.position_N == whole.position_N[is_kept_N]).all()
    assert short.length_B.sum() == len(short.input_ids_N) + NUM_BOUNDARY_TOKENS * len(short.length_B)
    for row in np.flatnonzero(short.length_B < whole.length_B)[:5].tolist():
        padded = short.padded(short.input_ids_N, SPECIAL_IDS)[row].tolist()
        content = whole.input_ids_N[is_kept_N & (whole.row_N == row)].tolist()
        assert padded == [2, *content, 3] + [0] * (short.longest - len(content) - 2)
    most = shortened(rows(length=2), share=1.0, word_share=0.9)
    assert most.length_B.min() > NUM_BOUNDARY_TOKENS, "a row never loses all its words"


def test_it_is_off_without_texts_and_refused_without_marks_of_words() -> None:
    unmarked = Spelling(SPELLING.ids, SPELLING.ends, marks_words=False)
    assert WordDropout.of(WordDropoutParams(text_share=0.0, word_share=0.1), 7, unmarked) is None
    with pytest.raises(ParamsError, match=r"(?s)word_dropout.*text_share: 0"):
        WordDropout.of(WordDropoutParams(text_share=0.3, word_share=0.1), 7, unmarked)


def test_a_deletion_depends_on_epoch_and_identity_alone() -> None:
    whole = rows()
    one, other = shortened(whole), shortened(whole, epoch=1)
    assert (kept(whole, one) != kept(whole, other)).any()
    half = rows(length=25)  # other rows: only the words that a row's end cuts may differ
    assert (kept(whole, one) != kept(half, shortened(half))).mean() < 0.01


def test_batches_of_a_training_hold_the_shorter_rows(prepare: Prepare) -> None:
    whole, short = (
        next(prepare(word_dropout={"text_share": share, "word_share": 0.5}).loop.batches_from(0, 0))
        for share in (0.0, 1.0)
    )
    assert short.num_tokens == int((short.inputs.input_ids_BL != 0).sum())
    assert 0.4 < short.num_tokens / whole.num_tokens < 0.7


def test_other_document_keys_give_another_checkpoint_folder(tokens: Path, prepare: Prepare) -> None:
    before = prepare().loop.checkpoints.folder
    np.save(documents_path(tokens, "train"), KEYS[::-1])
    assert prepare().loop.checkpoints.folder != before
