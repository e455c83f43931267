"""Of old text, a training that continues sees the share that was asked for, chosen by seed and document alone."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from clozeline.language.objectives import Split
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.feeding import Replay
from clozeline.records.reading.tokens import documents_path
from clozeline.system.errors import ArtifactError

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
