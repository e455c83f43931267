"""Serving costs of encoders on this machine, measured on graphs with random weights.

A CPU graph may store its weights in float16, which halves the file. ONNX Runtime casts them to float32 on loading.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from clozeline.encoder.checkpoints import fresh_stock, published_config
from clozeline.encoder.families import FAMILIES, LAYOUTS, layout
from clozeline.encoder.model import EncoderModel
from clozeline.encoder.own import OwnModel
from clozeline.exporting import ladder, quantization, to_onnx
from clozeline.exporting.graph import absorb_graph, remove_graph, set_nodes, write_graph
from clozeline.exporting.trained import open_trained
from clozeline.language import models
from clozeline.language.models import LanguageModel
from clozeline.params.delivery import ExportParams
from clozeline.params.model import NOT_EXPORTED, ModelParams, is_own
from clozeline.planning.costs import ParameterCount
from clozeline.planning.timing import Footprint, GraphFeed, footprint
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.system.machine import available_bytes
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS, frame_with_special_tokens, save

_LARGEST = float(np.finfo(np.float16).max)
_STORED = "{}/half"
# Peak memory of a measurement / size of the fp32 weights: 2.4 GB for the 268 MB of DistilBERT base.
_BYTES_PER_WEIGHT_BYTE = 9


def with_half_weights(model: ModelProto) -> ModelProto:
    """Return a copy of `model` whose matrices and tables are stored as float16 and cast to float32.

    A tensor with a value that float16 cannot hold stays in float32.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    widened = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        values = numpy_helper.to_array(tensor)
        if np.abs(values).max(initial=0.0) <= _LARGEST:
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), _STORED.format(name)))
            widened.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    set_nodes(graph, [*widened, *graph.node])
    return copy


def served_families() -> list[str]:
    """Return the families that can be exported to a graph."""
    return [name for name, family in FAMILIES.items() if name not in NOT_EXPORTED and "mlm" in family.forms]


def check_served(family: str) -> None:
    """Check that `family` can be served.

    Raises:
        ParamsError: the family cannot be exported to a graph.
    """
    if family not in served_families() and not is_own(family):
        raise ParamsError(
            f"{family} cannot be served: it has no export to ONNX: {NOT_EXPORTED[family]}",
            do=f"name one of {', '.join(served_families())}; without --serving, `clozeline plan` tells training's cost",
        )


def serving_cost(build: Callable[[], LanguageModel], export: ExportParams) -> dict[str, Footprint]:
    """Return the cost by precision of the untrained masked encoder that `build` returns, exported like the stage.

    INT8 uses the ladder's first scheme, with all products outside the head quantized and dynamic activation scales; an
    empty ladder gives no INT8. Only the export of a trained model can tell whether it passes its gates, which products
    stay in fp32, and which scales can be fixed. Apart from that, weights do not change the cost of a graph.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        graph, feed, head = _exported(build(), export.opset, folder)
        path = folder / "graph.onnx"
        return {precision: _cost(made, path, feed) for precision, made in _variants(graph, export, head)}


def _variants(graph: ModelProto, export: ExportParams, head: Sequence[str]) -> Iterator[tuple[str, ModelProto]]:
    yield "fp32", graph
    yield "fp16", with_half_weights(graph)
    for rung in export.ladder[:1]:
        yield "INT8", quantization.quantize(graph, ladder.scheme_of(rung), exact=head).model


def _cost(graph: ModelProto, path: Path, feed: GraphFeed) -> Footprint:
    write_graph(graph, path)
    found = footprint(path, feed)
    remove_graph(path)
    return found


def of_params(params: ModelParams, vocab_size: int) -> LanguageModel:
    """Return the masked encoder that `params` describe, with random weights.

    Raises:
        ParamsError: the family is unknown.
    """
    return models.build(params, "mlm", layout.TokenIds(vocab_size, pad_id=0, cls_id=2, sep_id=3), seed=0)


def of_published(name: str) -> LanguageModel:
    """Return a published encoder with a masked head and random weights, from its config.json alone.

    Raises:
        ArtifactError: there is no such model, or none that can be served with its family's masked head.
    """
    config = published_config(name)
    classes = {FAMILIES[family].forms["mlm"] for family in served_families()}
    if type(config) not in classes:
        problem = f"{name} cannot be measured: {config.model_type} is not exported with a masked head"
        raise ArtifactError(problem, do=f"name a model of one of the families {', '.join(served_families())}")
    config.pad_token_id = 0
    _check_memory(name, config)
    return _fresh(config)


def _fresh(config: Any) -> LanguageModel:
    return EncoderModel(config, "mlm") if config.model_type in LAYOUTS else fresh_stock(config, "mlm")


def _check_memory(name: str, config: Any) -> None:
    with torch.device("meta"):
        count = ParameterCount.of(_fresh(config))
    needed, free = _BYTES_PER_WEIGHT_BYTE * count.fp32_bytes, available_bytes()
    if needed > free:
        raise ArtifactError(
            f"{name} ({count.total:,} parameters) takes {needed / 1e9:.0f} GB to measure; {free / 1e9:.1f} are free",
            do="measure it on a machine with more memory",
        )


def _exported(model: LanguageModel, opset: int, folder: Path) -> tuple[ModelProto, GraphFeed, Sequence[str]]:
    """Return the graph, its inputs, and the products of its head."""
    vocab_size = model.config.vocab_size
    for name in ("tokenizer", "model"):
        (folder / name).mkdir()
    _save_tokenizer(vocab_size, folder / "tokenizer")
    models.save(model, folder / "tokenizer", folder / "model")
    family = model.config.model_params.family if isinstance(model, OwnModel) else None
    trained = open_trained(folder / "model", family=family)
    path = folder / "fp32.onnx"
    inputs = to_onnx.export_onnx(trained, opset, path)
    graph = absorb_graph(path)
    feed = GraphFeed(tuple(inputs), vocab_size, trained.tokenizer.mask_token_id, ("logits", "sentence_embedding"))
    return graph, feed, to_onnx.head_products(trained, graph)


def _save_tokenizer(vocab_size: int, folder: Path) -> None:
    """Save a tokenizer of placeholder words; no graph reads a text here."""
    words = [*SPECIAL_TOKENS.values(), *(f"w{number}" for number in range(len(SPECIAL_TOKENS), vocab_size))]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, SPECIAL_TOKENS["unk_token"]))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
    frame_with_special_tokens(tokenizer, SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"])
    save(tokenizer, folder)
