"""What several rooms' tests need: token shards and params small enough to train on in a second."""

import json
import logging
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozeline.held_out import EntitySpan, HeldOut, write_held_out
from clozeline.params import PretrainParams, read_params
from clozeline.tokens.shard_writer import ShardWriter
from clozeline.tokens.shards import SpecialIds, TokensInfo
from tests.ports import held_ports
from tests.tiny_models import SENTENCES, outspoken, sentence_tokenizer, small_bert, small_modernbert

PROJECT = Path(__file__).parents[1]
VOCAB_SIZE = 64
SPECIAL_IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, every=(0, 1, 2, 3, 4))

Documents = Sequence[np.ndarray]
TokensMaker = Callable[[Documents, Documents], Path]


def pytest_configure() -> None:
    """Let the processes that tests start hear Ctrl-C and SIGHUP: a shell that runs us in the background, or `nohup`,
    has switched them off. Beside other workers, each has its share of the cores, with what its tests start.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if num_workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        assert "torch" not in sys.modules, "it has read these variables already"
        os.environ.setdefault("OMP_NUM_THREADS", str(max(num_cores() // int(num_workers), 1)))
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`. Each worker imports all that is tested, so more than a few cost more memory than they save time."""
    return min(num_cores(), 4)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order in which workers are given them.

    Prefect's threads outlive the flow that began them, and what is forked from their process ends in an error: the
    tests that run flows in this process come last. Otherwise the files with the most slow tests come first, so that
    no worker has a long one left when the others are done.
    """
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path.parts[-2] == "flows", -num_slow[item.path]))


@pytest.fixture(scope="session")
def free_port() -> Iterator[Callable[[], int]]:
    """`free_port()`: a port of the loopback for a server that a test starts, until the session ends."""
    with held_ports() as free_port:
        yield free_port


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    """A command takes cores for as long as its process lives; here the process lives on."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    yield
    if torch:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_log_levels() -> Iterator[None]:
    """So it is with the levels that a command sets."""
    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    levels = [(logger, logger.level) for logger in [logging.root, *loggers]]
    yield
    for logger, level in levels:
        logger.setLevel(level)
    for name, later in logging.root.manager.loggerDict.items():
        if isinstance(later, logging.Logger) and later not in loggers and name.startswith("clozeline"):
            later.setLevel(logging.NOTSET)


@pytest.fixture
def make_tokens(tmp_path: Path, made_tiny_tokenizer: Path) -> TokensMaker:
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
            tokenizer_sha256=sha256((made_tiny_tokenizer / "tokenizer.json").read_bytes()).hexdigest(),
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
def tiny_tokenizer(made_tiny_tokenizer: Path, tmp_path: Path) -> Path:
    """A tokenizer folder for the tiny language: words w5 … w63."""
    return shutil.copytree(made_tiny_tokenizer, tmp_path / "tokenizer")


