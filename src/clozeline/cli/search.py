"""`clozeline search`: find functions of the installed libraries by what they do."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clozeline.errors import ArtifactError, ParamsError
from clozeline.machine.cores import available_cores

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clozeline.inference.embedder import Embedder
    from clozeline.search.index import By, Found
    from clozeline.search.judged import Measured

_PACKAGE = "dist/docsearch"
_CLEAN = Path("data/clean")
_KEPT = Path("work/search")
_SCORES = {"both": "score", "meaning": "cosine", "words": "BM25"}


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Use a model")(search)


def search(
    queries: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUERY...", help="What the function does, as a sentence; quote each."),
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Functions for each query.")] = 10,
    library: Annotated[
        str | None, typer.Option(help="Search only this library, such as numpy; `python` is the standard library.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="A folder of dist/, or a registry URI (models:/NAME@ALIAS).")
    ] = _PACKAGE,
    by: Annotated[
        Literal["both", "meaning", "words"],
        typer.Option(help="meaning: cosine of the model's vectors; words: BM25; both: a weighted sum."),
    ] = "both",
    beir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Measure the search on judged queries instead: a folder in BEIR's layout."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per query, each on its own line.")
    ] = False,
) -> None:
    """Find functions of the installed libraries by what they do, not by their names.

    The exported `docsearch` model embeds every docstring once. That takes about a minute; the vectors stay in
    work/search until the model or the text changes. The default score combines meaning and words, because each finds
    functions that the other misses. Write a query like a docstring: "Return the sorted values", not "sort".

    With --beir, documents and queries are those of the folder (corpus.jsonl, queries.jsonl, qrels/test.tsv; as
    BEIR's archives have them), and the command prints nDCG@10 and recall@10 of the model, of BM25 and of both, with
    95 % intervals, also of the difference to BM25, paired by query.

    Prints a table in a terminal; otherwise, tab-separated query, rank, score, library, name, summary.

    Examples:

    - `clozeline search "Remove duplicate rows from a table."`
    - `clozeline search "Wait until a file exists." --library python --top-k 3`
    - `clozeline search "Compute a hash of a file." --by meaning --json`
    - `clozeline search --beir data/scifact -m dist/minilm`
    """
    if beir is not None or not queries:
        _measure(model, beir, queries or [], as_json=as_json)
        return
    _answer(model, queries, top_k, library, by, as_json=as_json)


def _answer(model: str, queries: Sequence[str], top_k: int, library: str | None, by: "By", *, as_json: bool) -> None:
    from clozeline.cli.text_answers import Form, printer
    from clozeline.search.index import Query, SearchIndex

    embedder, folder, name = _opened(model)
    index = SearchIndex.open(embedder, folder, _CLEAN, _KEPT / name)
    if library is not None and library not in index.libraries:
        raise ParamsError(
            f"there is no library {library} in the text",
            given=library,
            expected=f"one of: {', '.join(index.libraries)}",
            do="choose one of these, or leave --library out",
        )
    vectors_QH = embedder.embed(queries, truncate=True)
    asked = [Query(query, vector_H) for query, vector_H in zip(queries, vectors_QH, strict=True)]
    answers = [index.nearest(query, top_k, library, by) for query in asked]
    printer(as_json, Form(("query", "found"), _lines, partial(_tables, _SCORES[by])))(queries, answers)


def _measure(place: str, beir: Path | None, queries: Sequence[str], *, as_json: bool) -> None:
    """Print the figures of the search on the folder `beir`."""
    if beir is None or queries:
        raise ParamsError(
            "there is nothing to search for" if beir is None else "--beir takes its queries from the folder",
            given="no query" if beir is None else queries[0],
            expected="queries, or --beir with a folder in BEIR's layout",
            do='ask for example `clozeline search "Remove duplicate rows from a table."`',
        )
    from clozeline.search.beir import JudgedQueries
    from clozeline.search.judged import retrieval

    judged = JudgedQueries.open(beir)
    found = retrieval(_opened(place)[0], judged)
    if as_json:
        typer.echo(found.model_dump_json())
        return
    from rich.console import Console

    from clozeline.cli.tables import table_of

    title = f"{beir}: {found.num_queries:,} queries, {found.num_documents:,} documents"
    columns = ("method", ">nDCG@10", ">recall@10", ">nDCG@10 minus BM25", ">recall@10 minus BM25")
    measured = ((one.method, (one.ndcg_at_10, one.recall_at_10)) for one in found.methods)
    rows = ((method, *map(_in_percent, both), *map(_lead, both)) for method, both in measured)
    Console().print(table_of(title, *columns, rows=rows))


def _in_percent(found: "Measured") -> str:
    return f"{100 * found.value:.1f} ({100 * found.interval.low:.1f} to {100 * found.interval.high:.1f})"


def _lead(found: "Measured") -> str:
    return "" if found.lead is None else f"{100 * found.lead.low:+.1f} to {100 * found.lead.high:+.1f}"


def _opened(place: str) -> "tuple[Embedder, Path, str]":
    """Return the model, its folder and its name."""
    from clozeline.artifacts.export.manifest import FILES
    from clozeline.inference.embedder import Embedder
    from clozeline.inference.package import load
    from clozeline.serving.models.sources import REGISTRY_SCHEME, ModelSource, fetched

    if not place.startswith(REGISTRY_SCHEME) and not (Path(place) / FILES.manifest).is_file():
        raise ArtifactError(
            f"{place} is not a model to search with",
            given=f"no {place}/{FILES.manifest}",
            expected="the exported model of the task docsearch",
            do="run `dvc repro export@docsearch` (or `make run`), or name another embedder with --model",
        )
    source = ModelSource.parse(place)
    folder = fetched(source).folder
    model = load(folder, num_threads=available_cores())
    if not isinstance(model, Embedder):
        raise ParamsError(
            f"{place} is a model for another task",
            given=f"a model of the task {model.manifest.task}",
            expected="a model that turns texts into vectors",
            do="leave --model out, or name an embedder",
        )
    return model, folder, source.name


def _lines(queries: Sequence[str], answers: "Sequence[Sequence[Found]]") -> Iterator[Sequence[object]]:
    for query, found in zip(queries, answers, strict=True):
        for rank, one in enumerate(found, start=1):
            yield query, rank, one.score, one.library, one.name, one.summary


def _tables(score: str, queries: Sequence[str], answers: "Sequence[Sequence[Found]]") -> "Iterator[RenderableType]":
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    for query, found in zip(queries, answers, strict=True):
        yield Text(query, style="bold")
        table = Table("library", "name", "summary")
        table.add_column(score, justify="right")
        for one in found:
            table.add_row(escape(one.library), escape(one.name), escape(one.summary), f"{one.score:.3f}")
        yield table
