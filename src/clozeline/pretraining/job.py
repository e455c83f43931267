"""Pre-training: the batches, the loss and the budget of language modelling.

A fingerprint, a hash of everything that the result of a training depends on, names the folder of its checkpoints.
Settings without effect are told before the first step. torch.compile is used if the machine has a compiler for it.
"""

import logging
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import ModelCard
from torch import Tensor, nn

from clozeline.encoder.families.layout import TokenIds
from clozeline.encoder.own import sources_of
from clozeline.language import models
from clozeline.language.draws import check_seed
from clozeline.language.masking import Masker
from clozeline.language.models import LanguageModel
from clozeline.language.objectives import OBJECTIVES, Split, TargetBatch, unigram_entropy
from clozeline.language.shards import TokenShards
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining.feeding import Feed, Replay, WordDropout, steps_of, steps_of_epochs
from clozeline.pretraining.losses import VALIDATION_TOKENS, Judge, loss_of
from clozeline.pretraining.starting import sources_of_start, start_from
from clozeline.pretraining.watching import Advancing, ShownExamples, plateau_warning
from clozeline.records.published import pinned
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo, documents_path
from clozeline.system import errors, files, group, progress
from clozeline.training.checkpoints import Checkpoints
from clozeline.training.distribution import Processes
from clozeline.training.loop import Loop, Validation
from clozeline.training.micro_batches import Hardware, MicroBatches, Precision
from clozeline.training.optimizers import Schedule, build_optimizer
from clozeline.training.state import Callback, Callbacks, PlateauWarning, State

# Folders and files of the package that decide the result: the code dependencies of the stage in dvc.yaml.
CODE = (
    "encoder",
    "language",
    "pretraining",
    "records/reading/tokens.py",
    "tokenizing/tokenizer/vocabulary",
    "training",
    "records/words/numbers.py",
)
# Knobs that do not affect the result; the stage in dvc.yaml does not list them as params.
NOT_OF_THE_RESULT = {"checkpoint_every_steps", "num_checkpoints", "num_workers"}
_LOG = logging.getLogger(__name__)
_PARTS = ("train", "validation")
_COMPILERS = ("c++", "g++", "clang++")


def name_of_training(
    params: PretrainParams, seed: int, tokens: Path, total_steps: int, model: LanguageModel, precision: Precision
) -> str:
    """Return the fingerprint.

    It covers the version of transformers, the files that define your own encoder, and the files of the model that
    training starts from; of a model on the hub `params.start_revision`, which is a commit.
    """
    facts = {
        "params": params.model_dump(exclude=NOT_OF_THE_RESULT),
        "seed": seed,
        "total_steps": total_steps,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": precision.device.type,
        "precision": precision.name,
        "num_threads": torch.get_num_threads() if precision.device.type == "cpu" else None,
    }
    documents = [path for path in [documents_path(tokens, "train")] if path.is_file()]
    of_start = sources_of_start(params.start)
    return files.fingerprint(
        facts, [tokens / INFO_NAME, *documents, *files.code_of(CODE), *sources_of(model), *of_start]
    )


def tell_what_has_no_effect(params: PretrainParams) -> None:
    """Warn about fields of `masking`, other than its rates, under an objective that hides nothing."""
    masking = params.masking
    asked = [] if masking.unit == "token" else [f"unit {masking.unit}"]
    if masking.protected_tokens:
        asked.append(f"protected_tokens {', '.join(masking.protected_tokens)}")
    if asked and not OBJECTIVES[params.objective].masks:
        _LOG.warning(
            "objective %s masks nothing: settings of `masking` have no effect: %s", params.objective, ", ".join(asked)
        )


def compiled(module: nn.Module, wanted: bool, backend: str | Callable[..., Any] = "inductor") -> nn.Module:
    """Compile `module` to one graph for all shapes of batches: lengths and numbers of targets are symbols in it.

    Raises:
        ParamsError: `wanted`, but the machine has neither a GPU nor a C++ compiler.
    """
    if not wanted:
        return module
    if backend == "inductor" and not torch.cuda.is_available() and not any(map(shutil.which, _COMPILERS)):
        raise errors.ParamsError(
            f"`compile` needs a C++ compiler on a CPU, and none of {', '.join(_COMPILERS)} is installed",
            do="install one (Debian's package is called g++), or set `compile` to false",
        )
    module.compile(dynamic=True, backend=backend)
    return module


