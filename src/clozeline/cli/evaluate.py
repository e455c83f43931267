"""`clozeline evaluate`: how good a model is, and whether it is better than another. `clozeline search`: find functions.

Results of `evaluate` are tables for people or one JSON object for programs. `search` finds functions of the installed
libraries by what they do.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from clozeline.cli.tables import AnswerForm, JsonLinesOption, JsonOption, ranked, show_answers, show_or_json, table_of
from clozeline.inference import language, package
from clozeline.params.reading import read_params, renamed
from clozeline.params.text import UNSET_SOURCE, SourceParams
from clozeline.records.package import FILES
from clozeline.system import errors, machine

if TYPE_CHECKING:
    from clozeline.evaluation.measuring import EncoderFigures
    from clozeline.lab.contest import ContestAsking, Judgement, PairedTest
    from clozeline.lab.search import By, SearchHit


# Field of the text room → option of this command.
_OPTIONS = {
    "source.text_field": "--text-field",
    "source.one_document_per": "--one-document-per",
    "source.pattern": "--pattern",
    "source.path": "--text",
}

_ESTIMATORS = {"folds": "one token in {num_folds} hidden at a time", "pll": "each token hidden alone"}
_PAIRS = "of the pairs"
_CAUSAL = "each token predicted from those before it"
_OTHER_TOKENS = (
    "Their tokens differ: perplexity and top-1 do not compare. Nats per byte do, but favour a tokenizer with shorter"
    " tokens: while one token is hidden, the model sees the rest of its word."
)
_NOT_ALIKE = (
    "One model sees both sides of each token, the other only the tokens before it: these figures do not say which is"
    " better."
)
_PACKAGE = "dist/docsearch"
_CLEAN = Path("data/clean")
_KEPT = Path("work/search")
_SCORES = {"both": "score", "meaning": "cosine", "words": "BM25"}


def evaluate(
    model: Annotated[str, typer.Option("--model", "-m")],
    text: Annotated[Path | None, typer.Option("--text", "-t")] = None,
    against: str | None = None,
    blimp: Path | None = None,
    estimator: Literal["folds", "pll"] = "folds",
    text_field: str = "text",
    one_document_per: Literal["paragraph", "line", "file"] = "paragraph",
    pattern: str = "**/*",
    max_length: Annotated[int | None, typer.Option(min=8, show_default=False)] = None,
    samples: Annotated[int, typer.Option(min=100)] = 2000,
    scores: Path | None = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how well a masked or causal language model predicts a text, and which of two models predicts it better.

    The model predicts every token of the text once. Nats per byte (lower is better) compare any two models.
    Perplexity and top-1 compare only models with the same tokens. Intervals (95 %) and tests resample documents.
    In a project, rows, folds and seed are those of params.yaml, so that the figures equal those of stage `evaluate`.

    Examples:

    - `clozeline evaluate -m models/encoder -t data/clean/validation.parquet`
    - `clozeline evaluate -m models/encoder --against answerdotai/ModernBERT-base -t notes.txt`
    - `clozeline evaluate -m models/encoder -t notes.jsonl --estimator pll --scores scores.jsonl`
    - `clozeline evaluate -m models/encoder --blimp blimp/data --json`

    Args:
        model: A folder with a model, or a name on the hub.
        text: A file or folder of text that the model was not trained on.
        against: Another model: a paired test says which is better.
        blimp: A folder of minimal pairs (BLiMP's .jsonl files): accuracy by phenomenon.
        estimator: Hide a fold of the tokens at a time, or each token alone (pseudo-log-likelihood: slower).
        text_field: Field or column with the text, in JSON Lines, CSV or Parquet.
        one_document_per: Unit of plain text that is one document.
        pattern: Files to read, if --text is a folder.
        max_length: Tokens per row. [default: that of params.yaml; else 128]
        samples: Resamples of the documents, for intervals and tests.
        scores: Write the log-likelihood of each document to this file, as JSON Lines.
    """
    if text is None and blimp is None:
        raise errors.ParamsError(
            "there is nothing to evaluate on: neither --text nor --blimp is given",
            do="give text that the model was not trained on: `--text FILE`",
        )
    from clozeline.lab.contest import ContestQuestions, judge_models

    how, family = _how(estimator, max_length)
    source = source_of(text, text_field, one_document_per, pattern)
    has_length = max_length is not None
    questions = ContestQuestions(text, source, blimp, how, has_length, samples, family)
    try:
        judgement = judge_models([name for name in (model, against) if name is not None], questions, scores)
    except errors.DataError as error:
        raise renamed(error, _OPTIONS.get) from error
    show_or_json(judgement, _judgement_tables(judgement), as_json=as_json)


