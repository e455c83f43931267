"""Claim: an experiment runs once, continues after a kill with the same result, and is known by what decides it."""

from pathlib import Path

import pytest

from clozeline.lab.experiment import Corpus, Experiment
from clozeline.params.editing import Config
from clozeline.training.curves import CurvePoint
from clozeline.training.state import Callback, State


class Killed(BaseException):
    """In the place of a signal."""


class Killing(Callback):
    """Ends the training at a step; remembers where each training started."""

    def __init__(self, at_step: int = 0) -> None:
        self.at_step = at_step
        self.starts: list[int] = []

    def on_start(self, state: State) -> None:
        self.starts.append(state.step)

    def on_point(self, point: CurvePoint) -> None:
        if point.step == self.at_step:
            raise Killed


@pytest.fixture
def experiment(config: Config, corpus: Corpus, tmp_path: Path) -> Experiment:
    return Experiment.of(config, 1, corpus, tmp_path / "kept")


def test_a_killed_experiment_continues_to_the_result_of_an_undisturbed_one_and_then_never_runs_again(
    experiment: Experiment, config: Config, corpus: Corpus, tmp_path: Path
) -> None:
    callback = Killing(at_step=25)
    with pytest.raises(Killed):
        experiment.run([callback])
    assert experiment.result is None
    callback.at_step = 0
    result = experiment.run([callback])
    assert experiment.run([callback]) == result == experiment.result
    assert callback.starts == [0, 20]
    whole = Experiment.of(config, 1, corpus, tmp_path / "undisturbed").run()
    assert result.nats == whole.nats
    assert result.steps == whole.steps == 40
    assert result.nats_per_byte > 0
    assert result.num_documents == 40
    assert result.seconds.wall > 0
    assert not (experiment.folder / "models" / "encoder").exists()


def test_an_experiment_is_known_by_params_seed_and_corpus_only(
    experiment: Experiment, config: Config, corpus: Corpus, tmp_path: Path
) -> None:
    def folder(seed: int = 1, corpus: Corpus = corpus, **changes: object) -> str:
        changed = config.copy()
        for name, value in changes.items():
            changed["pretrain"][name] = value
        return Experiment.of(changed, seed, corpus, tmp_path / "kept").folder.name

    other = Corpus(corpus.clean, corpus.tokens, corpus.tokenizer, "another hash")
    assert folder() == folder(num_checkpoints=7) == experiment.folder.name
    assert len({folder(), folder(seed=2), folder(steps=50), folder(num_workers=1), folder(corpus=other)}) == 5
