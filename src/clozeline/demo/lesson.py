"""A short training, with questions before and after it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from clozeline.demo.corpus import DemoCorpus
from clozeline.language_modelling import language_model
from clozeline.params import Objective, PretrainParams
from clozeline.params.pretraining import WITHOUT_START
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.questions import Answer, Examiner, Question
from clozeline.tokens.frequencies import token_counts, unigram_entropy
from clozeline.tokens.spelling import Spelling
from clozeline.training.callbacks import Callback

_NUM_QUESTIONS = 4
_LEAST_SHARE = 1 / 2500
"""Smallest share of all tokens that makes a token frequent."""


@dataclass(frozen=True)
class Lesson:
    questions: tuple[Question, ...]
    before: tuple[Answer, ...]
    after: tuple[Answer, ...]
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
    head = language_model.head_of(job.model)
    examiner = Examiner(job.validation, tokenizer, Spelling.open(corpus.tokenizer), head, is_frequent_V)
    questions = tuple(examiner.questions(_NUM_QUESTIONS))
    looks = job.loop.looks
    assert looks is not None, "short() asks for one"
    job.model.eval()
    loss_before = looks.measure().loss
    before = tuple(examiner.ask(job.model, question) for question in questions)
    state = job.run(callbacks)
    return Lesson(
        questions=questions,
        before=before,
        after=tuple(examiner.ask(job.model, question) for question in questions),
        loss_before=loss_before,
        loss_after=state.looks[-1].loss,
        unigram_entropy=unigram_entropy(job.train.shards, job.train.vocabulary),
        num_parameters=job.num_parameters,
        num_tokens=state.num_tokens,
    )
