"""What several rooms' tests need: token shards and params small enough to train on in a second."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from clozeline.params import PretrainParams, read_params
from clozeline.tokens.shard_writer import ShardWriter
from clozeline.tokens.shards import SpecialIds, TokensInfo

PROJECT = Path(__file__).parents[1]
VOCAB_SIZE = 64
SPECIAL_IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, every=(0, 1, 2, 3, 4))

Documents = Sequence[np.ndarray]
TokensMaker = Callable[[Documents, Documents], Path]


@pytest.fixture
def make_tokens(tmp_path: Path) -> TokensMaker:
    """`make_tokens(train, validation)` writes shards of these documents and returns their folder."""

    def make(train: Documents, validation: Documents) -> Path:
        folder = tmp_path / "tokens"
        folder.mkdir()
        splits = {}
        for split, documents in (("train", train), ("validation", validation)):
            lengths_D = np.array([len(document) for document in documents])
            with ShardWriter(folder, split, "uint16", shard_tokens=10_000) as writer:
                writer.append(np.concatenate(documents), lengths_D, lengths_D * 4)
                splits[split] = writer.finish()
        TokensInfo(
            format_version=1,
            vocab_size=VOCAB_SIZE,
            dtype="uint16",
            tokenizer_sha256="0" * 64,
            special_ids=SPECIAL_IDS,
            splits=splits,
        ).write(folder)
        return folder

    return make


@pytest.fixture
def tiny_tokens(make_tokens: TokensMaker) -> Path:
    """A language that can be learned: after each word comes the next one, around the vocabulary."""
    return make_tokens(counting_documents(300, seed=0), counting_documents(40, seed=1))


def counting_documents(num_documents: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    ordinary = VOCAB_SIZE - len(SPECIAL_IDS.every)
    return [
        (random.integers(ordinary) + np.arange(random.integers(5, 40))) % ordinary + len(SPECIAL_IDS.every)
        for _ in range(num_documents)
    ]


@pytest.fixture
def tiny_tokenizer(tmp_path: Path) -> Path:
    """A tokenizer folder for the tiny language: words w5 … w63."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(5, VOCAB_SIZE))]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def tiny_pretraining() -> PretrainParams:
    """The project's own pretrain section, shrunk."""
    params = read_params(PROJECT / "params.yaml").pretrain
    model = params.model.model_copy(
        update={"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "max_position_embeddings": 64}
    )
    return params.model_copy(
        update={
            "model": model,
            "max_length": 32,
            "batch_tokens": 256,
            "optimizer": params.optimizer.model_copy(update={"learning_rate": 0.02}),
            "schedule": params.schedule.model_copy(update={"warmup_steps": 5}),
            "steps": 40,
            "tokens": None,
            "log_every_steps": 5,
            "checkpoint_every_steps": 10,
            "num_checkpoints": 2,
            "num_threads": 1,
        }
    )
