"""Package of a model: graphs, tokenizer and manifest, with the graphs checked; made by stages `export` and `import`.

Beside the graphs, config.json opens them in optimum's classes for ONNX graphs (`ORTModelFor…`), tokenizer.json
truncates and pads texts as the graphs need them, and the model card is that of the trained model with the figures of
the export. Too little text for the proof of INT8 gives a warning. The bill of materials, in CycloneDX 1.6, has the
files, the base model and the Python packages that serve it; it has no date and no serial number, so the same export
writes the same bytes.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tokenizers import Tokenizer

from clozeline.exporting import exams, forms, parity, quantization
from clozeline.exporting.graph import absorb_graph, declare, op_counts, size_of, write_graph
from clozeline.exporting.ladder import Climbed, Ladder, Passed, Proof, lacking
from clozeline.exporting.to_onnx import export_onnx, head_products
from clozeline.exporting.trained import TrainedModel
from clozeline.inference import open_model, tokenization
from clozeline.inference.latency import Latency, measure
from clozeline.params.delivery import ExportParams
from clozeline.records import package
from clozeline.records.package import CARD, CONFIG, FILES, ExportMetrics, Manifest, Measured, Rung, SpecialTokens
from clozeline.system import errors, files

_LOG = logging.getLogger(__name__)

# Keys about the original weight file or about the code that opens it; the package leaves them out.
_OF_WEIGHTS = frozenset({"auto_map", "dtype", "quantization_config", "torch_dtype", "transformers_version"})

_OURS = "clozeline"
_MADE_WITH = (_OURS, "onnx", "onnxruntime", "onnxscript", "optimum", "tokenizers", "torch", "transformers")
_INPUTS = {
    name: package.TensorSpec.model_validate({"name": name, "dtype": dtype, "shape": shape, "meaning": meaning})
    for name, dtype, shape, meaning in (
        ("input_ids", "int64", ("batch", "length"), "token ids; shorter texts are padded at their end with the pad id"),
        ("attention_mask", "int64", ("batch", "length"), "1 for a token, 0 for padding"),
        (
            *("token_type_ids", "int64", ("batch", "length")),
            "0 for every token of a text; 1 for those of the second text of a pair",
        ),
        (open_model.MASKS_ONLY, "bool", (1,), "true: no embeddings, which is faster; false: every output"),
    )
}


def write_client_config(trained: TrainedModel, folder: Path) -> None:
    """Write `folder`/config.json with labels, `model_type`, `architectures` and the shape, if optimum can use it."""
    kind = trained.kind
    # Other graphs answer at masks alone or with one vector, which optimum's classes do not expect.
    if kind.labels != "none" or kind.is_per_token:
        config: Mapping[str, object] = json.loads((trained.folder / CONFIG).read_text(encoding="utf-8"))
        facts = {name: fact for name, fact in config.items() if not name.startswith("_") and name not in _OF_WEIGHTS}
        (folder / CONFIG).write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_tokenizer(model: Path, folder: Path, *, max_length: int, special_tokens: SpecialTokens) -> None:
    """Write `folder`/tokenizer.json, made from the tokenizer of the trained model in `model`.

    It truncates texts to `max_length` tokens, including special tokens, and pads them to the longest of the batch.
    Otherwise code that uses tokenizers alone would feed the graph more positions than the model was trained with.
    """
    tokenizer = Tokenizer.from_file(str(model / FILES.tokenizer))
    tokenizer.enable_truncation(max_length)
    pad_id = special_tokens.pad_id
    tokenizer.enable_padding(pad_id=pad_id, pad_token=tokenizer.id_to_token(pad_id))
    tokenizer.save(str(folder / FILES.tokenizer))


def write_card(
    model: Path,
    folder: Path,
    draft: Manifest,
    climbed: Climbed,
    quality: Mapping[str, Measured] | None = None,
    *,
    base_model: str | None = None,
) -> None:
    """Write the card of the package in `folder`, which was exported from the folder `model`.

    Args:
        quality: figures of its fp32 graph.
        base_model: the published model that the package is a form of.
    """
    file = model / CARD
    title = f"---\nlibrary_name: onnxruntime\n---\n\n# {draft.family}, {draft.task}\n"
    card = ModelCard(file.read_text(encoding="utf-8") if file.is_file() else title, ignore_metadata_errors=True)
    card.data["library_name"], card.data["pipeline_tag"] = "onnxruntime", draft.task
    if base_model is not None:
        card.data["base_model"] = base_model
    card.text = "\n".join((card.text.rstrip(), "", "## Package", "", *_lines(draft, climbed, quality or {}), ""))
    card.save(folder / CARD)


def _lines(draft: Manifest, climbed: Climbed, quality: Mapping[str, Measured]) -> Iterator[str]:
    yield f"ONNX graphs of opset {draft.opset}; {FILES.manifest} has their inputs, outputs, hashes and checks."
    yield ""
    yield f"- Longest text: {draft.max_length:,} tokens, including special tokens"
    if draft.labels:
        yield f"- Labels: {len(draft.labels):,}"
    if first := next(iter(quality.values()), None):
        yield f"- fp32 on {first.num_texts:,} texts of the export, {first.num_items:,} tokens of them predicted:"
        yield from (f"  - {name}: {_shown(measured)}" for name, measured in quality.items())
    if climbed.served is None:
        yield f"- Served: {FILES.fp32}; none of {len(climbed.rungs)} INT8 schemes passed its checks"
    else:
        rung = climbed.served.rung
        yield f"- Served: {FILES.int8} ({rung.scheme.kind}), compared with fp32 on {rung.agreement.num_texts:,} texts:"
        yield f"  - the same answer: {_shown(rung.agreement)}"
        yield f"  - {rung.metric}: INT8 {rung.int8_metric:.4f}, fp32 {rung.fp32_metric:.4f}; ratio"
        yield f"    {_shown(rung.metric_ratio)}"
    yield ""
    yield "`clozeline serve FOLDER` serves the package; any ONNX Runtime runs the graphs."


def _shown(measured: Measured) -> str:
    return f"{measured.value:.4f} (95 %: {measured.low:.4f} to {measured.high:.4f})"


def warn_of_few_texts(texts: Path, sample: exams.Sample, calibration: exams.Sample, params: ExportParams) -> None:
    """Warn if the file `texts` has fewer texts than params.yaml requires.

    The warning counts the texts for calibration, and those of the exam unless held-out items replace them.
    """
    if len(calibration.texts) < quantization.NUM_CALIBRATION_TEXTS:
        deciding = f"{len(sample.texts)} for the exam (`num_agreement_texts`: {params.num_agreement_texts}), "
        overlap = "" if calibration.texts != sample.texts else ", the same as for the exam"
        _LOG.warning(
            "%s has only %d different texts: %s%d of %d to calibrate INT8%s",
            texts,
            len({*sample.texts, *calibration.texts}),
            "" if sample.held_out else deciding,
            len(calibration.texts),
            quantization.NUM_CALIBRATION_TEXTS,
            "" if sample.held_out else overlap,
        )


def warn_of_few_items(rungs: Sequence[Rung]) -> None:
    """Warn if the last of `rungs` answered too few items: how many, and how many are required."""
    counts = [str(check) for rung in rungs[-1:] for check in lacking(rung)]
    if counts:
        _LOG.warning(
            "the exam of INT8 is too small to be trusted: %s; give preprocess more text (or the task more items), more"
            " varied if all answers are the same; or raise `num_agreement_texts`",
            "; ".join(counts),
        )


@dataclass(frozen=True)
class Examined:
    """Texts that graphs answer before they are packaged."""

    deciding: exams.Sample  # items of the exam
    calibrating: Sequence[str]  # texts for the ranges of activations; none of the exam


def write_package(
    trained: TrainedModel, texts: Examined, params: ExportParams, *, lock: Path, out: Path, metrics: Path
) -> None:
    """Write the package of a model to the folder `out`, and its figures to the JSON file `metrics`.

    The first INT8 scheme of the ladder that passes its gates is served, with fixed scales if they lose nothing.
    If none passes, fp32 is served, and the package holds no INT8 graph.

    Args:
        lock: the requirements lock; its hash goes into the manifest.
        out: unchanged if anything fails.

    Raises:
        ArtifactError: the model's outputs are not finite.
        DataError: the model can answer none of the texts.
        GateError: the fp32 graph does not compute what the model computes.
    """
    with files.replacing_folder(out) as folder:
        inputs = export_onnx(trained, params.opset, folder / FILES.fp32)
        graph = absorb_graph(folder / FILES.fp32)
        declare(graph, forms.outputs_of(trained))
        write_graph(graph, folder / FILES.fp32)
        difference = _proven_parity(trained, folder / FILES.fp32, tuple(inputs), params.max_parity_difference)
        draft = _draft(trained, inputs, params, lock)
        write_tokenizer(trained.folder, folder, max_length=draft.max_length, special_tokens=draft.special_tokens)
        write_client_config(trained, folder)
        _LOG.info("%s: the last layer is computed at %s", out, draft.last_layer)
        ladder = Ladder(graph, folder, draft, head_products(trained, graph), params)
        proof = Proof(folder / FILES.fp32, draft, texts.deciding, params.gates)
        climbed = ladder.climb(proof, texts.calibrating)
        base_model = None if trained.published is None else trained.published.model
        write_card(trained.folder, folder, draft, climbed, proof.quality, base_model=base_model)
        write_sbom(folder, out.name, draft)
        manifest = _manifest(folder, draft, climbed)
        manifest.write(folder / FILES.manifest)
        known = {
            "served": manifest.served,
            "fp32_size_bytes": size_of(folder / FILES.fp32),
            "parity_max_abs_difference": difference,
            "last_layer": manifest.last_layer,
            "num_agreement_texts": proof.num_texts,
        }
        of_int8 = _of_int8(climbed.served) if climbed.served else {}
        figures = ExportMetrics.model_validate({**known, **of_int8, "ladder": climbed.rungs})
        if climbed.served is None:
            _LOG.warning("%s: no INT8 scheme of the ladder passed its gates: fp32 is served", out)
            warn_of_few_items(climbed.rungs)
        elif not climbed.served.quantized.num_matmuls:
            _LOG.warning("%s: the served graph has no product in INT8: %s", out, climbed.served.rung.scheme.kind)
        _LOG.info("%s answers %s", out, _latency(folder, trained.folder))
    figures.write(metrics)


def _latency(folder: Path, model: Path) -> Latency:
    try:
        return measure(folder, repeats=5)
    except tokenization.NotANumberError as error:
        raise errors.ArtifactError(
            f"{model}: the exported package returns values that are not finite ({error.cause})",
            do="train again, with a lower learning rate if the loss was not finite either: no export can repair this",
        ) from error


def _proven_parity(trained: TrainedModel, graph: Path, inputs: tuple[str, ...], limit: float) -> float:
    difference = parity.largest_difference(trained, graph, inputs)
    if not difference <= limit:
        raise errors.GateError(
            f"the ONNX graph of {trained.folder} differs by {difference:.3g} (`max_parity_difference` {limit:g})",
            do="try another `opset`; if that fails too, the export of this family is faulty: do not use it",
        )
    return difference


def _draft(trained: TrainedModel, inputs: Sequence[str], params: ExportParams, lock: Path) -> Manifest:
    """Return the manifest with fp32 served; the INT8 fields and file hashes are filled in later."""
    tokenizer, config = trained.tokenizer, trained.model.config
    return Manifest(
        format_version=2,
        task=trained.task,
        family=trained.family,
        inputs=tuple(_INPUTS[name] for name in inputs),
        outputs=forms.outputs_of(trained),
        labels=trained.labels,
        label_scores=trained.label_scores,
        decision_threshold=trained.decision_threshold,
        reads_pairs=trained.reads_pairs,
        types_tell_pairs="token_type_ids" in inputs and trained.types_tell_pairs,
        no_answer_margin=trained.no_answer_margin,
        pooling=trained.pooling,
        prompts={} if trained.published is None else trained.published.prompts,
        default_prompt=None if trained.published is None else trained.published.default_prompt,
        last_layer=forms.last_layer_of(trained),
        max_length=trained.max_length,
        num_positions=trained.num_positions,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        special_tokens=SpecialTokens(
            ids=tuple(sorted(tokenizer.all_special_ids)),
            pad_id=tokenizer.pad_token_id,
            mask_id=tokenizer.mask_token_id,
            mask_token=tokenizer.mask_token,
        ),
        served="fp32",
        quantization=None,
        ladder=(),
        opset=params.opset,
        versions={name: version(name) for name in _MADE_WITH},
        lock_sha256=package.record_of(lock).sha256,
        files={},
    )


def _manifest(folder: Path, draft: Manifest, climbed: Climbed) -> Manifest:
    known = {
        "served": "int8" if climbed.served else "fp32",
        "quantization": climbed.served.rung.scheme if climbed.served else None,
        "ladder": climbed.rungs,
        "files": {file.name: package.record_of(file) for file in sorted(folder.iterdir())},
    }
    return Manifest.model_validate(dict(draft) | known)


def _of_int8(served: Passed) -> dict[str, Any]:
    passed, quantized = served.rung, served.quantized
    of_masks = {"fp32_top1": passed.fp32_metric, "int8_top1": passed.int8_metric}  # shares of the masks
    return {
        "int8_size_bytes": passed.size_bytes,
        "int8_agreement": passed.agreement.value,
        "num_agreement_items": passed.agreement.num_items,
        **(of_masks if passed.metric == "masked-LM accuracy" else {}),
        **{name: figure for name, figure in passed if name.startswith(("embedding_cosine", "token_cosine"))},
        "quantized_matmuls": quantized.num_matmuls,
        "quantized_embeddings": quantized.num_embeddings,
        "quantized_activations": quantized.num_activations,
        "static_activations": len(quantized.static),
        "smoothed_activations": len(passed.scheme.smoothed_activations),
        # small layers of the head, those that the scheme excludes, products of two activations outside Attention
        "float_matmuls": op_counts(quantized.model)["MatMul"],
    }


def write_sbom(folder: Path, name: str, draft: Manifest) -> None:
    """Write the bill of materials of the package in `folder`, called `name`, whose other files are all there."""
    listed = [
        {"type": "file", "name": path.name, "hashes": [{"alg": "SHA-256", "content": package.record_of(path).sha256}]}
        for path in sorted(folder.iterdir())
    ]
    model = _model(name, draft, ModelCard.load(folder / CARD, ignore_metadata_errors=True).data.to_dict())
    packages = _installed_with(_OURS)
    described = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": model | {"components": listed}},
        "components": [_library(found) | {"bom-ref": ref} for ref, (found, _) in packages.items()],
        "dependencies": [
            {"ref": model["bom-ref"], "dependsOn": [_OURS]},
            *({"ref": ref, "dependsOn": sorted(needs & packages.keys())} for ref, (_, needs) in packages.items()),
        ],
    }
    (folder / package.SBOM).write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _model(name: str, draft: Manifest, stated: dict[str, Any]) -> dict[str, Any]:
    """Return the component for the model; a licence or a base model only if the model card states it."""
    licence = stated.get("license_name") or stated.get("license")
    licensed = {"licenses": [{"license": {"name": str(licence)}}]} if licence else {}
    base = stated.get("base_model") or ()
    names = [base] if isinstance(base, str) else base
    kind = {"type": "machine-learning-model"}
    ancestors = [kind | {"name": str(ancestor)} | licensed for ancestor in names]
    return (
        kind
        | {"bom-ref": f"model {name}", "name": name}
        | licensed
        | ({"pedigree": {"ancestors": ancestors}} if ancestors else {})
        | {"modelCard": {"modelParameters": {"task": draft.task, "architectureFamily": draft.family}}}
    )


def _library(found: PackageMetadata) -> dict[str, Any]:
    name = canonicalize_name(found["Name"])
    # No index has ours: a registered model carries its wheel.
    address = {} if name == _OURS else {"purl": f"pkg:pypi/{name}@{found['Version']}"}
    return {"type": "library", "name": found["Name"], "version": found["Version"]} | address | _licences(found)


def _licences(found: PackageMetadata) -> dict[str, Any]:
    """Return what the metadata of a package states: an SPDX expression, or else names in words."""
    told = found.json
    if expression := told.get("license_expression"):
        return {"licenses": [{"expression": expression}]}
    classified = [line.rpartition(" :: ")[2] for line in told.get("classifier", ()) if line.startswith("License")]
    stated = str(told.get("license", "")).strip().partition("\n")[0]
    names = classified or ([stated] if stated else [])
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


def _installed_with(root: str) -> dict[str, tuple[PackageMetadata, set[str]]]:
    """Return `root` and every package that its installation brings along, by canonical name: what it says of itself,
    and the names of those that it requires here.
    """
    packages: dict[str, tuple[PackageMetadata, set[str]]] = {}
    waiting, seen = [Requirement(root)], set()
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if (name, *asked.extras) in seen:
            continue
        seen.add((name, *asked.extras))
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # removed by hand
            continue
        needs = [
            one
            for one in map(Requirement, installed.requires or ())
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *asked.extras))
        ]
        _, known = packages.setdefault(name, (installed.metadata, set()))
        known.update(canonicalize_name(one.name) for one in needs)
        waiting += needs
    return dict(sorted(packages.items()))
