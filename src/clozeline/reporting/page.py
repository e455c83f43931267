"""The whole page: one file, with its style inside, and a policy that lets a browser fetch nothing and run nothing."""

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from clozeline.errors import ClozelineError
from clozeline.reporting import (
    corpus,
    curves,
    everything,
    examples,
    in_short,
    machine,
    packages,
    provenance,
    quality,
    tasks,
    verdict,
)
from clozeline.reporting.run import Part, Run, Section
from clozeline.reporting.templates import html, joined

SECTIONS = (
    Section(
        "gates", "Gates", "What each package had to show before it may be served, and whether it did.", verdict.parts
    ),
    Section(
        "encoder",
        "Encoder",
        "How well the encoder names hidden tokens of text that it was not trained on. The unigram baseline knows only"
        " how frequent each token is: a model that has learned nothing of context stops there.",
        quality.parts,
    ),
    Section(
        "examples",
        "Example predictions",
        "Validation text. Green, with ✓: the first guess is the hidden token; amber, with ≈: it is among the first"
        " five; red, with ✗: it is not.",
        examples.parts,
    ),
    Section(
        "tasks",
        "Tasks",
        "What the encoder does, fine-tuned or by a prompt alone, on test sets that nothing was chosen by.",
        tasks.parts,
    ),
    Section("packages", "INT8 packages", "What is served: plain ONNX, fp32 and quantized to INT8.", packages.parts),
    Section("training", "Training", "How the pre-training went.", curves.parts),
    Section("text", "Text", "What was kept of the raw text, what was dropped and why.", corpus.parts),
    Section("lineage", "Lineage", "From these figures back to the raw text, by hash.", provenance.parts),
    Section(
        "machine", "Machine", "Where this report was made; the latencies are of the release before it.", machine.parts
    ),
    Section("figures", "All figures", "Every figure of every metric file.", everything.parts),
)


@dataclass(frozen=True)
class Page:
    html: str
    faults: tuple[ClozelineError, ...]
    """What is missing, each told in its place on the page too."""


def build(run: Run) -> Page:
    """The report of `run`; what cannot be read is told where it would be."""
    faults: list[ClozelineError] = []
    chapters = [(section, joined(*_pieces(section.parts(run), faults))) for section in SECTIONS]
    title = f"Report of {run.files.root.resolve().name}"
    made = html("page", title=title, built_at=run.built_at, tiles=in_short.tiles(run), chapters=chapters)
    return Page(f"{made}\n", tuple(faults))


def _pieces(parts: Iterable[Part], faults: list[ClozelineError]) -> Iterable[Markup | None]:
    """What each part makes; what it lacks is told once in a section."""
    told: set[str] = set()
    for part in parts:
        try:
            yield part()
        except ClozelineError as error:
            if str(error) not in told:
                told.add(str(error))
                faults.append(error)
                yield html("notice", error=error)
