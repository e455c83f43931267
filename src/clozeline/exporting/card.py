"""Model card of a package: the card of the trained model, and the figures of the export."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from huggingface_hub import ModelCard

from clozeline.artifacts.export.evidence import Measured
from clozeline.artifacts.export.manifest import CARD, FILES, Manifest
from clozeline.exporting.ladder import Climbed


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
