"""Models with random weights as the stages leave them, and their packages: fixtures of the whole suite, made once."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from clozeline.encoder.families.layout import LanguageHead, TokenIds
from clozeline.exporting import ladder
from clozeline.params.delivery import ExportGates
from clozeline.params.model import ModelParams
from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import read_params
from clozeline.records.finetune.scored_items import EntitySpan, HeldOut, write_held_out
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from tests.make.session import MadeOnce

SENTENCES = [
    "the encoder reads a sentence and fills in the word that is missing",
    "a tokenizer cuts text into pieces that the model has seen before",
    "returns a tensor of the same shape, with padded rows at the end",
    "raises an error if the file is empty or its hash is not the one given",
    "small models answer quickly on ordinary processors",
]


def word_pieces(texts: Sequence[str], vocab_size: int) -> dict[str, int]:
    """Ids of so many WordPieces of lower-case `texts`, or fewer, after the special ones; the same in every process.

    Left to itself, the trainer numbers `##a`, `##b` … as it meets them in a hash map, and breaks ties by these numbers.
    """
    from tokenizers import BertWordPieceTokenizer

    letters = sorted(set("".join(texts)) - {" "})
    trainer = BertWordPieceTokenizer()
    trainer.train_from_iterator(
        texts,
        vocab_size=vocab_size,
        initial_alphabet=letters,
        special_tokens=[*SPECIAL_TOKENS.values(), *(f"##{letter}" for letter in letters if letter.isalnum())],
        show_progress=False,
    )
    pieces: dict[str, int] = trainer.get_vocab()
    return pieces


def sentence_tokenizer() -> Any:
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(vocab=word_pieces(SENTENCES, vocab_size=200))._tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )


SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def small_modernbert(labels: Sequence[str] = ()) -> Any:
    from transformers import ModernBertConfig

    window = {"max_position_embeddings": 64, "global_attn_every_n_layers": 2, "local_attention": 16}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    return ModernBertConfig(vocab_size=90, reference_compile=False, **SHAPE, **window, **ids, **_named(labels))


def small_bert(labels: Sequence[str] = (), **more: object) -> Any:
    """With an embedding for the second text of a pair."""
    from transformers import BertConfig

    sizes = {"vocab_size": 200, "max_position_embeddings": 128, "pad_token_id": 0, **SHAPE}
    return BertConfig(**sizes, **_named(labels), **more)


def _named(labels: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a configuration whose model gives these labels; none for a model without."""
    number_of = {label: number for number, label in enumerate(labels)}
    return {"id2label": dict(enumerate(labels)), "label2id": number_of} if labels else {}


def with_random_weights(kind: str, config: Any) -> Any:
    """Return a model of the class `kind` of transformers, the same in every process."""
    import torch
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, kind)(config)


def outspoken(model: Any) -> Any:
    """`model` with larger weights in its first and last layer: with random weights, its output is nearly equal for
    every token."""
    import torch

    head = next(layer for layer in reversed(list(model.modules())) if isinstance(layer, torch.nn.Linear))
    table = model.get_input_embeddings()
    with torch.no_grad():
        table.weight *= 50
        if (
            head.weight is not table.weight
        ):  # tied ones are large already: float32 would round off more than parity allows
            head.weight *= 20
    return model


_OF_PARAMS = ("min_agreement", "min_metric_ratio")


@dataclass(frozen=True)
class Limits:
    """Gates of params.yaml, and constants of exporting/ladder.py by their names in lower case."""

    gates: ExportGates
    constants: Mapping[str, float] = field(default_factory=dict)

    def but(self, **changes: float) -> Self:
        """Return the same with other values for some limits."""
        gates = {name: limit for name, limit in changes.items() if name in _OF_PARAMS}
        constants = {name: limit for name, limit in changes.items() if name not in _OF_PARAMS}
        return type(self)(self.gates.model_copy(update=gates), {**self.constants, **constants})

    @contextmanager
    def applied(self) -> Iterator[ExportGates]:
        """Give the gates; inside, the constants have these values."""
        with pytest.MonkeyPatch.context() as patched:
            for name, limit in self.constants.items():
                patched.setattr(ladder, name.upper(), limit)
            yield self.gates


OPEN = Limits(
    ExportGates(min_agreement=0, min_metric_ratio=0),
    {
        "min_agreement_texts": 1,
        "min_different_answers": 1,
        "min_metric_items": 1,
        "min_embedding_cosine": 0,
        "min_token_cosine": 0,
        "max_batch_flips": 1,
        "min_batch_cosine": 0,
    },
)
# Weights are random, so right answers are chance, and some models give one answer to every text.
# The limits of params.yaml, as far as models with random weights can meet them.
RANDOM = Limits(
    ExportGates(min_agreement=0.9, min_metric_ratio=0),
    {"min_agreement_texts": 1, "min_different_answers": 1, "min_metric_items": 1},
)