def _how(estimator: Literal["folds", "pll"], max_length: int | None) -> "tuple[ContestAsking, str | None]":
    """Return the settings and the family of your own encoder, in a project those of params.yaml, so that the figures
    match stage `evaluate`.
    """
    from clozeline.evaluation.groups import BATCH_TOKENS, NUM_FOLDS
    from clozeline.lab.contest import ContestAsking

    seed, length, family = 0, 128, None  # outside a project
    if (file := Path("params.yaml")).is_file():
        params = read_params(file)
        seed, length, family = params.seed, params.evaluate.max_length, params.pretrain.model.family
    length = max_length or length
    return ContestAsking(estimator, seed, NUM_FOLDS, length, max(BATCH_TOKENS, length)), family


def source_of(
    text: Path | None,
    text_field: str = "text",
    one_document_per: Literal["paragraph", "line", "file"] = "paragraph",
    pattern: str = "**/*",
) -> SourceParams:
    """Return the params with which the text room reads a file or folder."""
    given = {"pattern": pattern, "one_document_per": one_document_per, "text_field": text_field}
    return SourceParams.model_validate({**UNSET_SOURCE, "kind": "files", "path": str(text), **given})


def _judgement_tables(judgement: "Judgement") -> Iterator[RenderableType]:
    if judgement.models[0].text:
        yield _text_table(judgement)
    if judgement.comparison:
        yield _verdict(judgement, judgement.comparison.nats_per_byte, "nats per byte", is_low_better=True)
    if judgement.models[0].blimp:
        yield _blimp_table(judgement)
    if judgement.blimp_accuracy:
        yield _verdict(judgement, judgement.blimp_accuracy, _PAIRS, is_low_better=False)


def _text_table(judgement: "Judgement") -> Table:
    found = [model.text for model in judgement.models if model.text]
    masked = _ESTIMATORS[judgement.how.estimator].format(num_folds=judgement.how.num_folds)
    ways = dict.fromkeys(_CAUSAL if model.objective == "clm" else masked for model in judgement.models)
    size = f"{found[0].validation_documents:,} documents, {found[0].text_bytes:,} bytes"
    title = "; ".join([size, *ways, f"rows of {judgement.how.max_length} tokens"])
    rows = [
        ("nats per byte", *(_interval(figures, "nats_per_byte", "{:.4f}") for figures in found)),
        ("tokens", *(f"{figures.validation_tokens:,}" for figures in found)),
        ("unknown tokens", *(f"{figures.unknown_tokens:,}" for figures in found)),
    ]
    if judgement.same_tokens:
        rows += [
            ("perplexity", *(_interval(figures, "perplexity", "{:.2f}") for figures in found)),
            ("top-1", *(_interval(figures, "top1", "{:.1%}") for figures in found)),
            ("top-5", *(f"{figures.top5:.1%}" for figures in found)),
        ]
    rows.append(("calibration error", *(f"{model.expected_calibration_error:.4f}" for model in judgement.models)))
    table = table_of(title, *_heads(judgement), rows=rows)
    notes = [] if judgement.same_tokens else [_OTHER_TOKENS]
    table.caption = "\n".join(notes if judgement.asked_alike else [*notes, _NOT_ALIKE]) or None
    return table


def _blimp_table(judgement: "Judgement") -> Table:
    found = [model.blimp for model in judgement.models if model.blimp]
    title = f"Accuracy on {found[0].overall.num_pairs:,} minimal pairs; chance is 50 %"
    of_phenomena = zip(*(figures.phenomena for figures in found), strict=True)
    rows = ((f"{of[0].name} ({of[0].num_pairs:,})", *(f"{one.accuracy:.1%}" for one in of)) for of in of_phenomena)
    table = table_of(title, *_heads(judgement), rows=rows)
    table.add_section()
    table.add_row("mean of paradigms", *(f"{figures.accuracy:.1%}" for figures in found))
    table.add_row("undecided pairs", *(f"{figures.overall.num_ties:,}" for figures in found))
    return table


def _verdict(judgement: "Judgement", test: "PairedTest", unit: str, *, is_low_better: bool) -> str:
    first, second = (escape(model.name) for model in judgement.models)
    summary = f"{first} - {second}: {test.difference:+.4f} {unit} (95 %: {test.low:+.4f} to {test.high:+.4f}), "
    summary += f"p = {test.p_value:.4f}: "
    if not (judgement.asked_alike or unit == _PAIRS):
        return summary + "but one sees both sides of a token, the other one side"
    if not test.is_significant:
        return summary + "no significant difference on these texts"
    return summary + f"[bold]{first if (test.difference < 0) == is_low_better else second}[/] is better"


def _interval(figures: "EncoderFigures", name: str, form: str) -> str:
    figure, low, high = (form.format(getattr(figures, f"{name}{end}")) for end in ("", "_low", "_high"))
    return f"{figure} ({low}-{high})"


