"""One training of given params from one seed, and its loss on the validation text.

The params are an arm of an ablation: the project's params.yaml with changes of its own. All experiments share text and
tokens in a folder of their own, so that later runs do not change them. Files are linked, not copied, where the file
system allows it: no program of the project writes into an existing file.

The folder of an experiment is named by a hash of everything that its result depends on, the code as dvc.yaml lists it
included: it is found again, whoever asks for it, and a killed one continues from its last checkpoint. Its seconds
before that count, too.
"""

import math
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import torch

from clozeline.encoder.own import sources_of_family
from clozeline.evaluation import groups, measuring
from clozeline.lab.contest import Contender, ContestAsking
from clozeline.params import editing, pretraining, project, reading
from clozeline.pretraining.starting import sources_of_start
from clozeline.records import clean_text, record
from clozeline.stages.calling import api, calls
from clozeline.system.errors import ParamsError
from clozeline.system.files import code_of, fingerprint, link_or_copy, remove_folder, replacing_folder
from clozeline.system.machine import available_cores
from clozeline.system.workspace import run_lock
from clozeline.training.curves import CurvePoint
from clozeline.training.state import Callback, State

_PACKAGE = "src/clozeline/"
_CLEAN = Path("data/clean")
ENCODER = Path("models/encoder")
_PARTS = (_CLEAN, Path("data/tokens"), Path("models/tokenizer"), ENCODER)
# Section → why an arm cannot change it.
_SAME_IN_BOTH: Mapping[str, str] = {
    "seed": "the seeds follow from `seed` of params.yaml: both arms train from each of them",
    "preprocess": "both arms read the same text, and are measured on the same part of it",
    "evaluate": "both arms are measured in the same way",
}
# Keys of `pretrain` that change neither the model nor its speed; the values that a recipe sets are compared.
_WITHOUT_EFFECT = {"recipe", "checkpoint_every_steps", "num_checkpoints"}
_RESULT = "result.json"


def code_of_stage(stage: str) -> list[Path]:
    """Return the files of the package that the stage depends on."""
    entry = calls.own_graph()["stages"][stage]
    deps = entry.get("do", entry)["deps"]
    return code_of(dep.removeprefix(_PACKAGE) for dep in deps if dep.startswith(_PACKAGE))


@dataclass(frozen=True)
class Corpus:
    """A clean text with its tokens, and the encoder that was trained on it if that is needed, laid out as a project."""

    folder: Path
    digest: str  # hash of the contents

    @property
    def clean(self) -> Path:
        """Folder with train.parquet, validation.parquet and holdout.parquet, which no training sees."""
        return self.folder / _CLEAN

    def holding(self, data: Path) -> Path:
        """Return where the file or folder `data`, a path in the project, is held; itself if it is no part of this."""
        return self.clean / data.relative_to(_CLEAN) if data.is_relative_to(_CLEAN) else data.resolve()

    def laid_into(self, folder: Path, parts: Sequence[Path] = _PARTS) -> None:
        """Make the folder of a run read these parts of the corpus."""
        for part in filter(lambda part: (self.folder / part).is_dir(), parts):
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            (folder / part).unlink(missing_ok=True)
            (folder / part).symlink_to((self.folder / part).resolve())


def refuse_champion(params: project.Params, what: str, do: str) -> None:
    """Refuse to continue from the live model, which a release may replace meanwhile.

    Raises:
        ParamsError: the params ask for it.
    """
    if params.pretrain.start == pretraining.FROM_CHAMPION:
        raise ParamsError(
            f"{what} cannot continue from the live model (`start: {pretraining.FROM_CHAMPION}`), which may change",
            do=do,
        )


def held(root: Path, kept: Path, *, with_encoder: bool = False) -> Corpus:
    """Return the corpus of the project in `root` as it is now, linked into a folder of `kept`.

    The caller holds the run lock, so that no stage replaces it meanwhile.
    """
    parts = _PARTS if with_encoder else _PARTS[:-1]
    digest = fingerprint({}, [file for part in parts for file in sorted((root / part).rglob("*")) if file.is_file()])
    folder = kept / f"corpus-{digest}"
    if not folder.is_dir():
        with replacing_folder(folder) as beside:
            for part in parts:
                shutil.copytree((root / part).resolve(), beside / part, copy_function=_linked)
    return Corpus(folder, digest)


def tokenized(corpus: Corpus, config: editing.Config, kept: Path) -> Corpus:
    """Return the corpus with the tokens that the section `tokenize` of `config` makes of its text, made only once.

    Raises:
        DataError: the text is too small for the vocabulary.
    """
    facts = {"tokenize": config.checked.tokenize.model_dump(), "corpus": corpus.digest}
    digest = fingerprint(facts, code_of_stage("tokenize"))
    folder = kept / f"tokens-{digest}"
    done = folder / "metrics" / "tokenize.json"
    if not done.is_file():  # the stage writes it last
        run = api.Run(folder)
        corpus.laid_into(folder, [_CLEAN])
        api.written(run, config)
        api.call("tokenize", run, {})
    return Corpus(folder, digest)


