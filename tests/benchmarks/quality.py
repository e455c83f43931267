"""Time to a validation loss: how soon our training reaches the loss that `Trainer` has at the end of its budget.

Both sides train on the text of the same shards with the same tokenizer; the project's evaluation measures both on the
same validation rows, every token hidden once, with fixed masks. The times exclude this evaluation.
"""

import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from scipy.stats import ttest_1samp
from transformers import AutoModelForMaskedLM, BertConfig, PretrainedConfig

from clozeline.language.objectives import Split
from clozeline.params.pretraining import PretrainParams
from comparison import ours, run_mlm
from comparison.frame import Rounds, available_cores, options, report
from comparison.stages import Corpus, news, prepared

_LOG = logging.getLogger(__name__)
_PROBE_STEPS = 30
# Largest relative difference between the numbers of parameters of the two sides.
_MOST_DIFFERENT = 0.1
_WIDTHS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
# Changes to the default recipe for our side: the recipe has become narrower since both sides were tuned for this.
_RACED = {
    "model": {"size": None, **dict(zip(_WIDTHS, (2, 128, 2, 256), strict=True))},
    "schedule": {"decay": "cosine"},
    "steps": 4500,
}


@dataclass(frozen=True)
class Setup:
    """One configuration of their side, and the budgets of ours against it."""

    name: str
    # Our configuration, our number of parameters → theirs.
    configure: Callable[[PretrainedConfig, int], PretrainedConfig]
    # Values of `TrainingArguments`, except budget, batch and learning rate.
    arguments: Callable[[PretrainParams], Mapping[str, Any]]
    mask_rate: Callable[[PretrainParams], float]
    # Budgets of our runs as shares of theirs. Each run has a whole schedule; the next is run if it misses the loss.
    our_budgets: Sequence[float]
    # The best of a sweep on one seed, for both sides: the default recipe has one for longer trainings.
    learning_rate: float = 1e-3


