"""The lesson of the demo: a corpus, and a short training on it with questions before and after."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from clozeline.language import models
from clozeline.language.objectives import token_counts, unigram_entropy
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import WITHOUT_START, Objective, PretrainParams
from clozeline.params.project import Params
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.watching import Examiner, ShownAnswer, ShownQuestion
from clozeline.records.snapshot import FORGOTTEN_LOCK
from clozeline.stages import preprocess, snapshot, tokenize
from clozeline.training.state import Callback

_VOCAB_SIZE = 4096
_NUM_QUESTIONS = 4
_LEAST_SHARE = 1 / 2500
"""Smallest share of all tokens that makes a token frequent."""


@dataclass(frozen=True)
class DemoCorpus:
    tokens: Path
    tokenizer: Path

    @property
    def is_there(self) -> bool:
        return self.tokens.is_dir() and self.tokenizer.is_dir()


PROJECTS_OWN = DemoCorpus(Path("data/tokens"), Path("models/tokenizer"))


def standard_library(params: Params, folder: Path) -> DemoCorpus:
    """Preprocess and tokenize the docstrings of the standard library, in a few seconds."""
    lock = folder / "no-packages.txt"
    lock.write_text("# The standard library alone.\n", encoding="utf-8")
    built_in = {"kind": "python-docs", "dataset": None, "url": None, "query": None}
    source = params.preprocess.source.model_copy(update=built_in)
    text = params.preprocess.model_copy(
        update={"source": source, "validation_fraction": 0.05, "holdout_fraction": 0.0, "min_characters": 60}
    )
    none = folder / FORGOTTEN_LOCK
    snapshot.run(text, source=lock, forgotten=none, out=folder / "raw")
    preprocess.run(
        text,
        seed=params.seed,
        raw=folder / "raw",
        forgotten=none,
        out=folder / "clean",
        metrics=folder / "preprocess.json",
        work=folder / "work" / "preprocess",
    )
    corpus = DemoCorpus(folder / "tokens", folder / "tokenizer")
    vocabulary = params.tokenize.model_copy(
        update={"algorithm": "wordpiece", "existing": None, "vocab_size": _VOCAB_SIZE, "lowercase": True}
    )
    tokenize.run(
        vocabulary,
        clean=folder / "clean",
        tokenizer=corpus.tokenizer,
        out=corpus.tokens,
        metrics=folder / "tokenize.json",
        work=folder / "work" / "tokenize",
    )
    return corpus


@dataclass(frozen=True)
class Lesson:
    questions: tuple[ShownQuestion, ...]
    before: tuple[ShownAnswer, ...]
    after: tuple[ShownAnswer, ...]
    loss_before: float
    """Loss on held-out text, nats per target."""
    loss_after: float
    unigram_entropy: float
    """Loss of a model that knows only the frequencies of tokens, nats."""
    num_parameters: int
    num_tokens: int


def short(params: PretrainParams, objective: Objective, steps: int) -> PretrainParams:
    """Return `params` with the smallest model of the default family and a budget of `steps`."""
    shape = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"))
    optimizer = {"kind": "adamw", "learning_rate": 3e-3, "matrix_learning_rate": None}
    validation = {"every_steps": steps, "patience": None}
    changes = {
        "objective": objective,
        **WITHOUT_START,
        "model": params.model.model_copy(update={"family": "modernbert", "size": "mini", **shape}),
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


def teach(params: PretrainParams, corpus: DemoCorpus, seed: int, work: Path, callbacks: Iterable[Callback]) -> Lesson:
    """Train, and ask the same questions before and after.

    Raises:
        ArtifactError: the tokens are damaged.
    """
    job = pretraining.prepare(params, seed=seed, tokens=corpus.tokens, tokenizer=corpus.tokenizer, work=work)
    tokenizer = Tokenizer.from_file(str(corpus.tokenizer / "tokenizer.json"))
    counts_V = token_counts(job.train.shards, job.train.vocabulary)
    is_frequent_V = counts_V > _LEAST_SHARE * counts_V.sum()
    head = models.head_of(job.model)
    examiner = Examiner(job.validation, tokenizer, Spelling.open(corpus.tokenizer), head, is_frequent_V)
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
