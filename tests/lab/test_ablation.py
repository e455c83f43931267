"""Claim: an ablation pairs its arms by seed, and calls one better only if the difference holds over seeds and texts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from clozeline.lab import ablation
from clozeline.lab.ablation import Ablation, ablate
from clozeline.lab.experiment import Arm, Corpus, Result, Seconds
from clozeline.params.editing import Config
from clozeline.system.errors import TrainingError

DOCUMENTS = 40
CORPUS = Corpus(Path("corpus"), "a hash")


@dataclass
class Trained:
    """Experiments with made-up results: `effect` nats and `seconds` are added to those of arm B."""

    effect: float
    noise: float
    seconds: float
    order: list[tuple[str, int]]

    def result(self, arm: str, seed: int) -> Result:
        self.order.append((arm, seed))
        of_text, of_seed = np.random.default_rng(0), np.random.default_rng([seed, ord(arm)])
        is_second = arm == "B"
        nats_D = 100 + of_text.normal(size=DOCUMENTS) + self.noise * of_seed.normal() + self.effect * is_second
        wall = 20 + of_seed.normal() + self.seconds * is_second
        return Result(
            nats=tuple(nats_D.tolist()),
            text_bytes=(50,) * DOCUMENTS,
            num_documents=DOCUMENTS,
            steps=5,
            seconds=Seconds(wall, 2 * wall),
        )


def ablated(monkeypatch: pytest.MonkeyPatch, trained: Trained, num_seeds: int = 5) -> Ablation:
    monkeypatch.setattr(ablation, "_result", lambda item: trained.result(item.arm, item.seed))
    config = Config()
    arms = [Arm(name, config, config.checked) for name in "AB"]
    return ablate(arms, num_seeds, CORPUS, config.checked, Path("kept"))


def test_an_effect_beyond_seeds_and_texts_names_the_better_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained(effect=-2.0, noise=0.2, seconds=5.0, order=[])
    found = ablated(monkeypatch, trained)
    first = Config().seed
    assert found.better == "B"
    assert found.seeds == tuple(range(first, first + 5))
    effect = found.nats_per_byte
    assert effect.second - effect.first == pytest.approx(effect.over_seeds.difference)
    assert effect.over_seeds.difference == pytest.approx(found.over_documents.difference) == pytest.approx(-0.04, 0.2)
    assert found.wall_seconds.over_seeds.difference == pytest.approx(5, abs=2)
    assert found.cpu_seconds.over_seeds.difference == pytest.approx(10, abs=4)
    turns = [arm for arm, _ in trained.order]
    assert turns == list("ABBAABBAAB"), "a drift of the machine favours neither arm"


def test_an_effect_that_the_seeds_drown_names_no_arm_though_all_texts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ablated(monkeypatch, Trained(effect=0.5, noise=2.0, seconds=0.0, order=[]))
    assert found.over_documents.p_value < 0.01
    assert found.better is None


def test_a_failed_training_names_its_arm_and_its_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(self: object, callbacks: object = ()) -> Result:
        raise TrainingError("the loss is not finite", given="nan", expected="a number", do="lower the rate")

    monkeypatch.setattr(ablation.Experiment, "run", fail)
    config = Config()
    arms = [Arm(name, config, config.checked) for name in ("one", "other")]
    with pytest.raises(TrainingError, match=f"`one` from seed {config.seed}: the loss is not finite"):
        ablate(arms, 2, CORPUS, config.checked, tmp_path)


def test_arms_with_another_vocabulary_get_tokens_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read: dict[str, str] = {}

    def result(item: ablation._Item) -> Result:
        read[item.arm] = item.experiment.corpus.digest
        return Trained(0, 0, 0, []).result("A", item.seed)

    def own_tokens(corpus: Corpus, config: Config, kept: Path) -> Corpus:
        return Corpus(kept / "tokens", f"{config.tokenize.vocab_size} words")

    monkeypatch.setattr(ablation, "_result", result)
    monkeypatch.setattr(ablation, "tokenized", own_tokens)
    config, other = Config(), Config()
    other.tokenize.vocab_size = 500
    arms = [Arm("A", config, config.checked), Arm("B", other, other.checked)]
    ablate(arms, 2, CORPUS, config.checked, tmp_path)
    assert read == {"A": "a hash", "B": "500 words"}
