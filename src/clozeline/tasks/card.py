"""Model card of a fine-tuned model: its task, data, figures and limits, and the sections of its encoder's card."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from clozeline.artifacts.finetune.task_metrics import TaskMetrics
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.training import files_of

CARD = "README.md"
_PARTS = ("train", "validation", "test")


def card_of(task: str, inputs: TaskInputs, metrics: TaskMetrics) -> ModelCard:
    """Return the card of the model that was fine-tuned for `task`."""
    of_encoder = _card_of_encoder(inputs.encoder)
    of_encoder.data.pop("pipeline_tag")
    sections = {
        "Task": _task(inputs, metrics.model_extra or {}),
        "Figures": _figures(metrics),
        "Limits": _limits(inputs, metrics),
    }
    own = ("\n".join((f"## {heading}", "", *lines)) for heading, lines in sections.items())
    _, heading, inherited = of_encoder.text.partition("\n## ")
    of_encoder.text = "\n\n".join((f"\n# {task}: {inputs.params.kind}", *own)) + f"\n{heading}{inherited}"
    return of_encoder


def _card_of_encoder(encoder: Path) -> ModelCard:
    file = encoder / CARD
    text = file.read_text(encoding="utf-8") if file.is_file() else "---\nlibrary_name: transformers\n---\n"
    return ModelCard(text, ignore_metadata_errors=True)


def _task(inputs: TaskInputs, figures: dict[str, Any]) -> Iterator[str]:
    params = inputs.params
    yield f"- Answers: {KINDS[params.kind].answers}"
    counts = [f"{figures[f'num_{part}']:,} {part}" for part in _PARTS if isinstance(figures.get(f"num_{part}"), int)]
    if counts:
        yield f"- Items: {', '.join(counts)}"
    if params.hub is not None:
        yield f"- Data: hub dataset {params.hub.dataset}, commit {figures.get('hub_commit') or 'unknown'}"
        return
    yield f"- Data: {params.data}; SHA-256 of its files in the order of their paths:"
    yield f"  `{_sha256(inputs.data)}`"


def _sha256(data: Path) -> str:
    digest = hashlib.sha256()
    for path in files_of(data):
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _figures(metrics: TaskMetrics) -> Iterator[str]:
    top = metrics.headline
    yield "On the test split, which informed no choice; the interval (95 %) is over other items of the same kind."
    yield ""
    yield f"| method | {top.metric} |"
    yield "|---|---|"
    yield f"| {top.method} | {top.value:.4f} ({top.low:.4f} to {top.high:.4f}) |"
    yield from (f"| {name} | {value:.4f} |" for name, value in top.compared)
    if top.lead_low is not None and top.lead_high is not None:
        yield ""
        yield f"{top.method} - {top.baseline}: {top.lead_low:+.4f} to {top.lead_high:+.4f} (95 %, paired by test item)."
    if (others := top.without_near_duplicates) is not None:
        yield ""
        yield (
            f"Without test items that are near-duplicates of training items: {others.value:.4f} ({others.low:.4f} to "
            f"{others.high:.4f}); {others.baseline} {others.baseline_value:.4f}."
        )
    if seeds := metrics.over_seeds:
        yield ""
        yield f"Over {seeds.num_seeds} seeds: mean {seeds.mean:.4f}, standard deviation {seeds.deviation:.4f}."


def _limits(inputs: TaskInputs, metrics: TaskMetrics) -> Iterator[str]:
    yield f"- The model reads at most {inputs.params.max_length:,} tokens at once."
    yield "- Expect the figures above only for texts and classes like those of the test split."
    if metrics.contaminated_fraction is not None:
        yield f"- {metrics.contaminated_fraction:.1%} of the test texts have a near-duplicate in the pre-training text."
    yield from (f"- Known fault: {fault}." for fault in metrics.faults)
