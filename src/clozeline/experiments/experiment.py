"""One training of given params from one seed, and its loss on the validation text.

The folder of an experiment is named by a hash of everything that its result depends on: it is found again, whoever asks
for it, and a killed one continues from its last checkpoint.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import torch

from clozeline.api.config import Config
from clozeline.api.run import Run, call, written
from clozeline.artifacts.preprocess import clean_text
from clozeline.artifacts.record import Record
from clozeline.contest.contender import Asking, Contender
from clozeline.encoder.own_code import sources_of_family
from clozeline.evaluation.asking import BATCH_TOKENS, NUM_FOLDS
from clozeline.evaluation.figures import MOST_BLOCKS, DocumentSums
from clozeline.experiments.arms import training_of
from clozeline.experiments.code import code_of_stage
from clozeline.experiments.corpus import ENCODER, Corpus
from clozeline.experiments.stopwatch import Seconds, Stopwatch
from clozeline.machine.cores import available_cores
from clozeline.orchestration.run_lock import run_lock
from clozeline.params import Params
from clozeline.pretraining.starting import sources_of_start
from clozeline.storage.atomic import remove_folder, replacing_file
from clozeline.storage.fingerprints import fingerprint
from clozeline.training.callbacks import Callback

_RESULT: Final = "result.json"


class Result(Record):
    """What an experiment found, by block of documents of the validation text."""

    nats: tuple[float, ...]
    """Loss of each block, with the charge for unknown tokens."""
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
    config: Config
    corpus: Corpus
    measured_with: int
    """Seed that assigns the tokens of the validation text to folds, the same for all experiments."""

    @classmethod
    def of(cls, config: Config, seed: int, corpus: Corpus, kept: Path) -> Self:
        """Return the experiment of these params from `seed`, whose folder is in `kept`."""
        params = config.checked
        facts = {
            **training_of(params),
            "evaluate": params.evaluate.model_dump(),
            "seeds": [seed, params.seed],
            "corpus": corpus.digest,
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "cores": available_cores(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        }
        own = config.copy()
        own["seed"] = seed
        own["finetune"] = {}
        own["export"]["models"] = {}
        return cls(kept / fingerprint(facts, _sources(params)), own, corpus, params.seed)

    @property
    def result(self) -> Result | None:
        """The result; None: the experiment has not been run to its end."""
        file = self.folder / _RESULT
        return Result.model_validate_json(file.read_bytes()) if file.is_file() else None

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

    def predicted(self, text: Path) -> DocumentSums:
        """Return the losses of the kept weights on the texts of a Parquet file, by block of documents."""
        params = self.config.checked
        how = Asking(
            estimator="folds",
            seed=self.measured_with,
            num_folds=NUM_FOLDS,
            max_length=params.evaluate.max_length,
            batch_tokens=max(BATCH_TOKENS, params.evaluate.max_length),
        )
        num_groups = min(clean_text.num_rows(text, clean_text.TEXT), MOST_BLOCKS)
        with TemporaryDirectory(prefix="clozeline-") as scratch:
            contender = Contender.open(str(self.model), Path(scratch) / "tokenizer", params.pretrain.model.family)
            return contender.ask(text, how, Path(scratch) / "texts", num_groups=num_groups).documents

    def _run(self, callbacks: Iterable[Callback]) -> Result:
        run = Run(self.folder)
        watch = Stopwatch(self.folder / "seconds.json")
        is_trained = (self.folder / "metrics" / "pretrain.json").is_file()  # the stage writes it last
        if not (is_trained and self.model.is_dir()):
            self.corpus.laid_into(self.folder)
            written(run, self.config)
            call("pretrain", run, {}, callbacks=[watch, *callbacks])
        text = self.corpus.validation_text
        documents = self.predicted(text)
        result = Result(
            nats=tuple(documents.nats_D.tolist()),
            text_bytes=tuple(documents.text_bytes_D.tolist()),
            num_documents=clean_text.num_rows(text, clean_text.TEXT),
            steps=int(run.figures["steps"]),
            seconds=watch.total,
        )
        with replacing_file(self.folder / _RESULT) as beside:
            beside.write_text(result.model_dump_json() + "\n", encoding="utf-8")
        return result


def _sources(params: Params) -> list[Path]:
    """Return the files that decide the result: our code, the model that training starts from, and your own encoder."""
    of_family = sources_of_family(params.pretrain.model.family)
    return [*code_of_stage("pretrain"), *sources_of_start(params.pretrain.start), *of_family]