@dataclass(frozen=True)
class Pretraining:
    """A pre-training, ready to run."""

    params: PretrainParams  # the given params; for a `start` on the hub, `start_revision` is its commit
    model: LanguageModel
    loop: Loop[TargetBatch]
    num_rows: int
    train: Split
    validation: Split
    judge: Judge
    replay: Replay | None = None  # new and old text, if the training continues from an encoder whose text is known

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def is_first_process(self) -> bool:
        """Whether this process writes files."""
        return self.loop.hardware.processes.is_first

    def run(self, callbacks: Iterable[Callback] = ()) -> State:
        """Train from the newest checkpoint, or from the start.

        Raises:
            ArtifactError: a checkpoint belongs to another run.
            TrainingError: the loss or the gradient is not finite, or memory ran out.
        """
        state = self.loop.resume()
        if state.step:
            _LOG.info("resumed at step %s", f"{state.step:,}")
        return self.loop.run(state, Callbacks(tuple(callbacks)))

    def advisers(self, tokenizer: Path) -> list[Callback]:
        """Return the callbacks of the first process: a plateau warning, and examples at each validation pass."""
        entropy = unigram_entropy(self.train.shards, self.train.vocabulary)
        first_step = 2 * Schedule(self.params.schedule, self.loop.total_steps).warmup_steps
        warning = plateau_warning(self.model, self.judge, self.params.discriminator_weight, entropy, first_step)
        if self.loop.hardware.processes.divides_weights:  # the first process alone cannot run the model
            return [warning] if isinstance(warning, PlateauWarning) else []
        return [warning, ShownExamples.of(self.model, self.validation, tokenizer)]

    def trained(self, tokenizer: Path, state: State) -> "Pretrained":
        """Return the result. Every process must call it, because weights that are divided among them are gathered."""
        weights = self.loop.hardware.processes.divided_weights(self.model)
        return Pretrained(self.model.eval(), weights, state, tokenizer, self.is_first_process)


@dataclass(frozen=True)
class Pretrained:
    """A trained language model, and the state of its training."""

    model: LanguageModel
    weights: dict[str, Tensor] | None  # all weights, if `model` holds only a part
    state: State
    tokenizer: Path
    writes: bool = True  # whether this process writes files: the first of those that train together
    checkpoints: Checkpoints | None = None  # checkpoints to remove once the model is saved

    def save(self, out: Path, card: ModelCard | None = None) -> None:
        """Write what stock `AutoModelForMaskedLM` (`AutoModelForCausalLM`), `AutoModel` and `AutoTokenizer` load.

        Every process may call it; only the first one writes. `card` goes beside the model.
        """
        if not self.writes:
            return
        with files.replacing_folder(out) as folder:
            models.save(self.model, self.tokenizer, folder, weights=self.weights)
            if card is not None:
                card.save(folder / "README.md")
        if self.checkpoints is not None:
            self.checkpoints.remove()

    def save_encoder(self, out: Path) -> None:
        """Write the encoder without its head: what stock `AutoModel` and `AutoTokenizer` load. Checkpoints stay."""
        if not self.writes:
            return
        with files.replacing_folder(out) as folder:
            models.save_encoder(self.model, self.tokenizer, folder, weights=self.weights)


def pretrain(
    params: PretrainParams,
    *,
    seed: int,
    tokens: Path,
    tokenizer: Path,
    work: Path | None = None,
    callbacks: Iterable[Callback] = (),
) -> Pretrained:
    """Train a language model on token shards. A progress bar goes to standard error, warnings and examples to the log.

    Args:
        params: section `pretrain` of params.yaml.
        seed: decides weights, order, masks and dropout.
        tokens: folder of token shards, as stage `tokenize` writes it: parts `train` and `validation`.
        tokenizer: folder of the tokenizer that made the tokens.
        work: folder of the checkpoints until the model is saved (`Pretrained.save`); a killed run resumes from there.
            None: a temporary folder, so that no run outlives its process.
        callbacks: called at each point of the curve (nats per target), each validation pass, start and end.

    Raises:
        ArtifactError: shards, tokenizer or start point are damaged, or do not belong together.
        ParamsError: the params cannot be met here: the family, the precision, the length.
        TrainingError: the loss or the gradient is not finite, or memory ran out.
    """
    with TemporaryDirectory() as nowhere:
        job = prepare(params, seed=seed, tokens=tokens, tokenizer=tokenizer, work=work or Path(nowhere))
        trained = job.trained(tokenizer, _watched(job, tokenizer, callbacks))
    return trained if work is None else replace(trained, checkpoints=job.loop.checkpoints)


def _watched(job: Pretraining, tokenizer: Path, callbacks: Iterable[Callback]) -> State:
    if not job.is_first_process:
        return job.run(callbacks)
    with progress.ProgressBar("pretrain", job.loop.total_steps) as bar:
        return job.run([Advancing(bar), *job.advisers(tokenizer), *callbacks])


