"""Claim: without training, a text gets the label whose words the encoder fills into the prompt, or the label whose
filled prompt follows from it by an entailment model, as stock transformers has it.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.tasks.zero_shot import Cloze, Entailment, prompted
from tests.make.models import small_modernbert, with_random_weights
from tests.make.tasks import contents, fine_tune, inputs_of, metrics_of, params_of, write_rows

Rows = list[dict[str, str]]
PROMPT, PROMPT_OF_ENTAILMENT = "the text is [MASK] here", "the text is of [MASK]"
# The tests' tokenizer knows hardly more than letters.
WORDS = {"files": ["f", "h"], "models": ["m"]}
PHRASES = {"files": ["the file", "rows"], "models": ["models"]}
THINGS = {"files": ["file", "rows", "hash"], "models": ["model", "encoder", "tensor"]}
LETTERS = [{"text": f"{of[0]} " * (1 + n) + f"{n}", "label": label} for n in range(40) for label, of in WORDS.items()]
NAMED = [
    {"text": f"{'the ' * (n % 9)}{words[n % 3]} {n}", "label": label}
    for n in range(40)
    for label, words in THINGS.items()
]
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def judge(save_trained: Callable[[Any], Path]) -> Path:
    """An entailment model with random weights, in the usual form on the hub: no mask token, labels in capitals."""
    config = small_modernbert(("CONTRADICTION", "NEUTRAL", "ENTAILMENT"))
    return save_trained(with_random_weights("ModernBertForSequenceClassification", config))


@pytest.fixture
def cloze(small_encoder: Path, tmp_path: Path) -> Make:
    """`cloze(**changes)`: a task that fills the blank."""

    def make(rows: Rows = LETTERS, encoder: Path = small_encoder, **changes: object) -> Cloze:
        knobs = {"prompt": PROMPT, "label_words": WORDS, "max_length": 24}
        data = write_rows(tmp_path / "data.jsonl", rows)
        return Cloze(inputs_of(params_of("zero_shot", **knobs | changes), encoder, data))

    return make


@pytest.fixture
def entailment(judge: Path, tmp_path: Path) -> Make:
    """`entailment(**changes)`: a task that asks a model of entailment."""

    def make(rows: Rows = NAMED, model: Path | str = judge, **changes: object) -> Entailment:
        knobs = {"prompt": PROMPT_OF_ENTAILMENT, "label_words": PHRASES, "max_length": 40}
        data = write_rows(tmp_path / "data.jsonl", rows)
        params = params_of("zero_shot", **{**knobs, "entailment": {"model": str(model)}, **changes})
        return Entailment(inputs_of(params, judge, data))

    return make


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_scores_equal_those_of_stock_transformers_for_the_filled_prompt(
    cloze: Make, small_encoder: Path, is_calibrated: bool
) -> None:
    stock, tokenizer = (it.from_pretrained(small_encoder) for it in (AutoModelForMaskedLM, AutoTokenizer))

    def by_hand(text: str) -> list[float]:
        """Return the mean log-probability of each label's words."""
        inputs = tokenizer(f"{text} {PROMPT}".strip(), return_tensors="pt")
        place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        with torch.inference_mode():
            log_V = stock.eval()(**inputs).logits[0, place].log_softmax(0)
        return [float(log_V[tokenizer.convert_tokens_to_ids(WORDS[label])].mean()) for label in sorted(WORDS)]

    task = cloze(calibrated=is_calibrated)
    text = min(task.test_part.texts.first, key=len)
    given = task.logits(task.test_part)[task.test_part.texts.first.index(text)]
    expected = [score - prior * is_calibrated for score, prior in zip(by_hand(text), by_hand(""), strict=True)]
    assert given.tolist() == pytest.approx(expected, abs=1e-4)


def test_labels_equal_those_of_the_transformers_zero_shot_pipeline(
    entailment: Make, judge: Path, tmp_path: Path
) -> None:
    """One phrase per label, without calibration, because the pipeline has nothing else."""
    phrases = {"files": "the file", "models": "models"}
    task = entailment(label_words={label: [phrase] for label, phrase in phrases.items()}, calibrated=False)
    model, tokenizer = (it.from_pretrained(judge) for it in (AutoModelForSequenceClassification, AutoTokenizer))
    stock = pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    template = PROMPT_OF_ENTAILMENT.replace("[MASK]", "{}")
    told = stock(task.test_part.texts.first, [*phrases.values()], hypothesis_template=template)
    expected = [[one["scores"][one["labels"].index(phrase)] for phrase in phrases.values()] for one in told]
    shares = torch.from_numpy(task.logits(task.test_part)).softmax(dim=1)
    torch.testing.assert_close(shares, torch.tensor(expected), rtol=0, atol=1e-5)
    task.save(tmp_path)
    saved = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert saved.config.id2label == model.config.id2label


def test_a_label_scores_the_mean_of_its_phrases_minus_their_scores_without_a_text(entailment: Make) -> None:
    def scores(words: dict[str, list[str]]) -> torch.Tensor:
        return torch.from_numpy(entailment(label_words=words).scores(["the file", ""]))

    alone = [scores(PHRASES | {"files": [phrase]})[:, 0] for phrase in PHRASES["files"]]
    together, calibrated = scores(PHRASES), entailment()
    torch.testing.assert_close(together[:, 0], (alone[0] + alone[1]) / 2)
    plain = torch.from_numpy(calibrated.scores(calibrated.test_part.texts.first))
    torch.testing.assert_close(torch.from_numpy(calibrated.logits(calibrated.test_part)), plain - together[1])
    long, longer = calibrated.scores(["the model " * 40, "the model " * 50])
    assert long.tolist() == longer.tolist(), "the prompt stays whole beside a long text"


