"""Pre-training beside `Trainer`: real tokens per second of the same model over the same texts, on a CPU and a GPU; and
how soon our training reaches the loss that `Trainer` has at the end of its budget.

For the latter, both sides train on the text of the same shards with the same tokenizer; the project's evaluation
measures both on the same validation rows, every token hidden once, with fixed masks. The times exclude this evaluation.
"""

import argparse
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import numpy as np
import torch
from scipy.stats import ttest_1samp
from transformers import AutoModelForMaskedLM, BertConfig, PretrainedConfig

from clozeline.language.objectives import Split
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from comparison import ours, run_mlm
from comparison.frame import Rounds, alternate, available_cores, options, report
from comparison.stages import Corpus, built_in, news, paths_of, prepared, run_stage, write_clean

_LOG = logging.getLogger(__name__)
MAX_LENGTH = 128
VOCAB_SIZE = 30_522
MAX_LOSS_DIFFERENCE = 1e-5
_NUM_BOUNDARY = 2
# A run of ours is cut into so many equal parts, the first of which is warm-up.
_CHUNKS = 4


def padded() -> None:
    """Pre-training throughput on short texts, compared with run_mlm.py `--line_by_line --pad_to_max_length`.

    The texts of the built-in corpus fill rows of 128 tokens by half on average. Both sides use BERT 4 × 256, a
    vocabulary of 30,522, fp32, fused AdamW, 15 % targets and no dropout. A round of theirs is `Trainer.train()`, a
    round of ours is our loop, both over tokenized texts with equal threads; the first steps of each round are left out.
    The figure is real tokens per second ([CLS] and [SEP] count, padding does not), and a step has equally many on both
    sides. First, the loss of one batch with the same weights must agree to 1e-5, because ours projects only the
    targets.
    """
    chosen, corpus = _chosen(padded.__doc__), _corpus()
    texts = half_full_texts(corpus)
    rows = run_mlm.line_by_line(run_mlm.as_dataset(texts), run_mlm.open_tokenizer(corpus.tokenizer), MAX_LENGTH)
    compare("pretrain_throughput_padded", tokenized(texts, corpus, "half-full"), corpus.tokenizer, rows, chosen)


def grouped() -> None:
    """Pre-training throughput, compared with run_mlm.py's default, which joins all texts and cuts full rows of 128
    tokens.

    Both sides use the same texts of the built-in corpus. Theirs has no padding, but attends from one text into the next
    and drops the rest of each map batch; ours keeps texts separate and batches rows of similar length. Model, masks,
    optimizer, counting and the check of the loss are those of pretrain_throughput_padded.
    """
    chosen, corpus = _chosen(grouped.__doc__), _corpus()
    rows = _grouped(corpus.texts("train")[:20_000], corpus, MAX_LENGTH)
    compare("pretrain_throughput_grouped", corpus.tokens, corpus.tokenizer, rows, chosen)


def _chosen(description: str | None) -> argparse.Namespace:
    parser = options(description, rounds=5, threads=min(2, available_cores()))
    parser.add_argument("--steps", type=int, default=4, help="steps of theirs in a round, one more being warm-up")
    parser.add_argument("--rows", type=int, default=32, help="rows in a step of theirs; ours gets as many real tokens")
    return parser.parse_args()


def _corpus() -> Corpus:
    return prepared(built_in(), {"algorithm": "wordpiece", "vocab_size": VOCAB_SIZE})


def _grouped(texts: list[str], corpus: Corpus, max_length: int) -> datasets.Dataset:
    return run_mlm.grouped(run_mlm.as_dataset(texts), run_mlm.open_tokenizer(corpus.tokenizer), max_length)


def half_full_texts(source: Corpus, num_texts: int = 20_000) -> list[str]:
    """Texts that fit `MAX_LENGTH` and fill it to a half on average: of those that fit, the shortest are left out."""
    shards = TokenShards.open(source.tokens, "train")
    length_D = np.diff(shards.offsets.astype(np.int64))
    texts = source.texts("train")
    fitting = np.flatnonzero(length_D + _NUM_BOUNDARY <= MAX_LENGTH)
    by_length = fitting[np.argsort(-length_D[fitting], kind="stable")]
    mean_so_far = np.cumsum(length_D[by_length] + _NUM_BOUNDARY) / np.arange(1, len(by_length) + 1)
    num_chosen = int(np.searchsorted(-mean_so_far, -MAX_LENGTH / 2, side="right"))
    chosen = np.sort(by_length[:num_chosen])
    chosen = np.random.default_rng(0).permutation(chosen)[:num_texts]
    return [texts[document] for document in chosen.tolist()]


