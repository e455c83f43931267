"""The lesson of the demo: a corpus, a short training on it with questions before and after, and what is shown of it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from clozeline.cli.tables import table_of
from clozeline.language import models, spelling
from clozeline.language.objectives import token_counts, unigram_entropy
from clozeline.params import editing, model
from clozeline.params.pretraining import WITHOUT_START, Objective, PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.watching import Examiner, ShownAnswer, ShownQuestion
from clozeline.stages.calling.api import Run, call, written
from clozeline.system.progress import ProgressBar
from clozeline.training.curves import CurvePoint
from clozeline.training.state import Callback

TOKENS, TOKENIZER = Path("data/tokens"), Path("models/tokenizer")
_VOCAB_SIZE = 4096
_NO_PACKAGES = "no-packages.txt"
_NUM_QUESTIONS = 4
# Smallest share of all tokens that makes a token frequent.
_LEAST_SHARE = 1 / 2500


@dataclass(frozen=True)
class BarOfTraining(Callback):
    """Moves a bar with the training."""

    bar: ProgressBar

    def on_point(self, point: CurvePoint) -> None:
        self.bar.advance(point.step - self.bar.done, note=f"loss {point.loss:.2f}")


def has_tokens(folder: Path) -> bool:
    """Return whether stage `tokenize` has run in the folder of a project."""
    return (folder / TOKENS).is_dir() and (folder / TOKENIZER).is_dir()


def standard_library(folder: Path) -> None:
    """Preprocess and tokenize the docstrings of the standard library, in a few seconds."""
    run, config = Run(folder), editing.Config()
    config["preprocess"]["source"] = {"path": _NO_PACKAGES}
    config["preprocess"] = {"validation_fraction": 0.05, "holdout_fraction": 0.0, "min_characters": 60}
    config["tokenize"] = {"vocab_size": _VOCAB_SIZE}
    written(run, config)
    (folder / _NO_PACKAGES).write_text("# The standard library alone.\n", encoding="utf-8")
    for stage in ("snapshot", "preprocess", "tokenize"):
        call(stage, run, {"preprocess.source.path": _NO_PACKAGES})


@dataclass(frozen=True)
class Lesson:
    questions: tuple[ShownQuestion, ...]
    before: tuple[ShownAnswer, ...]
    after: tuple[ShownAnswer, ...]
    loss_before: float  # loss on held-out text, nats per target
    loss_after: float
    unigram_entropy: float  # loss of a model that knows only the frequencies of tokens, nats
    num_parameters: int
    num_tokens: int


def short(params: PretrainParams, objective: Objective, steps: int) -> PretrainParams:
    """Return `params` with the smallest model of the default family and a budget of `steps`."""
    optimizer = {"kind": "adamw", "learning_rate": 3e-3, "matrix_learning_rate": None}
    validation = {"every_steps": steps, "patience": None}
    changes = {
        "objective": objective,
        **WITHOUT_START,
        "model": params.model.model_copy(update={"family": "modernbert", "size": "mini", **model.OF_SIZE}),
        "max_length": 64,
        "batch_tokens": 2048,
        "micro_batch_tokens": None,
        "optimizer": params.optimizer.model_copy(update=optimizer),
        "schedule": params.schedule.model_copy(update={"decay": "cosine", "warmup_fraction": 0.1}),
        "steps": steps,
        "tokens": None,
        "epochs": None,
        "compile": False,
        "validation": params.validation.model_copy(update=validation),
        "log_every_steps": 5,
    }
    return params.model_copy(update=changes)


def teach(params: PretrainParams, folder: Path, seed: int, work: Path, callbacks: Iterable[Callback]) -> Lesson:
    """Train on the tokens in the folder of a project, and ask the same questions before and after.

    Raises:
        ArtifactError: the tokens are damaged.
    """
    job = pretraining.prepare(params, seed=seed, tokens=folder / TOKENS, tokenizer=folder / TOKENIZER, work=work)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER / "tokenizer.json"))
    counts_V = token_counts(job.train.shards, job.train.vocabulary)
    is_frequent_V = counts_V > _LEAST_SHARE * counts_V.sum()
    head = models.head_of(job.model)
    examiner = Examiner(job.validation, tokenizer, spelling.Spelling.open(folder / TOKENIZER), head, is_frequent_V)
    questions = tuple(examiner.questions(_NUM_QUESTIONS))
    validations = job.loop.validation
    assert validations is not None, "short() asks for one"
    job.model.eval()
    loss_before = validations.measure().loss
    before = tuple(examiner.ask(job.model, question) for question in questions)
    state = job.run(callbacks)
    return Lesson(
        questions=questions,
        before=before,
        after=tuple(examiner.ask(job.model, question) for question in questions),
        loss_before=loss_before,
        loss_after=state.validations[-1].loss,
        unigram_entropy=unigram_entropy(job.train.shards, job.train.vocabulary),
        num_parameters=job.num_parameters,
        num_tokens=state.num_tokens,
    )


def report(learned: Lesson, mode: str) -> Iterator[RenderableType]:
    yield Text()
    for question, *answers in zip(learned.questions, learned.before, learned.after, strict=True):
        yield Text(f"{question.text}   (right: {question.truth})")
        yield _answers(question, *answers)
        if mode == "clm":
            yield Text(f"continues before: {answers[0].continuation}")
            yield Text(f"continues after:  {answers[1].continuation}")
        yield Text()
    yield Text(
        f"{learned.num_parameters:,} parameters, trained on {learned.num_tokens:,} tokens. Validation loss in nats per"
        f" token: {learned.loss_before:.2f} before, {learned.loss_after:.2f} after;"
        f" {learned.unigram_entropy:.2f} from token frequencies alone."
    )


def _answers(question: ShownQuestion, before: ShownAnswer, after: ShownAnswer) -> Table:
    def cells(token: str, probability: float) -> tuple[str, str]:
        return f"{escape(token)}{' ✓' if token == question.truth else ''}", f"{probability:.1%}"

    both = zip(before.guesses, after.guesses, strict=True)
    return table_of("", "before", ">", "after", ">", rows=((*cells(*first), *cells(*second)) for first, second in both))