def test_texts_too_long_beside_the_prompt_are_counted_and_a_prompt_that_is_too_long_refused(
    cloze: Make, entailment: Make, small_encoder: Path
) -> None:
    tokenizer, task = AutoTokenizer.from_pretrained(small_encoder), cloze()
    figures, dropped = (it.test().figures for it in (task, cloze(too_long="drop")))
    for name, part in (("train", task.train), ("test", task.test_part)):
        num_long = sum(len(tokenizer(f"{text} {PROMPT}".strip()).input_ids) > 24 for text in part.texts.first)
        assert figures[f"num_truncated_{name}"] == task.num_truncated(part) == num_long > 1
        assert dropped[f"num_truncated_{name}"] == 0
    for prepare, problem in ((cloze, "leaves no room"), (entailment, "over half of")):
        with pytest.raises(ParamsError, match=problem):
            prepare(too_long="drop", prompt="the text " * 20 + "[MASK]")
    rows = prompted(["the model " * 40, "the model"], PROMPT, task.opened, 24)
    tail = rows.ids_T[1][3:].tolist()
    assert rows.ids_T[0][-len(tail) :].tolist() == tail, "the prompt stays whole"


def test_labels_with_words_need_no_training_texts(
    small_encoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = [{"text": f"{label} {n}", "label": label} for label in ("odd", "wordless") for n in range(6)]
    write_rows(tmp_path / "train.jsonl", LETTERS[:60])
    write_rows(tmp_path / "test.jsonl", [*LETTERS[60:], *odd])
    words = WORDS | {"odd": ["t"], "misspelt": ["g"]}
    knobs = {"prompt": PROMPT, "max_length": 24, "splits": {"train": "train.jsonl", "test": "test.jsonl"}}
    task = Cloze(inputs_of(params_of("zero_shot", label_words=words, **knobs), small_encoder, tmp_path))
    assert task.labels == ("files", "misspelt", "models", "odd")
    assert task.logits(task.test_part).shape[1] == 4
    for told in ("wrong: misspelt;", "count as missed: wordless (texts: 6)"):
        assert told in caplog.text
    assert task.test().figures["num_test_of_classes_without_training_text"] == 12
    by_label = [task.test_part.labels[place] for place in task.test_part.targets_T]
    assert by_label.count("odd") == by_label.count("wordless") == 6


def test_the_stage_evaluates_without_training_and_training_knobs_have_no_effect(
    small_encoder: Path, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "data.jsonl", LETTERS)
    usual = params_of("zero_shot", prompt=PROMPT, label_words=WORDS, max_length=24)
    out = fine_tune(usual, tmp_path / "out", encoder=small_encoder, data=data)
    told = metrics_of(out)
    assert (told["best_epoch"], told["records"]["num_used"]) == (0, 80)
    assert told["headline"]["method"] == "zero-shot encoder with a prompt"
    before, after = (AutoModelForMaskedLM.from_pretrained(it).state_dict() for it in (small_encoder, out / "model"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    optimizer = usual.optimizer.model_copy(update={"learning_rate": 0.5})
    others = {"epochs": 7, "validations_per_epoch": 3, "patience": 1, "optimizer": optimizer, "warmup_fraction": 0.9}
    others |= {"layer_decay": 0.5, "frozen_layers": 1, "checkpoint_every_steps": 2, "micro_batch_tokens": 64}
    assert set(others) == set(usual.idle)
    again = fine_tune(usual.model_copy(update=others), tmp_path / "others", encoder=small_encoder, data=data)
    assert contents(again) == contents(out)


def test_labels_without_words_that_can_be_filled_in_are_named(cloze: Make, entailment: Make) -> None:
    for words in ({"files": ["f"]}, {"files": ["filesystem"], "models": ["m"]}):
        with pytest.raises(ParamsError, match=r"label `(files|models)` of the task cannot"):
            cloze(label_words=words)
    with pytest.raises(ParamsError, match="label `models` of the task has no words"):
        entailment(label_words={"files": ["f"]})


@pytest.mark.usefixtures("offline_hub")
def test_a_model_of_the_hub_is_asked_by_its_name_and_one_of_another_kind_is_refused(
    entailment: Make, cloze: Make, small_encoder: Path, small_classifier: Path, judge: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    of_model = tmp_path / "hub" / "models--some--nli"
    shutil.copytree(judge, of_model / "snapshots" / "c0ffee")
    (of_model / "refs").mkdir()
    (of_model / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    by_folder, by_name = (entailment(model=name).scores(["the file"]) for name in (judge, "some/nli"))
    assert by_folder.tolist() == by_name.tolist()
    with pytest.raises(ArtifactError, match="cannot be downloaded from the hub"):
        entailment(model="other/nli")
    for wrong, labels in ((small_classifier, "jax, numpy, torch"), (small_encoder, "none")):
        with pytest.raises(ArtifactError, match=rf"(?s)`entailment\.model`.*{labels}"):
            entailment(model=wrong)
    config = Path(shutil.copytree(small_encoder, tmp_path / "bare")) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["ModernBertModel"]}))
    with pytest.raises(ArtifactError, match="is not a masked language model"):
        cloze(encoder=config.parent)