def tokenized(texts: list[str], corpus: Corpus, name: str) -> Path:
    """Shards of just these texts, made on first use."""
    folder = corpus.tokens.parent / name
    if not (folder / "tokens").is_dir():
        write_clean(folder / "clean", {"train": texts, "validation": texts[:100]})
        changes = {"tokenize": {"algorithm": "existing", "existing": str(corpus.tokenizer.resolve())}}
        run_stage("tokenize", folder, changes, **paths_of("tokenize", folder, folder))
    return folder / "tokens"


def compare(name: str, tokens: Path, tokenizer: Path, rows: datasets.Dataset, chosen: argparse.Namespace) -> None:
    """Check that the losses agree, measure in turn, and write the line; exit status 1 if they do not agree.

    Args:
        name: name of the benchmark.
        tokens: shards of the texts, for our side.
        tokenizer: folder of both sides' tokenizer.
        rows: the same texts, as their side wants them.
        chosen: options.
    """
    fill = float(np.mean([np.sum(mask) / MAX_LENGTH for mask in rows.with_format("numpy")["attention_mask"]]))
    real_tokens = round(chosen.rows * MAX_LENGTH * fill)
    steps = math.ceil(3 * chosen.steps / _CHUNKS) * _CHUNKS
    settings = {"max_length": MAX_LENGTH, "batch_tokens": real_tokens, "num_threads": chosen.threads}
    settings |= {"precision": "fp32", "log_every_steps": steps // _CHUNKS}
    params = ours.as_run_mlm(ours.BERT_TINY, steps, 5e-5, settings)
    with ours.prepared(params, 0, tokens, tokenizer) as job:
        model = ours.stock(job.model)
        losses = ours.losses_of_one_batch(job.model.eval(), model.eval(), tokens, MAX_LENGTH, num_rows=8)
        _LOG.info("loss of one batch: ours %.7f, theirs %.7f", *losses)
        difference = abs(losses[0] - losses[1])
        if difference > MAX_LOSS_DIFFERENCE:
            sys.exit(f"the losses of the same batch under the same weights differ: {losses}")

        how = {"per_device_train_batch_size": chosen.rows, "max_steps": chosen.steps + 1, "use_cpu": True}
        theirs = partial(_their_speed, model, rows, tokenizer, 1, how)
        rounds = alternate(partial(ours.tokens_per_second, job), theirs, chosen.rounds, "tokens/s")
        facts = {
            "fill": round(fill, 3),
            "parameters": job.num_parameters,
            "rows_per_step": chosen.rows,
            "real_tokens_per_step": real_tokens,
            "loss_difference": difference,
        }
        report(name, rounds, torch.get_num_threads(), facts)


def _their_speed(
    model: Any, rows: datasets.Dataset, tokenizer: Path, warm_up: int, how: Mapping[str, Any], number: int
) -> float:
    opened = run_mlm.open_tokenizer(tokenizer)
    settings = {"mask_rate": ours.MASK_RATE, "num_warmup_steps": warm_up, "seed": number}
    return run_mlm.train(model, rows, opened, **settings, **how).tokens_per_second


GPU_LENGTH = 512
# Texts of the corpus in a document.
_JOINED = 200
# Dense bf16 peak by a part of the driver's device name (NVIDIA's data sheets).
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L4": 121e12, "A10": 125e12, "RTX 4090": 165e12}


@dataclass(frozen=True)
class Shape:
    """A size of BERT, and its number of rows in a step."""

    num_hidden_layers: int
    hidden_size: int
    rows: int

    @property
    def model(self) -> dict[str, Any]:
        return ours.BERT_TINY | {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.hidden_size // 64,
            "intermediate_size": 4 * self.hidden_size,
        }

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs per token of a full row (Kaplan et al. 2020, section 2.1), the head at targets only."""
        width = self.hidden_size
        layer = 12 * width * width + 2 * GPU_LENGTH * width
        head = ours.MASK_RATE * (width * width + width * VOCAB_SIZE)
        return 6 * (self.num_hidden_layers * layer + head)


SHAPES = {"mini": Shape(2, 128, 256), "base": Shape(12, 768, 128), "large": Shape(24, 1024, 64)}


def gpu() -> None:
    """Pre-training on a GPU: real tokens per second and model FLOPs, compared with run_mlm.py `--bf16 --torch_compile`.

    Sizes are mini (here 2 × 128), base (12 × 768) and large (24 × 1024) as BERT, with a vocabulary of 30,522, 15 %
    targets and no dropout. Rows of 512 tokens are cut from long documents (texts of the built-in corpus, joined
    beforehand), so they are full on both sides. Both use bf16, compilation, TF32 and fused AdamW, and the same number
    of real tokens per step. Rounds alternate; the first half of each, which includes compilation, is left out. The
    ratio is that of the first requested size (`mini`); the others are reported too. MFU is the necessary work / the
    GPU's dense bf16 peak: 6 FLOPs per weight and token, attention, and the vocabulary at the targets only, without
    padding and other logits. Without a GPU the line says so, its ratio is null, and the exit status is 0.
    """
    parser = options(gpu.__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=40, help="of a round, half of them warm-up")
    parser.add_argument("--sizes", nargs="+", choices=sorted(SHAPES), default=list(SHAPES))
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        _LOG.info("no GPU: nothing is measured")
        facts = {"gpu": None, "why": "torch finds no CUDA device"}
        report("gpu_pretrain", Rounds((), ()), torch.get_num_threads(), facts)
        return
    corpus = _corpus()
    short = corpus.texts("train")[:50_000]
    texts = ["\n".join(short[first : first + _JOINED]) for first in range(0, len(short), _JOINED)]
    tokens, rows = tokenized(texts, corpus, "long"), _grouped(texts, corpus, GPU_LENGTH)
    measured = {name: _on_gpu(SHAPES[name], tokens, corpus.tokenizer, rows, chosen) for name in chosen.sizes}
    facts = {"gpu": torch.cuda.get_device_name(), "size": chosen.sizes[0], "sizes": _table(measured)}
    report("gpu_pretrain", measured[chosen.sizes[0]], torch.get_num_threads(), facts)


def _on_gpu(shape: Shape, tokens: Path, tokenizer: Path, rows: datasets.Dataset, chosen: argparse.Namespace) -> Rounds:
    steps = chosen.steps
    settings = {"max_length": GPU_LENGTH, "batch_tokens": shape.rows * GPU_LENGTH, "log_every_steps": steps // 2}
    params = ours.as_run_mlm(shape.model, steps, 1e-4, {**settings, "precision": "bf16", "compile": True})
    with ours.prepared(params, 0, tokens, tokenizer) as job:
        model = AutoModelForMaskedLM.from_config(job.model.config)

        how = {"per_device_train_batch_size": shape.rows, "max_steps": steps, "bf16": True, "tf32": True}
        theirs = partial(_their_speed, model, rows, tokenizer, steps // 2, {**how, "torch_compile": True})
        return alternate(partial(ours.tokens_per_second, job), theirs, chosen.rounds, "tokens/s")


def _table(measured: Mapping[str, Rounds]) -> dict[str, dict[str, float | None]]:
    name = torch.cuda.get_device_name()
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    table: dict[str, dict[str, float | None]] = {}
    for size, rounds in measured.items():
        sides = {"ours": median(rounds.ours), "theirs": median(rounds.theirs)}
        share = SHAPES[size].flops_per_token / peak if peak else None
        mfu = {f"{side}_mfu": value * share if share else None for side, value in sides.items()}
        table[size] = {**sides, "ratio": sides["ours"] / sides["theirs"], **mfu}
    return table


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
    _compare_times(AS_LARGE, as_large.__doc__)


def same_architecture() -> None:
    """Time to the validation loss that `Trainer` reaches in 5 minutes with our own architecture and schedule.

    Only the engine differs: rows that keep documents separate and have no padding, logits at the targets only, the
    loop, and the optimizer if ours is not AdamW. Theirs has exactly our model's configuration, mask rate, schedule
    (warm-up, cosine, floor), betas, epsilon and decay, over grouped rows of our length, and the best learning rate of a
    sweep. Text, tokenizer, validation, clocks and seeds are those of time_to_quality.
    """
    _compare_times(SAME_ARCHITECTURE, same_architecture.__doc__)


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


def _compare_times(setup: Setup, description: str | None) -> None:
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
