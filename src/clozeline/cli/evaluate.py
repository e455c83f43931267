"""`clozeline evaluate`: how good a model is, and whether it is better than another."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clozeline.api.knobs import renamed
from clozeline.errors import DataError, ParamsError

if TYPE_CHECKING:
    from clozeline.contest.contender import Asking
    from clozeline.params import SourceParams

_OPTIONS = {
    "source.text_field": "--text-field",
    "source.one_document_per": "--one-document-per",
    "source.pattern": "--pattern",
    "source.path": "--text",
}
"""Field of the text room → option of this command."""

_SEED, _MAX_LENGTH = 0, 128
"""Defaults outside a project."""


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Use a model")(evaluate)


def evaluate(
    model: Annotated[str, typer.Option("--model", "-m", help="A folder with a model, or a name on the hub.")],
    text: Annotated[
        Path | None, typer.Option("--text", "-t", help="A file or folder of text that the model was not trained on.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Another model: a paired test says which is better.")] = None,
    blimp: Annotated[
        Path | None, typer.Option(help="A folder of minimal pairs (BLiMP's .jsonl files): accuracy by phenomenon.")
    ] = None,
    estimator: Annotated[
        Literal["folds", "pll"],
        typer.Option(help="Hide a fold of the tokens at a time, or each token alone (pseudo-log-likelihood: slower)."),
    ] = "folds",
    text_field: Annotated[
        str, typer.Option(help="Field or column with the text, in JSON Lines, CSV or Parquet.")
    ] = "text",
    one_document_per: Annotated[
        Literal["paragraph", "line", "file"], typer.Option(help="Unit of plain text that is one document.")
    ] = "paragraph",
    pattern: Annotated[str, typer.Option(help="Files to read, if --text is a folder.")] = "**/*",
    max_length: Annotated[
        int | None,
        typer.Option(min=8, help="Tokens per row. [default: that of params.yaml; else 128]", show_default=False),
    ] = None,
    samples: Annotated[int, typer.Option(min=100, help="Resamples of the documents, for intervals and tests.")] = 2000,
    scores: Annotated[
        Path | None, typer.Option(help="Write the log-likelihood of each document to this file, as JSON Lines.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
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
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # see stage.py: set before torch is loaded
    if text is None and blimp is None:
        raise _nothing_asked()
    from clozeline.cli import evaluate_tables
    from clozeline.contest.judgement import Questions, judge_models

    how, family = _how(estimator, max_length)
    source = source_of(text, text_field, one_document_per, pattern)
    questions = Questions(
        text, source, blimp, how, is_length_given=max_length is not None, num_samples=samples, family=family
    )
    names = [model] if against is None else [model, against]
    try:
        judgement = judge_models(names, questions, scores)
    except DataError as error:
        raise renamed(error, _OPTIONS.get) from error
    evaluate_tables.show(judgement, as_json=as_json)


def _nothing_asked() -> ParamsError:
    return ParamsError(
        "there is nothing to evaluate on",
        given="neither --text nor --blimp",
        expected="one of them, or both",
        do="give text that the model was not trained on: `--text FILE`",
    )


def _how(estimator: Literal["folds", "pll"], max_length: int | None) -> "tuple[Asking, str | None]":
    """Return the settings and the family of your own encoder, in a project those of params.yaml, so that the figures
    match stage `evaluate`.
    """
    from clozeline.contest.contender import Asking
    from clozeline.evaluation.asking import BATCH_TOKENS, NUM_FOLDS
    from clozeline.params import read_params

    seed, length = _SEED, _MAX_LENGTH
    family = None
    if (file := Path("params.yaml")).is_file():
        params = read_params(file)
        seed, length = params.seed, params.evaluate.max_length
        family = params.pretrain.model.family
    how = Asking(
        estimator=estimator,
        seed=seed,
        num_folds=NUM_FOLDS,
        max_length=length if max_length is None else max_length,
        batch_tokens=max(BATCH_TOKENS, max_length or length),
    )
    return how, family


def source_of(
    text: Path | None,
    text_field: str = "text",
    one_document_per: Literal["paragraph", "line", "file"] = "paragraph",
    pattern: str = "**/*",
) -> "SourceParams":
    """Return the params with which the text room reads a file or folder."""
    from clozeline.params import SourceParams

    return SourceParams(
        kind="files",
        path=str(text),
        url=None,
        query=None,
        pattern=pattern,
        one_document_per=one_document_per,
        text_field=text_field,
        label_field=None,
        dataset=None,
        subset=None,
        revision=None,
    )