def bert_like(config: PretrainedConfig, num_parameters: int) -> PretrainedConfig:
    """Return a BERT as deep and wide as `config`, its MLP sized to give about `num_parameters` parameters."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "pad_token_id")
    same = {name: getattr(config, name) for name in names}
    widths = range(config.hidden_size, 5 * config.hidden_size, 64)
    candidates = [BertConfig(intermediate_size=width, **same) for width in widths]
    return min(candidates, key=lambda candidate: abs(parameters_of(candidate) - num_parameters))


def our_schedule(params: PretrainParams) -> dict[str, Any]:
    """Return the settings of our optimizer and schedule under their names in `TrainingArguments`."""
    optimizer, schedule = params.optimizer, params.schedule
    return {
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_epsilon": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.clip_norm,
        "warmup_steps": schedule.warmup_fraction,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": schedule.final_fraction},
    }


AS_LARGE = Setup(
    name="time_to_quality",
    configure=bert_like,
    arguments=lambda params: {"warmup_steps": 0.1},
    mask_rate=lambda params: 0.15,
    our_budgets=(1 / 12, 1 / 6, 1 / 3, 1),
)
SAME_ARCHITECTURE = Setup(
    name="time_to_quality_same_architecture",
    configure=lambda config, num_parameters: config,
    arguments=our_schedule,
    mask_rate=lambda params: params.masking.mask_rate,
    our_budgets=(0.6, 1),
)


def as_large() -> None:
    """Time to the validation loss that run_mlm.py reaches in 5 minutes with a BERT of about our size.

    The text is wikinews if it lies beside the project (or what CLOZELINE_BENCHMARK_TEXT names), else the built-in
    corpus; both sides use one tokenizer, trained by `tokenize`. Theirs is `Trainer` over grouped rows of our length,
    with as many tokens per step as ours and 15 % targets; its learning rate is the best of a sweep, with a warm-up over
    a tenth of the steps and a decay to zero at the end of its minutes (run_mlm's default, no warm-up, is worse). Ours
    is the default recipe of params.yaml, but 2 × 128 and a cosine; its learning rate is the best of a sweep too, and
    its schedule fits into a share of those minutes. If a share is too short, its time counts anyway and the next is
    tried. For each seed theirs runs first, because ours stops at its loss. The ratio is their seconds / ours.

    Perplexities of theirs in the sweep, BERT 2 × 128 on 2 cores for 2 minutes: 5e-5 without warm-up (run_mlm's default)
    5,331; 1e-3 with warm-up 999. Losses of ours in 400 steps: 4e-3 7.06, 2e-3 6.95, 1e-3 6.92, 5e-4 7.04.
    """
    main(AS_LARGE, as_large.__doc__)


def same_architecture() -> None:
    """Time to the validation loss that `Trainer` reaches in 5 minutes with our own architecture and schedule.

    Only the engine differs: rows that keep documents separate and have no padding, logits at the targets only, the
    loop, and the optimizer if ours is not AdamW. Theirs has exactly our model's configuration, mask rate, schedule
    (warm-up, cosine, floor), betas, epsilon and decay, over grouped rows of our length, and the best learning rate of a
    sweep. Text, tokenizer, validation, clocks and seeds are those of time_to_quality.
    """
    main(SAME_ARCHITECTURE, same_architecture.__doc__)


@dataclass(frozen=True)
class Job:
    """Settings and data that all runs of a benchmark share."""

    setup: Setup
    corpus: Corpus
    params: PretrainParams
    validation: Split
    rows: datasets.Dataset
    config: PretrainedConfig
    num_parameters: Mapping[str, int]


@dataclass(frozen=True)
class Race:
    """Result for one seed: the loss that theirs reached, and how soon ours reached it."""

    loss: float
    our_loss: float
    theirs_seconds: float
    our_seconds: float
    passed: bool

    @property
    def ratio(self) -> float:
        return self.theirs_seconds / self.our_seconds


def main(setup: Setup, description: str | None) -> None:
    parser = options(description, seeds=3, threads=min(2, available_cores()), validation_tokens=20_000)
    parser.add_argument("--minutes", type=float, default=5.0, help="that theirs trains")
    chosen = parser.parse_args()
    job = _prepare(setup, chosen.threads, chosen.validation_tokens)
    races = [_race(job, seed, chosen.minutes * 60) for seed in range(chosen.seeds)]
    if not all(race.passed for race in races):
        sys.exit(f"ours never passed the loss of theirs: {races}")
    rounds = Rounds(tuple(race.our_seconds for race in races), tuple(race.theirs_seconds for race in races))
    report(setup.name, rounds, chosen.threads, facts_of(job, races))


def facts_of(job: Job, races: Sequence[Race]) -> dict[str, Any]:
    """Return the JSON fields. `p` is of a one-sided t-test over seeds that the mean log ratio is above zero."""
    logs = [math.log(race.ratio) for race in races]
    return {
        "text": job.corpus.name,
        "parameters": dict(job.num_parameters),
        "learning_rate": {"ours": job.params.optimizer.learning_rate, "theirs": job.setup.learning_rate},
        "losses_theirs": [round(race.loss, 4) for race in races],
        "losses_ours": [round(race.our_loss, 4) for race in races],
        "ratios": [round(race.ratio, 2) for race in races],
        "p": float(ttest_1samp(logs, 0.0, alternative="greater").pvalue) if len(logs) > 1 else None,
    }


def _prepare(setup: Setup, num_threads: int, validation_tokens: int) -> Job:
    corpus = prepared(news())
    tuned = {"learning_rate": setup.learning_rate}
    params = ours.params_of({**_RACED, "num_threads": num_threads, "optimizer": tuned})
    with ours.prepared(params, 0, corpus.tokens, corpus.tokenizer) as built:
        config, num_ours = built.model.config, built.num_parameters
    theirs = setup.configure(config, num_ours)
    num_theirs = parameters_of(theirs)
    if abs(num_theirs / num_ours - 1) > _MOST_DIFFERENT:
        sys.exit(f"theirs has {num_theirs:,} parameters, ours {num_ours:,}: more than a tenth apart")
    tokenizer = run_mlm.open_tokenizer(corpus.tokenizer)
    rows = run_mlm.grouped(run_mlm.as_dataset(corpus.texts("train")), tokenizer, params.max_length)
    validation = ours.first_tokens(corpus.tokens, params.max_length, validation_tokens)
    numbers = {"ours": num_ours, "theirs": num_theirs}
    return Job(setup, corpus, params, validation, rows, theirs, numbers)


def parameters_of(config: PretrainedConfig) -> int:
    """Return the number of parameters without allocating them; a tied weight counts once."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModelForMaskedLM.from_config(config).parameters())


def _race(job: Job, seed: int, seconds: float) -> Race:
    probe = _train_theirs(job, 0, _PROBE_STEPS)[1]
    steps = round(seconds / (probe.seconds / _PROBE_STEPS))
    loss, meter = _train_theirs(job, seed, steps)
    _LOG.info("seed %d, theirs: %d steps in %.1f s, validation loss %.4f", seed, steps, meter.seconds, loss)
    spent = 0.0
    for share in job.setup.our_budgets:
        passing = _run_ours(job, seed, meter.seconds * share, loss)
        spent += passing.seconds
        verdict = "passed" if passing.passed else "did not pass"
        _LOG.info("seed %d, ours: %s in %.1f s, at loss %.4f", seed, verdict, passing.seconds, passing.loss)
        if passing.passed:
            break
    return Race(loss, passing.loss, meter.seconds, spent, passing.passed)


def _train_theirs(job: Job, seed: int, steps: int) -> tuple[float, run_mlm.Meter]:
    """Return the validation loss, and what was metered."""
    torch.manual_seed(seed)
    torch.set_num_threads(job.params.num_threads)
    model = AutoModelForMaskedLM.from_config(job.config)
    meter = run_mlm.train(
        model,
        job.rows,
        run_mlm.open_tokenizer(job.corpus.tokenizer),
        mask_rate=job.setup.mask_rate(job.params),
        num_warmup_steps=0,
        per_device_train_batch_size=job.params.batch_tokens // job.params.max_length,
        max_steps=steps,
        learning_rate=job.setup.learning_rate,
        seed=seed,
        use_cpu=True,
        **job.setup.arguments(job.params),
    )
    return ours.validation_loss(ours.in_ours(model), job.validation), meter


def _train_ours(job: Job, seed: int, steps: int, target_loss: float | None, **changes: Any) -> ours.Passing:
    """Train for so many steps, or until the loss is reached; without one, nothing is measured on the way."""
    fitted = ours.with_changes(job.params, {**ours.for_steps(steps), **changes})
    with ours.prepared(fitted, seed, job.corpus.tokens, job.corpus.tokenizer) as built:
        if target_loss is None:
            return ours.train_until(built, lambda: 0.0, -1.0)
        return ours.train_until(built, lambda: ours.validation_loss(built.model, job.validation), target_loss)


def _run_ours(job: Job, seed: int, seconds: float, target_loss: float) -> ours.Passing:
    """Train with the schedule fitted into `seconds`; measure the loss at each twentieth of it."""
    constant = {"schedule": {"warmup_fraction": 0.0}, "log_every_steps": _PROBE_STEPS // 3}
    seconds_per_step = _train_ours(job, 0, _PROBE_STEPS, None, **constant).seconds / _PROBE_STEPS
    steps = max(round(seconds / seconds_per_step), 40)
    return _train_ours(job, seed, steps, target_loss, log_every_steps=max(steps // 20, 1))
