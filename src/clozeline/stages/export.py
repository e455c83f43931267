"""Export: a trained model becomes a package: ONNX in fp32 and INT8, tokenizer, manifest; both graphs are proven."""

import hashlib
import heapq
import logging
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from clozeline import atomic
from clozeline.errors import DataError, GateError
from clozeline.exporting.agreement import agreement
from clozeline.exporting.graph import declare, op_counts, read_graph, write_graph
from clozeline.exporting.parity import largest_difference
from clozeline.exporting.quantization import Quantized, Scheme, quantize
from clozeline.exporting.through_optimum import export_onnx, head_products
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.latency import measure
from clozeline.inference.manifest import FILES, Manifest, QuantizationScheme, SpecialTokens, TensorSpec, record_of
from clozeline.inference.package import load
from clozeline.params import ExportParams

_LOG = logging.getLogger(__name__)
_MADE_WITH = ("clozeline", "onnx", "onnxruntime", "optimum-onnx", "tokenizers", "torch", "transformers")
_INPUT_MEANINGS = {
    "input_ids": "token ids; shorter texts are padded at their end with the pad id",
    "attention_mask": "1 for a token, 0 for padding",
    "token_type_ids": "0 for every token of a single text",
}


class ExportMetrics(BaseModel):
    """metrics/export/<model>.json: nothing that a clock or the name of the machine goes into."""

    model_config = ConfigDict(frozen=True)

    fp32_size_bytes: int
    int8_size_bytes: int
    parity_max_abs_difference: float
    int8_agreement: float
    """Share of masked tokens (encoder) or texts (classifier) that INT8 answers as fp32 does."""
    num_agreement_items: int
    num_agreement_texts: int
    fp32_top1: float | None
    """Of an encoder: share of the masked tokens that it names; beside it the same of INT8."""
    int8_top1: float | None
    embedding_cosine_mean: float | None
    embedding_cosine_min: float | None
    quantized_matmuls: int
    quantized_embeddings: int
    float_matmuls: int
    """Left in fp32: products of two activations, and the small layers of the head."""


def run(params: ExportParams, *, model: Path, texts: Path, lock: Path, out: Path, metrics: Path) -> None:
    """Export the trained model in the folder `model` to the package folder `out`.

    Args:
        params: the section `export` of params.yaml.
        model: a masked language model or a sequence classifier, as transformers saves it, with tokenizer.json.
        texts: Parquet file whose column `text` INT8 is compared with fp32 on.
        lock: the requirements lock; its hash goes into the manifest.
        out: package folder; keeps what it held if anything fails.
        metrics: JSON file.

    Raises:
        ArtifactError: `model` is incomplete, damaged, or of a kind that cannot be exported.
        DataError: `texts` has no column `text`, or no text.
        GateError: the fp32 graph does not compute what the trained model computes.
    """
    sample = read_sample(texts, params.num_agreement_texts)
    trained = open_trained(model)
    with atomic.replacing_folder(out) as folder:
        inputs = export_onnx(trained, params.opset, folder / FILES.fp32)
        difference = _proven_parity(trained, folder / FILES.fp32, tuple(inputs), params.max_parity_difference)
        quantized = _write_graphs(folder, trained, params)
        shutil.copyfile(model / FILES.tokenizer, folder / FILES.tokenizer)
        manifest = _manifest(folder, trained, inputs, quantized, params, lock)
        (folder / FILES.manifest).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        record = _measured(folder, sample, difference, quantized)
        _LOG.info("%s answers %s", out, measure(folder, repeats=5))
    with atomic.replacing_file(metrics) as file:
        file.write_text(record.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")


def read_sample(texts: Path, num_texts: int) -> list[str]:
    """The `num_texts` different texts with the lowest hashes: a sample that the order of the rows does not change.

    Raises:
        DataError: there is no such file, no column `text`, or no text in it.
    """
    if not texts.is_file() or "text" not in pq.read_schema(texts).names:
        raise DataError(
            f"{texts} gives no texts to compare INT8 and fp32 on",
            given="no column `text`" if texts.is_file() else "no such file",
            expected="a Parquet file with the column `text`",
            do="run `dvc repro preprocess`, or correct `texts` of the stage in dvc.yaml",
        )
    distinct = {hashlib.sha256(text.encode()).digest(): text for text in _texts(texts)}
    if not distinct:
        raise DataError(
            f"{texts} gives no texts to compare INT8 and fp32 on",
            given="no row with a text",
            expected="at least one",
            do="give preprocess more text, or a larger `validation_fraction`",
        )
    return [distinct[digest] for digest in heapq.nsmallest(num_texts, distinct)]


def _texts(path: Path) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["text"]):
            yield from (text for text in batch.column("text").to_pylist() if text)


