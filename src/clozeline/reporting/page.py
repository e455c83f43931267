"""The whole page: one file with inline style, and a policy that forbids the browser to fetch or run anything."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from markupsafe import Markup

from clozeline.errors import ClozelineError
from clozeline.reporting import (
    all_figures,
    corpus,
    curves,
    examples,
    machine,
    overview,
    packages,
    provenance,
    quality,
    tasks,
    verdict,
)
from clozeline.reporting.run import Fold, Part, Run, Section
from clozeline.reporting.templates import html, joined

SECTIONS = (
    Section(
        "encoder",
        "Encoder",
        "How well the encoder predicts tokens of validation text: hidden ones, or the next one if it is causal. The"
        " unigram baseline knows only the frequency of each token: a model that ignores the context gets no further.",
        quality.parts,
        is_open=True,
    ),
    Section(
        "tasks",
        "Tasks",
        "Results of the encoder, fine-tuned or prompted without training, on test sets that no choice was based on.",
        tasks.parts,
        is_open=True,
    ),
    Section("training", "Pre-training", "The curves of the pre-training.", curves.parts, is_open=True),
    Section(
        "examples",
        "Example predictions",
        "Validation text. Green, with ✓: the first guess is the right token; amber, with ≈: it is among the first"
        " five; red, with ✗: it is not.",
        examples.parts,
    ),
    Section("packages", "INT8 packages", "The graphs to serve: plain ONNX, in fp32 and in INT8.", packages.parts),
    Section("gates", "Gates", "The limits that each package has to meet before its release.", verdict.parts),
    Section("text", "Text", "How much of the raw text was kept, and why the rest was dropped.", corpus.parts),
    Section("lineage", "Lineage", "The chain from these figures back to the raw text, by hash.", provenance.parts),
    Section(
        "machine",
        "Machine",
        "The machine that made this report. Latencies are from that of the release.",
        machine.parts,
    ),
    Section("figures", "All figures", "Every figure of every metric file.", all_figures.parts),
)


@dataclass(frozen=True)
class Page:
    html: str
    faults: tuple[ClozelineError, ...]
    """Missing or damaged inputs; the page names each in its place too."""


def build(run: Run, only: Collection[str] = ()) -> Page:
    """Build the report of `run`, with a notice in place of each part whose files cannot be read.

    `only`: ids of the chapters to show, unfolded and without the overview; empty: the whole report.
    """
    faults: list[ClozelineError] = []
    on_top = joined() if only else joined(*(part() for part in overview.parts(run)))
    chapters = []
    for section in (section for section in SECTIONS if not only or section.id in only):
        shown: list[ClozelineError] = []
        pieces = joined(*_pieces(section.parts(run), shown))
        chapters.append((section, pieces, section.is_open or bool(shown or only)))
        faults += shown
    title = f"{'Run' if only else 'Report of'} {run.files.root.resolve().name}"
    made = html("page", title=title, built_at=run.built_at, on_top=on_top, chapters=chapters)
    return Page(f"{made}\n", tuple(faults))


def _pieces(parts: Iterable[Part | Fold], shown: list[ClozelineError]) -> Iterable[Markup | None]:
    """Yield the HTML of each part. A missing file gets one notice per section, and is added to `shown`."""
    for part in parts:
        if isinstance(part, Fold):
            num_shown = len(shown)
            body = joined(*_pieces(part.parts, shown))
            yield (html("folded", summary=part.summary, body=body, is_open=len(shown) > num_shown) if body else None)
            continue
        try:
            yield part()
        except ClozelineError as error:
            if str(error) not in map(str, shown):
                shown.append(error)
                yield html("notice", error=error)