def _heads(judgement: "Judgement") -> Sequence[str]:
    return ["", *(f">{escape(model.name)}" for model in judgement.models)]


def search(
    queries: Annotated[list[str] | None, typer.Argument(metavar="QUERY...")] = None,
    top_k: Annotated[int, typer.Option(min=1)] = 10,
    library: str | None = None,
    model: Annotated[str, typer.Option("--model", "-m")] = _PACKAGE,
    by: Literal["both", "meaning", "words"] = "both",
    beir: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None,
    as_json: JsonLinesOption = False,
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

    Args:
        queries: What the function does, as a sentence; quote each.
        top_k: Functions for each query.
        library: Search only this library, such as numpy; `python` is the standard library.
        model: A folder of dist/, or a registry URI (models:/NAME@ALIAS).
        by: meaning: cosine of the model's vectors; words: BM25; both: a weighted sum.
        beir: Measure the search on judged queries instead: a folder in BEIR's layout.
    """
    if beir is not None and not queries:
        _measure(model, beir, as_json=as_json)
    elif queries and beir is None:
        _answer(model, queries, top_k, library, by, as_json=as_json)
    else:
        raise errors.ParamsError(
            "--beir takes its queries from the folder" if beir else "there is nothing to search for",
            do='ask for example `clozeline search "Remove duplicate rows from a table."`',
        )


def _answer(model: str, queries: Sequence[str], top_k: int, library: str | None, by: "By", *, as_json: bool) -> None:
    from clozeline.lab.search import SearchIndex

    embedder, folder, name = _opened(model)
    index = SearchIndex.open(embedder, folder, _CLEAN, _KEPT / name)
    if library is not None and library not in index.libraries:
        raise errors.ParamsError(
            f"there is no library {library} in the text, but {', '.join(index.libraries)}",
            do="choose one of these, or leave --library out",
        )
    vectors_QH = embedder.embed(queries, truncate=True)
    asked = zip(queries, vectors_QH, strict=True)
    answers = [index.nearest(query, vector_H, top_k, library, by) for query, vector_H in asked]
    rows = ranked("score", "library", "name", "summary")
    form = AnswerForm(("query", "found"), rows, partial(_hit_tables, _SCORES[by]))
    show_answers(queries, answers, form, as_json=as_json)


def _measure(place: str, beir: Path, *, as_json: bool) -> None:
    """Print the figures of the search on the folder `beir`."""
    from clozeline.lab.search import JudgedQueries, retrieval

    judged = JudgedQueries.open(beir)
    found = retrieval(_opened(place)[0], judged)
    title = f"{beir}: {found.num_queries:,} queries, {found.num_documents:,} documents"
    columns = ("method", ">nDCG@10", ">recall@10", ">nDCG@10 minus BM25", ">recall@10 minus BM25")
    rows = []
    for method in found.methods:
        both = (method.ndcg_at_10, method.recall_at_10)
        means = [f"{100 * m.value:.1f} ({100 * m.interval.low:.1f} to {100 * m.interval.high:.1f})" for m in both]
        leads = ["" if m.lead is None else f"{100 * m.lead.low:+.1f} to {100 * m.lead.high:+.1f}" for m in both]
        rows.append((method.method, *means, *leads))
    show_or_json(found, [table_of(title, *columns, rows=rows)], as_json=as_json)


def _opened(place: str) -> tuple[language.Embedder, Path, str]:
    """Return the model, its folder and its name."""
    from clozeline.registry.sources import REGISTRY_SCHEME, ModelSource, fetched

    if not place.startswith(REGISTRY_SCHEME) and not (Path(place) / FILES.manifest).is_file():
        raise errors.ArtifactError(
            f"{place} is not a model to search with: there is no {place}/{FILES.manifest}",
            do="run `dvc repro export@docsearch` (or `make run`), or name another embedder with --model",
        )
    source = ModelSource.parse(place)
    folder = fetched(source).folder
    model = package.load(folder, num_threads=machine.available_cores())
    if not isinstance(model, language.Embedder):
        raise errors.ParamsError(
            f"{place} is a model for another task, {model.manifest.task}: it does not turn texts into vectors",
            do="leave --model out, or name an embedder",
        )
    return model, folder, source.name


def _hit_tables(score: str, queries: Sequence[str], hits: "Sequence[Sequence[SearchHit]]") -> Iterator[RenderableType]:
    for query, found in zip(queries, hits, strict=True):
        yield Text(query, style="bold")
        cells = ((*map(escape, (one.library, one.name, one.summary)), f"{one.score:.3f}") for one in found)
        yield table_of("", "library", "name", "summary", f">{score}", rows=cells)