PROJECT = Path(__file__).parents[2]
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
    return save_trained(with_random_weights("ModernBertForMaskedLM", small_modernbert()))


@pytest.fixture(scope="session")
def small_classifier(save_trained: SaveTrained) -> Path:
    """A folder as `finetune` writes it: a ModernBERT with random weights that tells `LABELS` apart."""
    return save_trained(with_random_weights("ModernBertForSequenceClassification", small_modernbert(LABELS)))


@pytest.fixture(scope="session")
def small_tagger(save_trained: SaveTrained) -> Path:
    """A folder as `finetune` writes it: a BERT with random weights that tags words, and sentences it was chosen by."""
    config = small_bert(("O", "B-thing", "I-thing", "B-act", "I-act"))
    folder = save_trained(outspoken(with_random_weights("BertForTokenClassification", config)))
    starts = [sentence.find(" ") + 1 for sentence in SENTENCES]
    entities = [(EntitySpan(start=start, end=start + 9, type="thing"),) for start in starts]
    items = [HeldOut(text=text, entities=spans) for text, spans in zip(SENTENCES, entities, strict=True)]
    write_held_out(folder, items)
    return folder


@pytest.fixture(scope="session")
def small_answerer(save_trained: SaveTrained) -> Path:
    """A folder as `finetune` writes it: a BERT with random weights that answers questions, and some of them."""
    config = small_bert(no_answer_margin=0.25)
    folder = save_trained(outspoken(with_random_weights("BertForQuestionAnswering", config)))
    config_file = folder / "tokenizer_config.json"
    told = json.loads(config_file.read_text(encoding="utf-8"))
    told["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]  # as `heads.save` writes it
    config_file.write_text(json.dumps(told), encoding="utf-8")
    questions = [("what reads", "the encoder"), ("what cuts", "a tokenizer"), ("what is empty", "the file")]
    context = " ".join(SENTENCES)
    write_held_out(folder, [HeldOut(text=asked, second=context, right=(right,)) for asked, right in questions])
    return folder


@pytest.fixture(scope="session")
def small_topics(save_trained: SaveTrained) -> Path:
    """A folder as `finetune` writes it: a BERT with random weights that gives a text any number of `LABELS`."""
    config = small_bert(LABELS, problem_type="multi_label_classification", decision_threshold=0.45)
    folder = save_trained(outspoken(with_random_weights("BertForSequenceClassification", config)))
    write_held_out(folder, [HeldOut(text=text, right=LABELS[: n % 3]) for n, text in enumerate(SENTENCES)])
    return folder


@pytest.fixture(scope="session")
def small_scorer(save_trained: SaveTrained) -> Path:
    """A folder as `finetune` writes it: a ModernBERT without a head, with random weights, and scored pairs."""
    folder = save_trained(with_random_weights("ModernBertModel", small_modernbert()))
    pairs = [(one, other) for one in SENTENCES for other in SENTENCES if one < other]
    items = [HeldOut(text=one, second=other, score=n / len(pairs)) for n, (one, other) in enumerate(pairs)]
    write_held_out(folder, items)
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


def run_export(model: Path, texts: Path, folder: Path, limits: Limits = RANDOM, **changes: object) -> Path:
    """Run the export stage; the package's folder in `folder`, metrics.json beside it."""
    from clozeline.exporting import quantization
    from clozeline.stages import export

    params = read_params(PROJECT / "params.yaml").export
    lock = folder / "requirements.lock"
    lock.write_text("numpy==2\n", encoding="utf-8")
    with limits.applied() as gates, pytest.MonkeyPatch.context() as patched:
        patched.setattr(quantization, "NUM_CALIBRATION_TEXTS", 8)
        params = params.model_copy(update={"gates": gates, "num_agreement_texts": 32, **changes})
        export.run(params, model=model, texts=texts, lock=lock, out=folder / "model", metrics=folder / "metrics.json")
    return folder / "model"


@pytest.fixture(scope="session")
def operators_made_once() -> Iterator[None]:
    """Let exports in this process share torch's table of operators, which they only read.

    torch makes it again for each export, for 0.5 s of processor time.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture(scope="session")
def export_model(
    tmp_path_factory: pytest.TempPathFactory, validation_texts: Path, made_once: MadeOnce, operators_made_once: None
) -> ExportModel:
    """`export_model(folder, **params)` runs the export stage; the package's folder, metrics.json beside it.

    To trace a model takes seconds: each is traced once for each opset, and its fp32 graph is used again.
    """
    from clozeline.exporting.to_onnx import export_onnx

    def export_once(trained: Any, opset: int, path: Path) -> list[str]:
        def trace() -> Path:
            folder = tmp_path_factory.mktemp("traced")
            inputs = export_onnx(trained, opset, folder / "model.onnx")
            (folder / "inputs.json").write_text(json.dumps(inputs), encoding="utf-8")
            return folder

        traced = made_once(f"traced-{_digest(trained.folder)}-{opset}", trace)
        shutil.copyfile(traced / "model.onnx", path)
        inputs: list[str] = json.loads((traced / "inputs.json").read_text(encoding="utf-8"))
        return inputs

    def run(model: Path, **changes: object) -> Path:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("clozeline.exporting.packaging.export_onnx", export_once)
            return run_export(model, validation_texts, tmp_path_factory.mktemp("dist"), **changes)

    return run


def _digest(folder: Path) -> str:
    """Return a hash of the name and the bytes of every file in a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    told = b"".join(str(file.relative_to(folder)).encode() + sha256(file.read_bytes()).digest() for file in files)
    return sha256(told).hexdigest()


@pytest.fixture(scope="session")
def exported_once(export_model: ExportModel, made_once: MadeOnce) -> ExportModel:
    """`exported_once(folder)` is `export_model(folder)` of whichever worker asked first."""

    def run(model: Path) -> Path:
        return made_once(f"package-{_digest(model)}", lambda: export_model(model).parent) / "model"

    return run


def _exported(model: str) -> Any:
    """Return the fixture `MODEL_package`: `small_MODEL`, exported."""

    @pytest.fixture(scope="session", name=f"{model}_package")
    def package(exported_once: ExportModel, request: pytest.FixtureRequest) -> Path:
        return exported_once(request.getfixturevalue(f"small_{model}"))

    return package


encoder_package, classifier_package, tagger_package = map(_exported, ("encoder", "classifier", "tagger"))
answerer_package, topics_package, scorer_package = map(_exported, ("answerer", "topics", "scorer"))

VOCAB_SIZE = 64

ParamsMaker = Callable[..., ModelParams]


@pytest.fixture(scope="session")
def ids() -> TokenIds:
    return TokenIds(VOCAB_SIZE, pad_id=0, cls_id=2, sep_id=3)


@pytest.fixture(scope="session")
def params_of() -> ParamsMaker:
    """`params_of(family, **knobs)`: the project's own section, with a small shape."""
    project = read_params(PROJECT / "params.yaml").pretrain.model

    def params_of(family: str, **knobs: object) -> ModelParams:
        changes = {"family": family, "size": None, "max_position_embeddings": 64, **SHAPE, **knobs}
        return ModelParams.model_validate(project.model_dump() | changes)

    return params_of


@cache
def _own_pretraining() -> PretrainParams:
    return read_params(PROJECT / "params.yaml").pretrain


def started(
    name: str,
    params: ModelParams,
    head: LanguageHead,
    ids: TokenIds,
    *,
    seed: int,
    max_length: int,
    tokenizer: Path | None = None,
    keeps_dropout: bool = False,
) -> Any:
    """Return the model to train on from a folder or a name on the hub."""
    from clozeline.pretraining.starting import start_from

    steps = {"steps": 0} if keeps_dropout else {}
    changes = {"start": name, "model": params, "objective": head, "max_length": max_length, **steps}
    return start_from(_own_pretraining().model_copy(update=changes), ids, seed, tokenizer)


NAME, OLD, NEW = "someone/model", "0a" * 20, "0b" * 20


class MovingHub:
    """The hub's cache with `files` in commit `OLD` of `NAME`, and nothing in `NEW`."""

    def __init__(self, cache: Path, files: Path) -> None:
        self._cache = cache
        repository = cache / f"models--{NAME.replace('/', '--')}"
        self._branch = repository / "refs" / "main"
        self._branch.parent.mkdir(parents=True)
        self._branch.write_text(OLD)
        self.files = shutil.copytree(files, repository / "snapshots" / OLD)
        (repository / "snapshots" / NEW).mkdir()

    def answer_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Answer every request of the hub's client and of transformers. Use it with the fixture `offline_hub`."""
        from huggingface_hub import hf_hub_download

        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(self._cache))
        for place in ("huggingface_hub", "transformers.utils.hub"):
            monkeypatch.setattr(f"{place}.hf_hub_download", self._moving_after(hf_hub_download))

    def _moving_after(self, get: Callable[..., str]) -> Callable[..., str]:
        def answer(*where: object, revision: str | None = None, **more: object) -> str:
            found = get(*where, revision=revision, **more)
            if revision not in (OLD, NEW):
                self._branch.write_text(NEW)
            return found

        return answer
