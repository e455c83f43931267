"""A tiny corpus and a tiny training on it."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from clozeline.lab.experiment import Corpus
from clozeline.params.editing import Config
from clozeline.params.pretraining import PretrainParams
from tests.evaluation.conftest import causal_model, model
from tests.make.collated_rows import Rows, byte_level_tokenizer, sentences, wordpiece_tokenizer
from tests.make.projects import TINY_EVALUATION
from tests.make.texts import write_clean_text


@pytest.fixture
def corpus(tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path) -> Corpus:
    """Text of the tiny language, with shards that a model can learn it from."""
    folder, clean = tmp_path / "corpus", tmp_path / "corpus/data/clean"
    clean.mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "data/tokens").symlink_to(tiny_tokens)
    (folder / "models/tokenizer").symlink_to(tiny_tokenizer)
    texts = [" ".join(f"w{number}" for number in range(start, start + 12)) for start in range(5, 45)]
    for split in ("validation", "holdout"):
        write_clean_text(clean / f"{split}.parquet", texts)
    return Corpus(folder, "a hash")


@pytest.fixture
def config(tiny_pretraining: PretrainParams) -> Config:
    """Params of a training that takes a tenth of a second."""
    made = Config()
    made["finetune"], made["export"]["models"] = {}, {}
    made["pretrain"] = {**tiny_pretraining.model_dump(), "checkpoint_every_steps": 10}
    made["evaluate"] = dict(TINY_EVALUATION)
    return made


@pytest.fixture(scope="session")
def wordpiece() -> PreTrainedTokenizerFast:
    return wordpiece_tokenizer()


@pytest.fixture(scope="session")
def byte_level() -> PreTrainedTokenizerFast:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def rows(wordpiece: PreTrainedTokenizerFast) -> Rows:
    return [{"input_ids": ids} for ids in wordpiece(sentences(400, 1))["input_ids"]]


__all__ = ["causal_model", "model"]