def _linked(source: str, target: str) -> None:
    link_or_copy(Path(source), Path(target))


class Seconds(NamedTuple):
    """Time of a training, from its first step to its last, with its validation passes."""

    wall: float
    cpu: float  # processor time of all threads of the training process

    @classmethod
    def now(cls) -> Self:
        return cls(time.monotonic(), time.process_time())


class _Spent(record.Record):
    """Seconds from the start of the training to each of some steps."""

    at_step: dict[int, Seconds]


class Stopwatch(Callback):
    """Keeps the seconds of each point of the curve in a file, so that a resumed training adds to those it had."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._spent_at = _Spent.read(file, absent=_Spent(at_step={})).at_step
        self._started = Seconds.now()

    @property
    def total(self) -> Seconds:
        """Seconds up to the last point."""
        return self._spent_at[max(self._spent_at)] if self._spent_at else Seconds(0.0, 0.0)

    def on_start(self, state: State) -> None:
        """Drop what the killed process did after its last checkpoint, which is done again."""
        self._spent_at = {step: spent for step, spent in self._spent_at.items() if step <= state.step}
        now, before = Seconds.now(), self.total
        self._started = Seconds(now.wall - before.wall, now.cpu - before.cpu)

    def on_point(self, point: CurvePoint) -> None:
        self._note(point.step)

    def on_end(self, state: State) -> None:
        """Count the validation pass after the last point too."""
        self._note(state.step)

    def _note(self, step: int) -> None:
        now = Seconds.now()
        self._spent_at[step] = Seconds(now.wall - self._started.wall, now.cpu - self._started.cpu)
        _Spent(at_step=self._spent_at).write(self._file)


def environment_of(corpus: Corpus) -> dict[str, str]:
    """Return what decides the result of a training beside params and code."""
    return {
        "corpus": corpus.digest,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


@dataclass(frozen=True)
class Arm:
    """One side of an ablation."""

    name: str  # as it was typed
    config: editing.Config
    params: project.Params


def training_of(params: project.Params) -> dict[str, Any]:
    """Return the section `pretrain` without keys that change neither the model nor its speed."""
    return {"pretrain": params.pretrain.model_dump(exclude=_WITHOUT_EFFECT)}


def arms_of(first: str, second: str, root: Path) -> tuple[Arm, Arm]:
    """Return the two arms of the project in `root`.

    An arm is written as words in one argument. A word is a file with params that differ, as in configs/, or KEY=VALUE.
    The project's params.yaml itself is the arm without changes.

    Raises:
        ParamsError: an arm cannot be read, cannot be compared with the other, or is the same training.
    """
    base = reading.read_params(root / api.PARAMS)
    arms = (_arm(first, root), _arm(second, root))
    for arm in arms:
        _check_measured_alike(arm, base)
    _check_comparable(*arms)
    return arms


def _arm(typed: str, root: Path) -> Arm:
    with TemporaryDirectory(prefix="clozeline-") as folder:
        copy = Path(folder) / api.PARAMS
        shutil.copyfile(root / api.PARAMS, copy)
        if changes := list(_changes(typed, root)):
            editing.edit(copy, changes, typed)
        config = editing.Config(copy)
    return Arm(typed, config, config.checked)


def _changes(typed: str, root: Path) -> Iterator[editing.Change]:
    try:
        words = shlex.split(typed)
    except ValueError as error:  # an open quote
        raise _no_arm(typed, str(error)) from error
    if not words:
        raise _no_arm(typed, "nothing")
    for word in words:
        path = root / word
        if "=" in word and not path.is_file():
            yield from editing.assignments([word])
        elif not path.is_file():
            raise _no_arm(typed, word)
        elif not path.samefile(root / api.PARAMS):
            yield from editing.changes_in(path)


def _no_arm(typed: str, given: str) -> ParamsError:
    return ParamsError(
        f"`{typed}` is no arm of an ablation ({given}): it takes files of params and KEY=VALUE in one argument",
        do="type for example `clozeline ablate params.yaml 'pretrain.masking.mask_rate=0.3 pretrain.steps=500'`",
    )


def _check_measured_alike(arm: Arm, base: project.Params) -> None:
    changed = [name for name in _SAME_IN_BOTH if getattr(arm.params, name) != getattr(base, name)]
    if changed:
        raise ParamsError(
            f"`{arm.name}` changes {' and '.join(f'`{name}`' for name in changed)}, which no arm of an ablation can: "
            + "; ".join(_SAME_IN_BOTH[name] for name in changed),
            do="change only keys of `pretrain` or `tokenize`, or change params.yaml for both: `clozeline run --set`",
        )
    do = "add `pretrain.start=null pretrain.replay_fraction=null` to both arms, or the folder of an encoder"
    refuse_champion(arm.params, "an ablation", do)


def _check_comparable(first: Arm, second: Arm) -> None:
    one, other = first.params, second.params
    if training_of(one) == training_of(other) and one.tokenize == other.tokenize:
        raise ParamsError(
            f"both arms of the ablation are the same training: `{first.name}` and `{second.name}`",
            do="change one, for example `pretrain.masking.mask_rate=0.3`; `params.yaml` is the arm without changes",
        )
    objectives = [one.pretrain.objective, other.pretrain.objective]
    if (objectives[0] == "clm") != (objectives[1] == "clm"):
        raise ParamsError(
            f"losses do not compare between objectives ({' and '.join(objectives)}): they see other sides of a token",
            do="ablate another key, or compare fine-tuning figures (`clozeline run`, section `finetune`)",
        )


class Result(record.Record):
    """What an experiment found, by block of documents of the validation text."""

    nats: tuple[float, ...]  # loss of each block, with the charge for unknown tokens
    text_bytes: tuple[int, ...]
    num_documents: int
    steps: int
    seconds: Seconds

    @property
    def nats_per_byte(self) -> float:
        return sum(self.nats) / sum(self.text_bytes)


@dataclass(frozen=True)
class Experiment:
    """A training that has run, or is to run."""

    folder: Path
    config: editing.Config
    corpus: Corpus
    measured_with: int  # seed that assigns the tokens of the validation text to folds, the same for all experiments

    @classmethod
    def of(cls, config: editing.Config, seed: int, corpus: Corpus, kept: Path) -> Self:
        """Return the experiment of these params from `seed`, whose folder is in `kept`."""
        params = config.checked
        facts = {
            **training_of(params),
            "evaluate": params.evaluate.model_dump(),
            "seeds": [seed, params.seed],
            "cores": available_cores(),
            **environment_of(corpus),
        }
        of_family = sources_of_family(params.pretrain.model.family)
        code = [*code_of_stage("pretrain"), *sources_of_start(params.pretrain.start), *of_family]
        own = config.copy()
        own["seed"] = seed
        own["finetune"] = {}
        own["export"]["models"] = {}
        return cls(kept / fingerprint(facts, code), own, corpus, params.seed)

    @property
    def result(self) -> Result | None:
        """The result; None: the experiment has not been run to its end."""
        file = self.folder / _RESULT
        return Result.read(file) if file.is_file() else None

    @property
    def model(self) -> Path:
        """Folder of the weights, which exist only if `run` was asked to keep them."""
        return self.folder / ENCODER

    def run(self, callbacks: Iterable[Callback] = (), *, keeps_weights: bool = False) -> Result:
        """Train and measure, from where an earlier call was killed; return the kept result if there is one.

        `keeps_weights`: leave the weights in `model`; if an earlier call has removed them, they are trained again.

        Raises:
            ClozelineError: as stage `pretrain`.
        """
        with run_lock(self.folder / "lock", wait_seconds=math.inf):  # another process may be at it: it has the result
            result = self.result
            if result is None or (keeps_weights and not self.model.is_dir()):
                result = self._run(callbacks)
            if not keeps_weights:  # those of a hundred experiments would fill a disk
                remove_folder(self.model)
            return result

    def predicted(self, text: Path) -> measuring.DocumentSums:
        """Return the losses of the kept weights on the texts of a Parquet file, by block of documents."""
        params = self.config.checked
        length = params.evaluate.max_length
        how = ContestAsking("folds", self.measured_with, groups.NUM_FOLDS, length, max(groups.BATCH_TOKENS, length))
        num_groups = min(clean_text.num_rows(text, clean_text.TEXT), measuring.MOST_BLOCKS)
        with TemporaryDirectory(prefix="clozeline-") as scratch:
            contender = Contender.open(str(self.model), Path(scratch) / "tokenizer", params.pretrain.model.family)
            return contender.ask(text, how, Path(scratch) / "texts", num_groups=num_groups).documents

    def _run(self, callbacks: Iterable[Callback]) -> Result:
        run = api.Run(self.folder)
        watch = Stopwatch(self.folder / "seconds.json")
        is_trained = (self.folder / "metrics" / "pretrain.json").is_file()  # the stage writes it last
        if not (is_trained and self.model.is_dir()):
            self.corpus.laid_into(self.folder)
            api.written(run, self.config)
            api.call("pretrain", run, {}, callbacks=[watch, *callbacks])
        text = self.corpus.clean / "validation.parquet"
        documents = self.predicted(text)
        result = Result(
            nats=tuple(documents.nats_D.tolist()),
            text_bytes=tuple(documents.text_bytes_D.tolist()),
            num_documents=clean_text.num_rows(text, clean_text.TEXT),
            steps=int(run.figures["steps"]),
            seconds=watch.total,
        )
        result.write(self.folder / _RESULT)
        return result