@pytest.fixture(scope="session")
def made_tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tiny_tokenizer` is a copy of."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(5, VOCAB_SIZE))]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder = tmp_path_factory.mktemp("tiny") / "tokenizer"
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_pretraining() -> PretrainParams:
    """The project's own pretrain section, shrunk."""
    params = read_params(PROJECT / "params.yaml").pretrain
    model = params.model.model_copy(
        update={
            "size": None,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 64,
        }
    )
    return params.model_copy(
        update={
            "model": model,
            "max_length": 32,
            "batch_tokens": 256,
            "masking": params.masking.model_copy(update={"mask_rate": 0.2, "final_mask_rate": None}),
            "optimizer": params.optimizer.model_copy(update={"learning_rate": 0.02}),
            "schedule": params.schedule.model_copy(update={"warmup_steps": 5}),
            "steps": 40,
            "tokens": None,
            "validation": params.validation.model_copy(update={"every_steps": None}),
            "log_every_steps": 5,
            "checkpoint_every_steps": 10,
            "num_checkpoints": 2,
            "num_threads": 1,
        }
    )


LABELS = ("jax", "numpy", "torch")
SaveTrained = Callable[[Any], Path]
ExportModel = Callable[..., Path]


@pytest.fixture(scope="session")
def save_trained(tmp_path_factory: pytest.TempPathFactory) -> SaveTrained:
    """`save_trained(model)` writes a transformers model beside a tokenizer, as `pretrain` and `finetune` do."""
    tokenizer = sentence_tokenizer()

    def save(model: Any) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def small_encoder(save_trained: SaveTrained) -> Path:
    """A folder as `pretrain` writes it: a ModernBERT with random weights."""
    import torch
    from transformers import ModernBertForMaskedLM

    torch.manual_seed(0)
    return save_trained(ModernBertForMaskedLM(small_modernbert()))


@pytest.fixture(scope="session")
def small_classifier(save_trained: SaveTrained) -> Path:
    """A folder as `finetune` writes it: a ModernBERT with random weights that tells `LABELS` apart."""
    import torch
    from transformers import ModernBertForSequenceClassification

    config = small_modernbert()
    config.id2label = dict(enumerate(LABELS))
    config.label2id = {label: number for number, label in enumerate(LABELS)}
    torch.manual_seed(0)
    return save_trained(ModernBertForSequenceClassification(config))


@pytest.fixture(scope="session")
def small_tagger(save_trained: SaveTrained) -> Path:
    """A folder as `finetune` writes it: a BERT with random weights that tags words, and sentences it was chosen by."""
    import torch
    from transformers import BertForTokenClassification

    config = small_bert()
    config.id2label = dict(enumerate(("O", "B-thing", "I-thing", "B-act", "I-act")))
    config.label2id = {tag: number for number, tag in config.id2label.items()}
    torch.manual_seed(0)
    folder = save_trained(outspoken(BertForTokenClassification(config)))
    starts = [sentence.find(" ") + 1 for sentence in SENTENCES]
    entities = [(EntitySpan(start=start, end=start + 9, type="thing"),) for start in starts]
    write_held_out(
        folder, [HeldOut(text=text, entities=spans) for text, spans in zip(SENTENCES, entities, strict=True)]
    )
    return folder


@pytest.fixture(scope="session")
def small_answerer(save_trained: SaveTrained) -> Path:
    """A folder as `finetune` writes it: a BERT with random weights that answers questions, and some of them."""
    import torch
    from transformers import BertForQuestionAnswering

    config = small_bert()
    config.no_answer_margin = 0.25
    torch.manual_seed(0)
    folder = save_trained(outspoken(BertForQuestionAnswering(config)))
    config_file = folder / "tokenizer_config.json"
    told = json.loads(config_file.read_text(encoding="utf-8"))
    told["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]  # as `heads.save` has it
    config_file.write_text(json.dumps(told), encoding="utf-8")
    questions = [("what reads", "the encoder"), ("what cuts", "a tokenizer"), ("what is empty", "the file")]
    context = " ".join(SENTENCES)
    write_held_out(folder, [HeldOut(text=asked, second=context, right=(right,)) for asked, right in questions])
    return folder


@pytest.fixture(scope="session")
def small_topics(save_trained: SaveTrained) -> Path:
    """A folder as `finetune` writes it: a BERT with random weights that gives a text any number of `LABELS`."""
    import torch
    from transformers import BertForSequenceClassification

    config = small_bert()
    config.id2label, config.label2id = dict(enumerate(LABELS)), {label: n for n, label in enumerate(LABELS)}
    config.problem_type, config.decision_threshold = "multi_label_classification", 0.45
    torch.manual_seed(0)
    folder = save_trained(outspoken(BertForSequenceClassification(config)))
    write_held_out(folder, [HeldOut(text=text, right=LABELS[: n % 3]) for n, text in enumerate(SENTENCES)])
    return folder


@pytest.fixture(scope="session")
def validation_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Parquet file that export compares INT8 and fp32 on: 40 labelled texts of 6 to 40 words."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    words = " ".join(SENTENCES).split()
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(words, size=random.integers(6, 40))) for _ in range(40)]
    path = tmp_path_factory.mktemp("texts") / "validation.parquet"
    pq.write_table(pa.table({"text": texts, "source": [LABELS[number % 3] for number in range(40)]}), path)
    return path


@pytest.fixture(scope="session")
def export_model(tmp_path_factory: pytest.TempPathFactory, validation_texts: Path) -> ExportModel:
    """`export_model(folder, **params)` runs the export stage; the package's folder, metrics.json beside it."""
    from clozeline.stages import export

    def run(model: Path, **changes: object) -> Path:
        folder = tmp_path_factory.mktemp("dist")
        params = read_params(PROJECT / "params.yaml").export
        # Weights are random here: what such a model gets right, it does by chance.
        gates = params.gates.model_copy(update={"min_agreement": 0.9, "min_metric_ratio": 0.0})
        params = params.model_copy(update={"gates": gates, "num_agreement_texts": 32, **changes})
        lock = folder / "requirements.lock"
        lock.write_text("numpy==2\n", encoding="utf-8")
        export.run(
            params,
            model=model,
            texts=validation_texts,
            lock=lock,
            out=folder / "model",
            metrics=folder / "metrics.json",
        )
        return folder / "model"

    return run


@pytest.fixture(scope="session")
def encoder_package(export_model: ExportModel, small_encoder: Path) -> Path:
    """`small_encoder`, exported."""
    return export_model(small_encoder)


@pytest.fixture(scope="session")
def classifier_package(export_model: ExportModel, small_classifier: Path) -> Path:
    """`small_classifier`, exported."""
    return export_model(small_classifier)


@pytest.fixture(scope="session")
def tagger_package(export_model: ExportModel, small_tagger: Path) -> Path:
    """`small_tagger`, exported."""
    return export_model(small_tagger)


@pytest.fixture(scope="session")
def answerer_package(export_model: ExportModel, small_answerer: Path) -> Path:
    """`small_answerer`, exported."""
    return export_model(small_answerer)


@pytest.fixture(scope="session")
def topics_package(export_model: ExportModel, small_topics: Path) -> Path:
    """`small_topics`, exported."""
    return export_model(small_topics)