def prepare(
    params: PretrainParams, *, seed: int, tokens: Path, tokenizer: Path, work: Path, continues: bool = False
) -> Pretraining:
    """Open the shards, build the model, and find the checkpoints of exactly this run.

    `continues`: whether the folder `params.start` has the keys of the documents that its model was trained on.

    Raises:
        ArtifactError: the shards are damaged, or do not fit the tokenizer or the start point.
        ParamsError: the params cannot be met here.
    """
    check_seed(seed)
    tell_what_has_no_effect(params)
    processes = Processes.join()
    torch.set_num_threads(params.num_threads or processes.num_threads)
    processes.check(params.optimizer.kind)
    if params.start is not None:
        commit = pinned(params.start, params.start_revision) if processes.is_first else None
        params = params.model_copy(update={"start_revision": processes.of_the_first(commit)})
    precision = Precision.choose(params.precision, processes.device)
    hardware: Hardware[TargetBatch] = Hardware(processes, precision, MicroBatches.of(params, processes.device))
    TokensInfo.of_folder(tokens).check_tokenizer(tokens, tokenizer)
    train, validation = (Split.open(TokenShards.open(tokens, part), params.max_length) for part in _PARTS)
    replay = Replay.of(train, tokens, Path(params.start or ""), params.replay_fraction, seed) if continues else None
    train = replay.split if replay else train
    total_steps = _total_steps(params, train, seed)
    model = _model(params, train, tokenizer, seed).to(processes.device)
    spelling = Spelling.open(tokenizer)
    feed = Feed(
        objective=OBJECTIVES[params.objective],
        split=train,
        masker=Masker.create(params.masking, train.vocabulary, seed, spelling),
        word_dropout=WordDropout.of(params.word_dropout, seed, spelling),
        batch_tokens=params.batch_tokens,
        seed=seed,
        total_steps=total_steps,
        num_workers=params.num_workers,
        rank=processes.rank,
        world_size=processes.world_size,
    )
    name = group.agreed(processes, work, name_of_training(params, seed, tokens, total_steps, model, precision))
    bare_loss = loss_of(model, feed.masker.is_fixed_V, params.discriminator_weight).to(processes.device)
    loss = processes.wrap(compiled(bare_loss, params.compile), feed.one_row)
    judge = Judge(loss, feed.objective, validation, seed, VALIDATION_TOKENS, params.batch_tokens, hardware)
    loop = Loop(
        model=model,
        optimizer=build_optimizer(model, params.optimizer),
        batches_from=feed.batches_from,
        loss_sum=loss,
        fraction_at=Schedule(params.schedule, total_steps).fraction,
        total_steps=total_steps,
        params=params.optimizer,
        log_every_steps=params.log_every_steps,
        checkpoint_every_steps=params.checkpoint_every_steps,
        checkpoints=Checkpoints.of(work, name, params.num_checkpoints),
        hardware=hardware,
        seed=seed,
        validation=_validation_of(params, judge),
    )
    return Pretraining(params, model, loop, len(train.rows), train, validation, judge, replay)


def _total_steps(params: PretrainParams, train: Split, seed: int) -> int:
    """Return the smallest of the budgets in steps."""
    if params.steps == 0:  # there may be no text
        return 0
    budgets = {"steps": params.steps} if params.steps is not None else {}
    if params.tokens is not None:
        budgets["tokens"] = steps_of(params.tokens, train, params.batch_tokens, seed)
    if params.epochs is not None:
        budgets["epochs"] = steps_of_epochs(params.epochs, train, params.batch_tokens, seed)
    name = min(budgets, key=budgets.__getitem__)
    if len(budgets) > 1 and name == "epochs":
        _LOG.info("%s steps, because the text is short: `epochs: %g`", f"{budgets[name]:,}", params.epochs)
    return budgets[name]


def _model(params: PretrainParams, train: Split, tokenizer: Path, seed: int) -> LanguageModel:
    boundary = train.boundary
    ids = TokenIds(train.vocabulary.size, boundary.pad, boundary.cls, boundary.sep)
    if params.start is None:
        model = models.build(params.model, OBJECTIVES[params.objective].head, ids, seed)
    else:
        model = start_from(params, ids, seed, tokenizer)
    if params.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def _validation_of(params: PretrainParams, judge: Judge) -> Validation | None:
    if params.validation.every_steps is None:
        return None
    return Validation(params.validation.every_steps, params.validation.patience, judge.measure)
