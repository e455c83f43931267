"""Claim: an experiment runs once, continues after a kill with the same result, and is known by what decides it.
An ablation pairs its arms by seed, and calls one better only if the difference holds over seeds and texts.
"""

from pathlib import Path

import numpy as np
import pytest

from clozeline.lab import ablation
from clozeline.lab.experiment import Arm, Corpus, Experiment, Result, Seconds, arms_of, held
from clozeline.params.editing import Config
from clozeline.system.errors import ParamsError, TrainingError
from clozeline.training.curves import CurvePoint
from clozeline.training.state import Callback, State
from tests.training.prepared import Killed


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


def test_a_killed_experiment_ends_like_an_undisturbed_one_and_never_runs_again(config, corpus, tmp_path) -> None:
    experiment, callback = Experiment.of(config, 1, corpus, tmp_path / "kept"), Killing(at_step=25)
    with pytest.raises(Killed):
        experiment.run([callback])
    assert experiment.result is None
    callback.at_step = 0
    result = experiment.run([callback])
    assert experiment.run([callback]) == result == experiment.result
    assert callback.starts == [0, 20]
    whole = Experiment.of(config, 1, corpus, tmp_path / "undisturbed").run()
    assert result.nats == whole.nats
    assert (result.steps, result.num_documents) == (whole.steps, whole.num_documents) == (40, 40)
    assert min(result.nats_per_byte, result.seconds.wall) > 0
    assert not (experiment.folder / "models" / "encoder").exists()


def test_an_experiment_is_known_by_params_seed_and_corpus_only(config: Config, corpus: Corpus, tmp_path: Path) -> None:
    def folder(seed: int = 1, corpus: Corpus = corpus, **changes: object) -> str:
        changed = config.copy()
        for name, value in changes.items():
            changed["pretrain"][name] = value
        return Experiment.of(changed, seed, corpus, tmp_path / "kept").folder.name

    other = Corpus(corpus.folder, "another hash")
    assert folder() == folder(num_checkpoints=7)
    assert len({folder(), folder(seed=2), folder(steps=50), folder(num_workers=1), folder(corpus=other)}) == 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text("pretrain: {num_threads: 1}  # as `clozeline init` writes it: differences\n")
    return tmp_path


def test_an_arm_is_the_project_with_the_changes_of_files_and_settings_in_their_order(root: Path) -> None:
    (root / "small.yaml").write_text("pretrain: {steps: 7}\ntokenize: {vocab_size: 500}\n", encoding="utf-8")
    before = (root / "params.yaml").read_bytes()
    base, changed = arms_of("params.yaml", "small.yaml 'pretrain.masking={mask_rate: 0.4}' pretrain.steps=9", root)
    pretrain = changed.params.pretrain
    assert (pretrain.steps, pretrain.masking.mask_rate, changed.params.tokenize.vocab_size) == (9, 0.4, 500)
    assert base.params.pretrain.masking.unit == pretrain.masking.unit
    assert base.name == "params.yaml"
    assert (root / "params.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ("", "nothing"),
        ("'pretrain.steps=5", "quotation"),
        ("pretrain.stepz=5", "stepz"),
        ("pretrain.checkpoint_every_steps=7", "same training"),
        ("seed=5", "`seed`"),
        ("preprocess.min_characters=5 evaluate.num_pseudo_documents=3", "`preprocess` and `evaluate`"),
        ("pretrain.start=champion", "champion"),
        ("pretrain.objective=clm finetune={} export.models={}", "mlm and clm"),
    ],
)
def test_arms_that_do_not_compare_are_refused(root: Path, second: str, told: str) -> None:
    with pytest.raises(ParamsError) as error:
        arms_of("params.yaml", second, root)
    assert told in str(error.value)


PARTS = ("data/clean/validation.parquet", "data/tokens/train-0.bin", "models/tokenizer/tokenizer.json")


def test_a_held_corpus_is_found_again_by_its_content_and_survives_its_replacement(tmp_path: Path) -> None:
    def write(text: str) -> None:
        """Write a corpus as stages do: new files take the places of old ones."""
        for part in PARTS:
            (root / part).parent.mkdir(parents=True, exist_ok=True)
            (root / part).unlink(missing_ok=True)
            (root / part).write_text(f"{text} {part}", encoding="utf-8")

    root, kept = tmp_path / "project", tmp_path / "project" / "work"
    write("old")
    old = held(root, kept)
    assert held(root, kept) == old
    write("new")
    assert held(root, kept).digest != old.digest
    assert (old.clean / "validation.parquet").read_text(encoding="utf-8") == f"old {PARTS[0]}"
    for _ in range(2):
        old.laid_into(tmp_path / "run")
    assert (tmp_path / "run" / PARTS[1]).read_text(encoding="utf-8") == f"old {PARTS[1]}"


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
