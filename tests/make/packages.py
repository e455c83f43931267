"""Packages as `dist/` holds them, small enough to be made in milliseconds: one for each task.

Their graphs have one embedding table and one matrix: a text's answers depend on its words, and nothing is trained.
B texts of a batch, L tokens, M masks of a batch, H hidden, V vocabulary, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
from huggingface_hub import ModelCard
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from clozeline.exporting.forms import add_likeliest
from clozeline.records import package as records
from clozeline.records.package import FILES, Manifest, QuantizationScheme, Rung, Task

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "list", "of", "return", "file", "open", "##s", "##ed", *"abcdefghijklmnopqrstuvwxyz", ".", "é", "##é"]
VOCABULARY = [*SPECIALS, *WORDS, *(f"##{letter}" for letter in "abcdefghijklmnopqrtuvwxyz")]
LABELS = ("torch", "numpy", "python")
TOPICS = ("sport", "money", "health", "travel")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
HIDDEN_SIZE = 8
MAX_LENGTH = 64
INPUTS = ("input_ids", "attention_mask")
Outputs = Mapping[str, Sequence[str | int]]


def write_encoder(folder: Path, *, num_layers: int = 0, width: int = 0) -> None:
    """Write an encoder with `num_layers` matrices of `width` by `width` after the embedding table.

    `logits` come at the masks only, from the mean of the text; `sentence_embedding` is that mean, normalized.
    """
    nodes = f"""{_EMBEDDING}
        hidden_BLH = Add(embedded_BLH, mean_B1H)
        masked_BL = Equal(input_ids, mask_id)
        places_2M = NonZero(masked_BL)
        places_M2 = Transpose<perm=[1, 0]>(places_2M)
        hidden_MH = GatherND(hidden_BLH, places_M2)
        logits = MatMul(hidden_MH, weights)"""
    outputs: Outputs = {"logits": ["masks", len(VOCABULARY)], "sentence_embedding": ["batch", HIDDEN_SIZE]}
    graph = _graph(nodes, outputs, num_outputs=len(VOCABULARY))
    _deepen(graph, num_layers, width)
    add_likeliest(graph, len(VOCABULARY), "masks")
    write_package(folder, "fill-mask", graph, labels=())


def write_completer(folder: Path) -> None:
    """Write a causal language model: the next token depends on the last one and on the mean of all."""
    nodes = f"""{_EMBEDDING}
        length_B1 = ReduceSum<keepdims=1>(attention_mask, axis_1)
        last_B1 = Sub(length_B1, axis_1)
        last_BH = GatherND<batch_dims=1>(embedded_BLH, last_B1)
        mean_BH = Squeeze(mean_B1H, axis_1)
        hidden_BH = Add(last_BH, mean_BH)
        logits = MatMul(hidden_BH, weights)"""
    outputs: Outputs = {"logits": ["batch", len(VOCABULARY)], "sentence_embedding": ["batch", HIDDEN_SIZE]}
    graph = _graph(nodes, outputs, num_outputs=len(VOCABULARY))
    add_likeliest(graph, len(VOCABULARY), "batch")
    write_package(folder, "text-generation", graph, labels=())


def write_encoder_of_another_mask(folder: Path) -> None:
    """Write an encoder whose mask token is `<mask>`."""
    write_encoder(folder)
    for name in (FILES.tokenizer, FILES.manifest):
        text = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace("[MASK]", "<mask>"), encoding="utf-8")
    manifest = records.read_manifest(folder)
    files = {**manifest.files, FILES.tokenizer: records.record_of(folder / FILES.tokenizer)}
    told = manifest.model_copy(update={"files": files}).model_dump_json()
    (folder / FILES.manifest).write_text(told, encoding="utf-8")


def write_embedder(folder: Path, *, num_layers: int = 0, width: int = 0) -> None:
    """Write a model that embeds as the encoder does, but fills no masks; layers as in `write_encoder`."""
    vectors = {"sentence_embedding": ["batch", HIDDEN_SIZE], "last_hidden_state": ["batch", "length", HIDDEN_SIZE]}
    graph = _graph(f"{_EMBEDDING}\nlast_hidden_state = Identity(embedded_BLH)", vectors, num_outputs=HIDDEN_SIZE)
    _deepen(graph, num_layers, width)
    write_package(folder, "feature-extraction", graph, labels=())


def classifier_graph(num_labels: int = len(LABELS)) -> onnx.ModelProto:
    nodes = f"{_MEAN}\nmean_BH = Squeeze(mean_B1H, axis_1)\nlogits = MatMul(mean_BH, weights)"
    return _graph(nodes, {"logits": ["batch", num_labels]}, num_outputs=num_labels)


def write_classifier(folder: Path) -> None:
    """Write a classifier with the labels LABELS."""
    write_package(folder, "text-classification", classifier_graph(), labels=LABELS)


def write_topics(folder: Path) -> None:
    """Write a classifier that gives a text any number of TOPICS: those that score above 0.4."""
    facts = {"label_scores": "sigmoid", "decision_threshold": 0.4}
    write_package(folder, "text-classification", classifier_graph(len(TOPICS)), labels=TOPICS, **facts)


def write_ranker(folder: Path) -> None:
    """Write a pair model that scores a pair of texts with one number."""
    facts = {"label_scores": "sigmoid", "decision_threshold": 0.5, "reads_pairs": True, "types_tell_pairs": True}
    write_package(folder, "text-classification", classifier_graph(1), labels=("LABEL_0",), **facts)


def write_entailer(folder: Path, labels: Sequence[str] = ("contradiction", "neutral", "entailment")) -> None:
    """Write a pair model with a label for entailment."""
    write_package(folder, "text-classification", classifier_graph(len(labels)), labels=labels, reads_pairs=True)


def write_tagger(folder: Path) -> None:
    """Write a tagger that tags each token regardless of the tokens around it."""
    nodes = f"{_TOKENS}\nlogits = MatMul(embedded_BLH, weights)"
    graph = _graph(nodes, {"logits": ["batch", "length", len(TAGS)]}, num_outputs=len(TAGS))
    write_package(folder, "token-classification", graph, labels=TAGS)


def write_answerer(folder: Path, no_answer_margin: float | None = None) -> None:
    """Write a question answerer that points at two tokens regardless of the question."""
    nodes = f"""{_TOKENS}
        ends_BL2 = MatMul(embedded_BLH, weights)
        start_BL1, end_BL1 = Split<axis=2, num_outputs=2>(ends_BL2)
        start_logits = Squeeze(start_BL1, axis_2)
        end_logits = Squeeze(end_BL1, axis_2)"""
    axes = ["batch", "length"]
    graph = _graph(nodes, {"start_logits": axes, "end_logits": axes}, num_outputs=2)
    facts = {"types_tell_pairs": True, "no_answer_margin": no_answer_margin}
    write_package(folder, "question-answering", graph, labels=(), **facts)


SCHEME = QuantizationScheme(
    activations="uint8 per token, dynamic",
    weights="int8 per column, symmetric",
    reduce_range=True,
    embeddings="float32",
    exact_matmuls=(),
    **dict.fromkeys(("quantized_matmuls", "quantized_embeddings", "quantized_activations"), 0),
)


def rung_of(scheme: QuantizationScheme = SCHEME, agreement: float = 0.99, **facts: object) -> Rung:
    """Return a rung of the INT8 ladder with this agreement; all else is as in fp32. `facts` replace its fields."""
    low, whole, none = (
        records.Measured(value=it, low=it, high=it, num_items=500, num_texts=500) for it in (agreement, 1.0, 0.0)
    )
    metric = {"metric": "halves found", "fp32_metric": 0.8, "int8_metric": 0.8, "metric_ratio": whole}
    vectors = {"embedding_cosine_mean": 1.0, "embedding_cosine_min": 1.0, "batch_cosine_min": 1.0, "batch_flips": none}
    counts = {"size_bytes": 1000, "different_answers": 40, "saturation": 0.0, "checks": ()}
    return Rung.model_validate({"scheme": scheme, "agreement": low, **metric, **vectors, **counts, **facts})


def write_package(folder: Path, task: Task, graph: onnx.ModelProto, labels: Sequence[str], **facts: object) -> None:
    """Write a package; `facts` are further fields of its manifest."""
    folder.mkdir(parents=True)
    for name in (FILES.fp32, FILES.int8):
        onnx.save(graph, str(folder / name))
    _tokenizer().save(str(folder / FILES.tokenizer))
    inputs, outputs = (
        tuple(
            records.TensorSpec(
                name=value.name,
                dtype="int64" if value.type.tensor_type.elem_type == TensorProto.INT64 else "float32",
                shape=tuple(axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim),
                meaning="of the tests",
            )
            for value in values
        )
        for values in (graph.graph.input, graph.graph.output)
    )
    made = {"format_version": 2, "family": "bert", "served": "int8", "ladder": (), "quantization": SCHEME, "opset": 18}
    sizes = {"max_length": MAX_LENGTH, "vocab_size": len(VOCABULARY), "hidden_size": HIDDEN_SIZE}
    files = {name: records.record_of(folder / name) for name in (FILES.fp32, FILES.int8, FILES.tokenizer)}
    manifest = Manifest(
        task=task,
        inputs=inputs,
        outputs=outputs,
        labels=tuple(labels),
        special_tokens=records.SpecialTokens(ids=(0, 1, 2, 3, 4), pad_id=0, mask_id=4, mask_token="[MASK]"),
        versions={"onnx": onnx.__version__},
        lock_sha256="0" * 64,
        files=files,
        **made,
        **sizes,
    )
    whole = Manifest.model_validate(manifest.model_dump() | facts)
    (folder / FILES.manifest).write_text(whole.model_dump_json(), encoding="utf-8")


_TOKENS = """every_BLH = Gather(embeddings, input_ids)
    real_BL = Cast<to=1>(attention_mask)
    real_BL1 = Unsqueeze(real_BL, axis_2)
    embedded_BLH = Mul(every_BLH, real_BL1)"""
_MEAN = f"""{_TOKENS}
    sum_B1H = ReduceSum<keepdims=1>(embedded_BLH, axis_1)
    count_B11 = ReduceSum<keepdims=1>(real_BL1, axis_1)
    mean_B1H = Div(sum_B1H, count_B11)"""
_EMBEDDING = f"""{_MEAN}
    norm_B11 = ReduceL2<keepdims=1>(mean_B1H, axis_2)
    unit_B1H = Div(mean_B1H, norm_B11)
    sentence_embedding = Squeeze(unit_B1H, axis_1)"""


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(WordPiece({token: number for number, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _deepen(model: onnx.ModelProto, num_layers: int, width: int) -> None:
    """Put matrices behind the table of `model`, in place: one to `width`, `num_layers` square ones, and one back."""
    if not num_layers:
        return
    random = np.random.default_rng(1)
    sizes = [HIDDEN_SIZE, *[width] * (num_layers + 1), HIDDEN_SIZE]
    layers = {
        f"layer_{number}": random.standard_normal((rows, columns), np.float32) / np.sqrt(rows, dtype=np.float32)
        for number, (rows, columns) in enumerate(pairwise(sizes))
    }
    names = ["every_BLH", *(f"after_{name}" for name in layers)]
    between = [
        helper.make_node("MatMul", [before, name], [after])
        for name, (before, after) in zip(layers, pairwise(names), strict=True)
    ]
    nodes = list(model.graph.node)
    next(node for node in nodes if names[0] in node.input).input[0] = names[-1]
    place = 1 + next(place for place, node in enumerate(nodes) if names[0] in node.output)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:place], *between, *nodes[place:]])
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in layers.items())


def _graph(text: str, outputs: Outputs, num_outputs: int) -> onnx.ModelProto:
    """Return a graph of these nodes, one in a line, in ONNX's text format."""
    nodes = [onnx.parser.parse_node(line) for line in text.splitlines()]
    random = np.random.default_rng(0)
    constants = {
        "embeddings": random.normal(size=(len(VOCABULARY), HIDDEN_SIZE)).astype(np.float32),
        "weights": random.normal(size=(HIDDEN_SIZE, num_outputs)).astype(np.float32),
        "axis_1": np.array([1]),
        "axis_2": np.array([2]),
        "mask_id": np.array(4),
    }
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in INPUTS],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@dataclass(frozen=True)
class Card:
    title: str
    facts: dict[str, Any]
    sections: dict[str, str]  # markdown by heading, in the order of the card


def card_in(folder: Path) -> Card:
    card = ModelCard((folder / "README.md").read_text(encoding="utf-8"))
    title, *sections = card.text.split("\n## ")
    parted = (section.partition("\n\n") for section in sections)
    told = {heading: body.strip() for heading, _, body in parted}
    assert len(told) == len(sections), "each heading once"
    return Card(title.strip().removeprefix("# "), card.data.to_dict(), told)
