"""`clozeline fill`, `complete`, `embed` and `classify`: run an exported model from the command line."""

from typing import TYPE_CHECKING, Annotated

import typer

from clozeline.cli.asking import (
    PANEL,
    JsonOption,
    ModelOption,
    PrecisionOption,
    TextsArgument,
    TruncateOption,
    chunks,
    opened,
)
from clozeline.errors import DataError, ParamsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clozeline.inference.classifier import Classifier
    from clozeline.inference.tokenization import Given


def add_to(app: typer.Typer) -> None:
    for verb in (fill, complete, embed, classify):
        app.command(rich_help_panel=PANEL)(verb)


def fill(
    texts: TextsArgument,
    model: ModelOption = None,
    top_k: Annotated[int, typer.Option(min=1, help="Candidates for each mask.")] = 5,
    targets: Annotated[
        str | None, typer.Option(help="Words to choose among, such as `list,tuple`; each must be one token.")
    ] = None,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill each [MASK] of a text with the likeliest words.

    Prints a table in a terminal; otherwise, tab-separated text, mask (from 1), rank, token, probability, filled text.

    Examples:

    - `clozeline fill "Return the [MASK] of the list."`
    - `clozeline fill "[MASK] a file for [MASK]." --top-k 3`
    - `clozeline fill "Return a [MASK]." --targets list,tuple,dict`
    - `clozeline fill - < texts.txt > filled.tsv`
    """
    from clozeline.cli import text_answers
    from clozeline.inference.encoder import Encoder

    encoder = opened(model, precision, Encoder)
    words = targets.split(",") if targets is not None else None
    show = text_answers.printer(as_json, text_answers.FILL)
    for chunk in chunks(texts):
        show(chunk, encoder.fill(encoder.with_own_masks(chunk), top_k=top_k, targets=words, truncate=truncate))


def complete(
    texts: TextsArgument,
    model: ModelOption = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of new tokens.")] = 16,
    temperature: Annotated[
        float, typer.Option(min=0, max=100, help="0: the most likely token; 1: a draw from the model's probabilities.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(min=0, max=1, help="Draw from the most likely tokens up to this total probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same answer.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; may be repeated.")] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut the beginning of a text that is too long, instead of refusing it.")
    ] = False,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue each text, token by token. It takes an encoder that was trained with `objective: clm`.

    Prints text and continuation in a terminal, else tab-separated text, continuation, finish reason.

    Examples:

    - `clozeline complete "def sort("`
    - `clozeline complete "Return the" --temperature 0.8 --seed 7 --max-tokens 32`
    - `clozeline complete - --stop . < texts.txt > continued.tsv`
    """
    from clozeline.cli import text_answers
    from clozeline.inference.completer import Completer, Decoding

    completer = opened(model, precision, Completer)
    decoding = Decoding(max_tokens, temperature, top_p, seed, tuple(stop or ()))
    show = text_answers.printer(as_json, text_answers.COMPLETE)
    for chunk in chunks(texts):
        show(chunk, completer.complete(chunk, decoding, truncate=truncate))


def embed(
    texts: TextsArgument,
    model: ModelOption = None,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    prompt: Annotated[
        str | None, typer.Option(help="Name of a prompt of the model (in its manifest), put before each text.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn each text into a vector of length 1; the cosine of two texts is the dot product of their vectors.

    Prints the similarity of the texts in a terminal; otherwise, each text and its vector, tab-separated.

    Examples:

    - `clozeline embed "Sort a list in place." "Order the items of a sequence."`
    - `clozeline embed - --json < texts.txt > vectors.jsonl`
    """
    from clozeline.cli import text_answers
    from clozeline.inference.embedder import Embedder

    embedder = opened(model, precision, Embedder)
    show = text_answers.printer(as_json, text_answers.EMBED)
    for chunk in chunks(texts):
        show(chunk, embedder.embed(chunk, truncate=truncate, prompt_name=prompt))


def classify(
    texts: TextsArgument,
    model: ModelOption = None,
    second: Annotated[
        str | None,
        typer.Option("--with", help="Second text of each pair, for a pair model; or write it after a tab in TEXT."),
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Labels for each text.")] = 5,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Label each text, or each pair of texts if the model was trained on pairs.

    Prints a table in a terminal; otherwise, tab-separated text, rank, label, probability.

    Examples:

    - `clozeline classify "Apply a 2D convolution over an input."`
    - `clozeline classify - --top-k 1 --model dist/library < texts.txt`
    - `clozeline classify "How old are you?" --with "What is your age?" --model dist/qqp`
    """
    from clozeline.cli import text_answers
    from clozeline.inference.classifier import Classifier

    classifier = opened(model, precision, Classifier)
    show = text_answers.printer(as_json, text_answers.CLASSIFY)
    for chunk in chunks(texts):
        show(chunk, classifier.classify(_given(chunk, second, classifier), top_k=top_k, truncate=truncate))


def _given(texts: list[str], second: str | None, classifier: "Classifier") -> "Sequence[Given]":
    """Return the classifier's input: the texts, or each text with the second of its pair."""
    if classifier.manifest.reads_pairs:
        return [_pair(number, text, second) for number, text in enumerate(texts)]
    if second is not None:
        raise ParamsError(
            "the model reads one text at a time",
            given="--with",
            expected="a model that was trained on pairs of texts",
            do="leave --with out, or choose another --model",
        )
    return texts


def _pair(number: int, text: str, second: str | None) -> tuple[str, str]:
    if second is not None:
        return text, second
    first, tab, behind = text.partition("\t")
    if not tab:
        raise DataError(
            f"text {number} has no second text",
            given=repr(text[:60]),
            expected="two texts, because the model reads pairs",
            do="give the second text with --with, or after a tab",
        )
    return first, behind
