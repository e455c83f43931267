"""The whole page: one file, with its style inside, and a policy that lets a browser fetch nothing and run nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
from clozeline.reporting.elements import element, joined
from clozeline.reporting.run import Part, Run, Section

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
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Page:
    html: str
    faults: tuple[ClozelineError, ...]
    """What is missing, each told in its place on the page too."""


def build(run: Run) -> Page:
    """The report of `run`; what cannot be read is told where it would be."""
    faults: list[ClozelineError] = []
    body = joined([_header(run), *(_section(section, run, faults) for section in SECTIONS)])
    html = Markup(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        "<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{contents}\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    ).format(policy=_POLICY, title=_title(run), style=_style(), contents=_contents(), body=body)
    return Page(str(html), tuple(faults))


def _title(run: Run) -> str:
    return f"Report of {run.files.root.resolve().name}"


def _header(run: Run) -> Markup:
    return element(
        "header",
        element("h1", _title(run)),
        element("p", f"Made by clozeline on {run.built_at:%Y-%m-%d at %H:%M} UTC.", class_="lead"),
        in_short.tiles(run),
    )


def _contents() -> Markup:
    links = (element("li", element("a", section.title, href=f"#{section.id}")) for section in SECTIONS)
    return element("nav", element("ul", *links), aria_label="Chapters")


def _section(section: Section, run: Run, faults: list[ClozelineError]) -> Markup:
    told: set[str] = set()
    pieces = list(_pieces(section.parts(run), told, faults))
    head = [element("h2", section.title), element("p", section.lead, class_="lead")]
    nothing = None if any(pieces) else element("p", "There is nothing to show.", class_="note")
    return element("section", *head, *pieces, nothing, id=section.id)


def _pieces(parts: Iterable[Part], told: set[str], faults: list[ClozelineError]) -> Iterable[Markup | None]:
    """What each part makes; what it lacks is told once in a section."""
    for part in parts:
        try:
            yield part()
        except ClozelineError as error:
            if str(error) not in told:
                told.add(str(error))
                faults.append(error)
                yield _notice(error)


def _notice(error: ClozelineError) -> Markup:
    given = (
        None if error.given == "no such file" else element("p", f"Given: {error.given}. Expected: {error.expected}.")
    )
    return element(
        "aside", element("strong", f"{error.problem}."), given, element("p", f"To do: {error.do}."), class_="notice"
    )


def _style() -> Markup:
    return Markup(Path(__file__).with_name("style.css").read_text(encoding="utf-8"))
