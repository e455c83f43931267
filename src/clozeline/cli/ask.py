"""`clozeline fill`, `complete`, `embed`, `classify`, `choose`, `tag` and `answer`: ask an exported model.

`choose` gives labels without training (zero-shot classification); `tag` and `answer` find spans in a text.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from clozeline.cli import tables
from clozeline.inference.answerer import Answerer
from clozeline.inference.classifier import Classifier, Tagger
from clozeline.inference.completer import Completer, Decoding
from clozeline.inference.fields import MAX_TOKENS, TEMPLATE, Aggregation, AnswerSearch
from clozeline.inference.language import Embedder, OpenEncoder
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import MODEL_KINDS
from clozeline.inference.tokenization import Given
from clozeline.serving import zero_shot
from clozeline.system.errors import DataError, ParamsError

Model = TypeVar("Model", bound=OpenModel)
# Number of texts of standard input that are answered before more are read.
_CHUNK_TEXTS = 1024
_STANDARD_INPUT = "-"
_ASKED = (
    "fill takes masked encoders; complete causal ones; embed encoders and embedders; "
    "choose masked encoders and entailment classifiers; classify classifiers; tag taggers; "
    "answer question-answering models"
)

# Kind of model → an example of its verb; `pairs` and `entailment` are classifiers of two texts.
EXAMPLES: Mapping[str, str] = {
    "fill-mask": 'fill "A sentence of yours with a [MASK] in it."',
    "text-generation": 'complete "The beginning of a sentence of yours"',
    "text-classification": 'classify "A sentence of yours."',
    "token-classification": 'tag "A sentence of yours."',
    "question-answering": 'answer "A question?" --context "A text with the answer."',
    "feature-extraction": 'embed "A sentence of yours."',
    "pairs": 'classify "A sentence of yours." --with "Another one."',
    "entailment": 'choose "A sentence of yours." --labels sport,money',
}

TextsArgument = Annotated[
    list[str], typer.Argument(metavar="TEXT...", help="Texts; `-` reads them from standard input, one per line.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A folder of dist/, or a registry URI (models:/NAME@ALIAS). "
        "[default: the matching model of dist/, else of the registry]",
        show_default=False,
    ),
]
PrecisionOption = Annotated[
    Literal["int8", "fp32"] | None,
    typer.Option(
        help="Precision of the graph that answers. [default: int8, unless export or release chose fp32]",
        show_default=False,
    ),
]
TruncateOption = Annotated[
    bool, typer.Option("--truncate", help="Cut the end of a text that is too long, instead of refusing the text.")
]


def opened(place: str | None, precision: Literal["int8", "fp32"] | None, *kinds: type[Model]) -> Model:
    """Open the model at `place`, which must be of one of `kinds`; without a place, the default model for the first of
    their tasks.

    Raises:
        ParamsError: the model is of another task, or there are several without a place.
        ArtifactError: the model is missing or damaged.
    """
    from clozeline.registry import sources

    tasks = [task for task, row in MODEL_KINDS.items() if issubclass(row.model, kinds)]
    source = sources.ModelSource.parse(place) if place else sources.default_for(tasks[0])
    model = sources.opened(source, precision)
    if not isinstance(model, kinds):
        raise ParamsError(
            f"{source.place} is a model for another task: {model.manifest.task}, not {' or '.join(tasks)}",
            do=f"choose another --model or another command: {_ASKED}",
        )
    return model


def ask(
    texts: list[str], form: tables.AnswerForm, answer: Callable[[list[str]], Iterable[object]], as_json: bool
) -> None:
    """Print the answers to the given texts, or to those of standard input in chunks as they come.

    Raises:
        DataError: a line of standard input is not UTF-8.
    """
    lines = (line.strip() for line in decoded(sys.stdin.buffer, "standard input"))
    waiting = filter(None, lines) if texts == [_STANDARD_INPUT] else iter(texts)
    while chunk := list(islice(waiting, _CHUNK_TEXTS)):
        tables.show_answers(chunk, answer(chunk), form, as_json=as_json)


def decoded(lines: Iterable[bytes], place: str) -> Iterator[str]:
    """Decode lines of text.

    Raises:
        DataError: a line is not UTF-8; the message names it and `place`.
    """
    for number, raw in enumerate(lines, start=1):
        try:
            yield raw.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number} of {place} is not UTF-8: {raw[max(error.start - 10, 0) : error.end + 10]!r}",
                do="convert it first, for example with `iconv -f LATIN1 -t UTF-8`",
            ) from error


def fill(
    texts: TextsArgument,
    model: ModelOption = None,
    top_k: Annotated[int, typer.Option(min=1)] = 5,
    targets: str | None = None,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: tables.JsonLinesOption = False,
) -> None:
    """Fill each [MASK] of a text with the likeliest words.

    Prints a table in a terminal; otherwise, tab-separated text, mask (from 1), rank, token, probability, filled text.

    Examples:

    - `clozeline fill "Return the [MASK] of the list."`
    - `clozeline fill "[MASK] a file for [MASK]." --top-k 3`
    - `clozeline fill "Return a [MASK]." --targets list,tuple,dict`
    - `clozeline fill - < texts.txt > filled.tsv`

    Args:
        top_k: Candidates for each mask.
        targets: Words to choose among, such as `list,tuple`; each must be one token.
    """
    encoder = opened(model, precision, OpenEncoder)
    words = targets.split(",") if targets is not None else None

    def filled(chunk: list[str]) -> Iterable[object]:
        return encoder.fill(encoder.with_own_masks(chunk), top_k=top_k, targets=words, truncate=truncate)

    ask(texts, tables.FILL, filled, as_json)


def complete(
    texts: TextsArgument,
    model: ModelOption = None,
    max_tokens: Annotated[int, typer.Option(min=1)] = 16,
    temperature: Annotated[float, typer.Option(min=0, max=100)] = 0.0,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    stop: list[str] | None = None,
    truncate: Annotated[bool, typer.Option("--truncate")] = False,
    precision: PrecisionOption = None,
    as_json: tables.JsonLinesOption = False,
) -> None:
    """Continue each text, token by token. It takes an encoder that was trained with `objective: clm`.

    Prints text and continuation in a terminal, else tab-separated text, continuation, finish reason.

    Examples:

    - `clozeline complete "def sort("`
    - `clozeline complete "Return the" --temperature 0.8 --seed 7 --max-tokens 32`
    - `clozeline complete - --stop . < texts.txt > continued.tsv`

    Args:
        max_tokens: Maximum number of new tokens.
        temperature: 0: the most likely token; 1: a draw from the model's probabilities.
        top_p: Draw from the most likely tokens up to this total probability.
        seed: The same seed gives the same answer.
        stop: End before this string; may be repeated.
        truncate: Cut the beginning of a text that is too long, instead of refusing it.
    """
    completer = opened(model, precision, Completer)
    decoding = Decoding(max_tokens, temperature, top_p, seed, tuple(stop or ()))
    ask(texts, tables.COMPLETE, lambda chunk: completer.complete(chunk, decoding, truncate=truncate), as_json)


def embed(
    texts: TextsArgument,
    model: ModelOption = None,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    prompt: str | None = None,
    as_json: tables.JsonLinesOption = False,
) -> None:
    """Turn each text into a vector of length 1; the cosine of two texts is the dot product of their vectors.

    Prints the similarity of the texts in a terminal; otherwise, each text and its vector, tab-separated.

    Examples:

    - `clozeline embed "Sort a list in place." "Order the items of a sequence."`
    - `clozeline embed - --json < texts.txt > vectors.jsonl`

    Args:
        prompt: Name of a prompt of the model (in its manifest), put before each text.
    """
    embedder = opened(model, precision, Embedder)
    ask(texts, tables.EMBED, lambda chunk: embedder.embed(chunk, truncate=truncate, prompt_name=prompt), as_json)


def classify(
    texts: TextsArgument,
    model: ModelOption = None,
    second: Annotated[str | None, typer.Option("--with")] = None,
    top_k: Annotated[int, typer.Option(min=1)] = 5,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: tables.JsonLinesOption = False,
) -> None:
    """Label each text, or each pair of texts if the model was trained on pairs.

    Prints a table in a terminal; otherwise, tab-separated text, rank, label, probability.

    Examples:

    - `clozeline classify "Apply a 2D convolution over an input."`
    - `clozeline classify - --top-k 1 --model dist/library < texts.txt`
    - `clozeline classify "How old are you?" --with "What is your age?" --model dist/qqp`

    Args:
        second: Second text of each pair, for a pair model; or write it after a tab in TEXT.
        top_k: Labels for each text.
    """
    classifier = opened(model, precision, Classifier)

    def given(place: int, text: str) -> Given:
        return _pair(place, text, second) if classifier.manifest.reads_pairs else text

    if second is not None and not classifier.manifest.reads_pairs:
        raise ParamsError(
            "the model reads one text at a time, and --with gives a second one",
            do="leave --with out, or choose another --model that was trained on pairs of texts",
        )

    def classified(chunk: list[str]) -> Iterable[object]:
        asked = [given(place, text) for place, text in enumerate(chunk)]
        return classifier.classify(asked, top_k=top_k, truncate=truncate)

    ask(texts, tables.CLASSIFY, classified, as_json)


def _pair(place: int, text: str, second: str | None) -> tuple[str, str]:
    first, tab, behind = (text, "\t", second) if second is not None else text.partition("\t")
    if not tab:
        raise DataError(
            f"text {place} has no second text, and the model reads pairs: {text[:60]!r}",
            do="give the second text with --with, or after a tab",
        )
    return first, behind


def tag(
    texts: TextsArgument,
    model: ModelOption = None,
    aggregation: Aggregation = "first",
    precision: PrecisionOption = None,
    as_json: tables.JsonLinesOption = False,
) -> None:
    """Find the entities of each text: people, places, or whatever the model was trained to tag.

    A text may be of any length: a long one is read in windows that overlap.

    Prints the marked text and a table in a terminal; otherwise, one tab-separated line per entity: text, entity, type,
    probability, start and end in characters.

    Examples:

    - `clozeline tag "Maria Lopez moved from Oslo to Rome."`
    - `clozeline tag - --json --model dist/wnut17 < texts.txt > entities.jsonl`

    Args:
        aggregation: none: each token alone; simple: neighbours of one type joined; first, average, max: whole
            words, by the tag of their first token, of the mean of their tokens, or of their most confident token.
    """
    tagger = opened(model, precision, Tagger)
    ask(texts, tables.TAG, lambda chunk: tagger.tag(chunk, strategy=aggregation), as_json)


def answer(
    questions: Annotated[list[str], typer.Argument(metavar="QUESTION...")],
    context: Annotated[str | None, typer.Option("--context", "-c")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f")] = None,
    model: ModelOption = None,
    top_k: Annotated[int, typer.Option(min=1)] = 3,
    no_answer: Annotated[bool | None, typer.Option("--no-answer/--always-answer", show_default=False)] = None,
    max_tokens: Annotated[int, typer.Option(min=1)] = 15,
    precision: PrecisionOption = None,
    as_json: tables.JsonLinesOption = False,
) -> None:
    """Answer each question with a passage of a text.

    The text may be of any length: a long one is read in windows that overlap.

    Prints a table and the best answer in its context in a terminal; otherwise, tab-separated question, rank, answer,
    probability, start and end in characters. An empty answer means that the text does not contain one.

    Examples:

    - `clozeline answer "Where does Maria live?" --context "Maria Lopez moved from Oslo to Rome."`
    - `clozeline answer "What does it cost?" "Who pays?" --file contract.txt --top-k 1`
    - `clozeline answer - --file README.md --json < questions.txt`

    Args:
        questions: Questions; quote each. `-` reads them from standard input, one per line.
        context: Text that may hold the answer.
        file: File with that text, in UTF-8; `-` is standard input.
        top_k: Answers to each question.
        no_answer: Whether "no answer" is allowed. [default: if the model was trained with unanswerable questions]
        max_tokens: Maximum number of tokens of an answer.
    """
    text = _context(context, file, questions)
    answerer = opened(model, precision, Answerer)
    allowed = answerer.manifest.no_answer_margin is not None if no_answer is None else no_answer
    search = AnswerSearch(handle_impossible_answer=allowed, max_answer_len=min(max_tokens, MAX_TOKENS))

    def answers(chunk: list[str]) -> Iterable[object]:
        # One question at a time, because each has the windows of the whole text.
        return [answerer.ask([(question, text)], top_k=top_k, search=search)[0] for question in chunk]

    ask(questions, tables.answers_from(text), answers, as_json)


def _context(context: str | None, file: Path | None, questions: list[str]) -> str:
    do = "give the text with --context, or its file: --file notes.txt"
    if (context is None) == (file is None):
        given = "neither --context nor --file" if file is None else "both --context and --file"
        raise ParamsError(f"`clozeline answer` needs exactly one text to answer from, and got {given}", do=do)
    text = _read(file, questions) if file is not None else context or ""
    if not text.strip():
        place = "" if file is None else f": {file} is without a visible character"
        raise DataError(f"the text to answer from is empty{place}", do=do)
    return text


def _read(file: Path, questions: list[str]) -> str:
    if str(file) == _STANDARD_INPUT:
        if questions == [_STANDARD_INPUT]:
            raise ParamsError(
                "standard input cannot be both the questions and the text",
                do="give the questions as arguments, or put the text into a file",
            )
        return "".join(decoded(sys.stdin.buffer, "standard input"))
    try:
        with file.open("rb") as lines:
            return "".join(decoded(lines, str(file)))
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror or type(error).__name__}",
            do="name another file, or give the text with --context",
        ) from error


def choose(
    texts: TextsArgument,
    labels: Annotated[str, typer.Option("--labels", "-l")],
    template: str | None = None,
    multi_label: Annotated[bool, typer.Option("--multi-label")] = False,
    model: ModelOption = None,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: tables.JsonLinesOption = False,
) -> None:
    """Choose among labels without training (zero-shot), by the word that fits into a prompt or by entailment.

    An encoder scores how well each label fills the prompt. An entailment classifier scores whether the prompt with the
    label follows from the text.

    Prints a table in a terminal; otherwise, tab-separated text, rank, label, probability.

    Examples:

    - `clozeline choose "Read all lines of it." --labels file,list,tuple`
    - `clozeline choose "Open it." -l file,list --template "It works on a {}."`
    - `clozeline choose - -l refund,delivery --multi-label --model dist/mnli < texts.txt`

    Args:
        labels: Labels to choose among, such as `list,file`. For an encoder, each word must be one token.
        template: The prompt, with {} where a label belongs. [default: This text is about {}.]
        multi_label: Score each label independently; needs an entailment classifier.
    """
    candidates = _labels(labels)
    asked = _able_to_choose(model, precision, multi_label)
    choosing = partial(zero_shot.choosing, template=template or TEMPLATE, multi_label=multi_label, truncate=truncate)

    def chosen(chunk: list[str]) -> Iterable[object]:
        return [asked.converse(choosing(asked, text, candidates)) for text in chunk]

    ask(texts, tables.CLASSIFY, chosen, as_json)


def _labels(given: str) -> list[str]:
    labels = [label.strip() for label in given.split(",")]
    if not all(labels) or len(set(labels)) < len(labels):
        raise ParamsError(
            f"--labels cannot be used: {given!r} are not labels separated by commas, each once",
            do="write them like --labels list,file",
        )
    return labels


def _able_to_choose(place: str | None, precision: Literal["int8", "fp32"] | None, multi_label: bool) -> OpenModel:
    """Open the encoder, or the model at `place`; a classifier of entailment has to be named."""
    model: OpenModel = opened(place, precision, OpenEncoder, Classifier)
    if not zero_shot.can_choose(model):
        raise ParamsError(
            f"{place or 'the encoder'} neither fills masks nor has a label `entailment`, so it takes no new labels",
            do="choose another --model, or use `clozeline classify` for the labels of a classifier",
        )
    if multi_label and not zero_shot.tells_entailment(model):
        raise ParamsError(
            "an encoder cannot score labels independently (--multi-label): they compete for one mask",
            do="leave --multi-label out, or name an entailment classifier with --model",
        )
    return model


# In the order of `clozeline --help`.
VERBS = (fill, complete, embed, classify, choose, tag, answer)
