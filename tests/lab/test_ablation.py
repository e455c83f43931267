"""Claim: an ablation pairs its arms by seed, and calls one better only if the difference holds over seeds and texts."""

from pathlib import Path

import numpy as np
import pytest

from clozeline.lab import ablation
from clozeline.lab.experiment import Arm, Corpus, Result, Seconds
from clozeline.params.editing import Config
from clozeline.system.errors import TrainingError

DOCUMENTS = 40
CORPUS = Corpus(Path("corpus"), "a hash")


def made(arm: str, seed: int, effect: float = 0.0, noise: float = 0.0, seconds: float = 0.0) -> Result:
    """Return a made-up result: `effect` nats and `seconds` are added to those of arm B."""
    of_text, of_seed = np.random.default_rng(0), np.random.default_rng([seed, ord(arm)])
    is_second = arm == "B"
    nats_D = 100 + of_text.normal(size=DOCUMENTS) + noise * of_seed.normal() + effect * is_second
    wall = 20 + of_seed.normal() + seconds * is_second
    sizes = (50,) * DOCUMENTS
    return Result(
        nats=tuple(nats_D.tolist()), text_bytes=sizes, num_documents=DOCUMENTS, steps=5, seconds=Seconds(wall, 2 * wall)
    )


def ablated(num_seeds: int = 5, folder: Path = Path("kept"), **of_second: int) -> ablation.Ablation:
    """Return the ablation of two arms, the second with other numbers of words."""
    config, other = Config(), Config()
    other.tokenize.update(of_second)
    arms = [Arm("A", config, config.checked), Arm("B", other, other.checked)]
    return ablation.ablate(arms, num_seeds, CORPUS, config.checked, folder)


def test_an_effect_beyond_seeds_and_texts_names_the_better_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def result(item: ablation._Item) -> Result:
        turns.append(item.arm)
        return made(item.arm, item.seed, effect=-2.0, noise=0.2, seconds=5.0)

    monkeypatch.setattr(ablation, "_result", result)
    found = ablated()
    first = Config().seed
    assert (found.better, found.seeds) == ("B", tuple(range(first, first + 5)))
    effect = found.nats_per_byte
    assert effect.second - effect.first == pytest.approx(effect.over_seeds.difference)
    assert effect.over_seeds.difference == pytest.approx(found.over_documents.difference) == pytest.approx(-0.04, 0.2)
    assert found.wall_seconds.over_seeds.difference == pytest.approx(5, abs=2)
    assert found.cpu_seconds.over_seeds.difference == pytest.approx(10, abs=4)
    assert turns == list("ABBAABBAAB"), "a drift of the machine favours neither arm"


def test_an_effect_that_the_seeds_drown_names_no_arm_though_all_texts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "_result", lambda item: made(item.arm, item.seed, effect=0.5, noise=2.0))
    found = ablated()
    assert found.over_documents.p_value < 0.01
    assert found.better is None


def test_arms_get_tokens_of_their_own_and_a_failure_names_arm_and_seed(monkeypatch, tmp_path) -> None:
    read: list[str] = []

    def fail(experiment: ablation.Experiment, *_: object) -> Result:
        read.append(experiment.corpus.digest)
        if len(read) == 2:
            raise TrainingError("the loss is not finite", given="nan", expected="a number", do="lower the rate")
        return made("A", 1)

    monkeypatch.setattr(ablation.Experiment, "run", fail)
    monkeypatch.setattr(ablation, "tokenized", lambda corpus, config, kept: Corpus(kept, "tokens of B"))
    with pytest.raises(TrainingError, match=f"`B` from seed {Config().seed}: the loss is not finite"):
        ablated(2, tmp_path, vocab_size=500)
    assert read == ["a hash", "tokens of B"]