def _proven_parity(trained: TrainedModel, graph: Path, inputs: tuple[str, ...], limit: float) -> float:
    difference = largest_difference(trained, graph, inputs)
    if not difference <= limit:
        raise GateError(
            f"the ONNX graph of {trained.folder} does not compute what the model computes",
            given=f"outputs that differ by up to {difference:.3g}",
            expected=f"at most {limit:g} (`export.max_parity_difference`)",
            do="try another `export.opset`; if it stays, the family's export is at fault: do not use this package",
        )
    return difference


def _write_graphs(folder: Path, trained: TrainedModel, params: ExportParams) -> Quantized:
    graph = read_graph(folder / FILES.fp32)
    declare(graph, _outputs(trained))
    write_graph(graph, folder / FILES.fp32)
    scheme = Scheme(
        per_token=params.per_token,
        per_channel=params.per_channel,
        reduce_range=params.reduce_range,
        embeddings=params.quantize_embeddings,
    )
    quantized = quantize(graph, scheme, exact=head_products(trained, graph))
    write_graph(quantized.model, folder / FILES.int8)
    return quantized


def _outputs(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    config = trained.model.config
    if trained.task == "text-classification":
        meaning = "one for each label, before softmax"
        return (TensorSpec(name="logits", dtype="float32", shape=("batch", len(trained.labels)), meaning=meaning),)
    return (
        TensorSpec(
            name="logits",
            dtype="float32",
            shape=("masks", config.vocab_size),
            meaning="of the positions whose input id is the mask id, row by row of the batch; before softmax",
        ),
        TensorSpec(
            name="sentence_embedding",
            dtype="float32",
            shape=("batch", config.hidden_size),
            meaning="mean of the last hidden states where attention_mask is 1, divided by its length",
        ),
    )


def _manifest(
    folder: Path,
    trained: TrainedModel,
    inputs: Sequence[str],
    quantized: Quantized,
    params: ExportParams,
    lock: Path,
) -> Manifest:
    tokenizer, config = trained.tokenizer, trained.model.config
    return Manifest(
        format_version=1,
        task=trained.task,
        family=trained.family,
        inputs=tuple(
            TensorSpec(name=name, dtype="int64", shape=("batch", "length"), meaning=_INPUT_MEANINGS[name])
            for name in inputs
        ),
        outputs=_outputs(trained),
        labels=trained.labels,
        max_length=trained.max_length,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        special_tokens=SpecialTokens(
            ids=tuple(sorted(tokenizer.all_special_ids)),
            pad_id=tokenizer.pad_token_id,
            mask_id=tokenizer.mask_token_id,
            mask_token=tokenizer.mask_token,
        ),
        quantization=QuantizationScheme(
            activations="uint8 per token, dynamic" if params.per_token else "uint8 per batch, dynamic",
            weights="int8 per column, symmetric" if params.per_channel else "int8 per matrix, symmetric",
            reduce_range=params.reduce_range,
            embeddings="int8 per row, symmetric" if params.quantize_embeddings else "float32",
            quantized_matmuls=quantized.num_matmuls,
            quantized_embeddings=quantized.num_embeddings,
            exact_matmuls=quantized.exact,
        ),
        opset=params.opset,
        versions={package: version(package) for package in _MADE_WITH},
        lock_sha256=record_of(lock).sha256,
        files={name: record_of(folder / name) for name in (FILES.fp32, FILES.int8, FILES.tokenizer)},
    )


def _measured(folder: Path, sample: Sequence[str], difference: float, quantized: Quantized) -> ExportMetrics:
    both = agreement(load(folder, precision="fp32"), load(folder, precision="int8"), sample)
    return ExportMetrics(
        fp32_size_bytes=(folder / FILES.fp32).stat().st_size,
        int8_size_bytes=(folder / FILES.int8).stat().st_size,
        parity_max_abs_difference=difference,
        int8_agreement=both.top1_agreement,
        num_agreement_items=both.num_items,
        num_agreement_texts=len(sample),
        fp32_top1=both.fp32_top1,
        int8_top1=both.int8_top1,
        embedding_cosine_mean=both.embedding_cosine_mean,
        embedding_cosine_min=both.embedding_cosine_min,
        quantized_matmuls=quantized.num_matmuls,
        quantized_embeddings=quantized.num_embeddings,
        float_matmuls=op_counts(quantized.model)["MatMul"],
    )
