"""Section of a model card that only a release can write: figures on the validation text, and hashes of the sources."""

from collections.abc import Iterator

from clozeline.artifacts.evaluate.encoder_metrics import EncoderMetrics
from clozeline.artifacts.finetune.task_metrics import TaskMetrics
from clozeline.artifacts.lock import Lock
from clozeline.lineage.trace import ancestry


def release_section(package: str, quality: EncoderMetrics | TaskMetrics | None, lock: Lock) -> str:
    """Return the section in Markdown, without its heading, of the package `dist/<package>` that `lock` lists."""
    return "\n".join((*_figures(quality), "", *_sources(package, lock)))


def _figures(quality: EncoderMetrics | TaskMetrics | None) -> Iterator[str]:
    if quality is None:
        yield "A published model, packaged as it is; see its own card for what it was trained on and how good it is."
        return
    if isinstance(quality, TaskMetrics):
        top = quality.headline
        yield f"{top.metric} on the test split: {top.value:.4f} (95 %: {top.low:.4f} to {top.high:.4f});"
        yield f"{top.baseline} {top.baseline_value:.4f}, {top.trivial} {top.trivial_value:.4f}."
        return
    yield f"On the whole validation split ({quality.target_tokens:,} tokens, each hidden once), with 95 % intervals:"
    yield ""
    for name in ("perplexity", "top1", "nats_per_byte"):
        value, low, high = (getattr(quality, f"{name}{end}") for end in ("", "_low", "_high"))
        yield f"- {name}: {value:.4f} ({low:.4f} to {high:.4f})"
    yield f"- perplexity of the unigram baseline: {quality.unigram_perplexity:.4f}"
    contaminated = f"{quality.contaminated_fraction:.1%} of the validation texts also occur in the training text"
    yield f"- contamination: {contaminated}"


def _sources(package: str, lock: Lock) -> Iterator[str]:
    yield "Source files, with their DVC hashes:"
    yield ""
    for source in ancestry(lock, f"dist/{package}").all():
        if source.stage is None:
            yield f"- `{source.path}`: md5 `{source.md5}`"
