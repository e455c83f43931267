"""Claim: without training, a text gets the label whose words the model fills into the prompt."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from clozeline.params.reading import read_params
from clozeline.params.tasks import ZeroShotParams, whole_task
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.zero_shot import Cloze
from tests.make.tasks import contents, fine_tune, metrics_of
from tests.make.texts import write_clean_text
from tests.tasks.zero_shot.topics import ABOUT, SPLITS, write_few_labelled

DEFAULTS = read_params(Path(__file__).parents[3] / "params.yaml").finetune_defaults
PROMPT = "the text is [MASK] here"
WORDS = {"files": ["f", "h"], "models": ["m"]}
"""The tests' tokenizer knows hardly more than letters."""


def params(**changes: object) -> ZeroShotParams:
    task = {"kind": "zero_shot", "data": "x", "prompt": PROMPT, "label_words": WORDS, "max_length": 24}
    return ZeroShotParams.model_validate(whole_task({**task, "num_threads": 1, **changes}, DEFAULTS))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        {"text": f"{word} " * (1 + n) + f"{n}", "label": label}
        for n in range(40)
        for label, (word, *_) in WORDS.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    write_clean_text(tmp_path / "seen.parquet", ["nothing"])
    return tmp_path / "data.parquet"


def by_hand(encoder: Path, text: str) -> dict[str, float]:
    """Return the mean log-probability of each label's words, by stock transformers."""
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)
    inputs = tokenizer(f"{text} {PROMPT}".strip(), return_tensors="pt")
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    with torch.inference_mode():
        log_V = model(**inputs).logits[0, place].log_softmax(0)
    return {label: float(log_V[tokenizer.convert_tokens_to_ids(words)].mean()) for label, words in WORDS.items()}


def test_scores_equal_those_of_stock_transformers_for_the_filled_prompt(small_encoder: Path, data: Path) -> None:
    for is_calibrated in (False, True):
        task = Cloze(TaskInputs(params(calibrated=is_calibrated), 1, small_encoder, data, data))
        text = min(task.test_part.texts.first, key=len)
        given = task.logits(task.test_part)[task.test_part.texts.first.index(text)]
        scores, prior = by_hand(small_encoder, text), by_hand(small_encoder, "")
        expected = [scores[label] - (prior[label] if is_calibrated else 0) for label in task.labels]
        assert given.tolist() == pytest.approx(expected, abs=1e-4)


def test_the_prompt_stays_whole_after_a_text_that_is_too_long(small_encoder: Path, data: Path) -> None:
    task = Cloze(TaskInputs(params(), 1, small_encoder, data, data))
    rows = task.rows(["the model " * 40, "the model"])
    assert (len(rows.ids_T[0]), rows.num_truncated) == (24, 1)
    tail = rows.ids_T[1][3:].tolist()
    assert rows.ids_T[0][-len(tail) :].tolist() == tail


def too_long_by_hand(texts: Iterable[str], encoder: Path, prompt: str = PROMPT) -> int:
    """Texts of more than 24 tokens including the prompt, by stock transformers."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    return sum(len(tokenizer(f"{text} {prompt}".strip()).input_ids) > 24 for text in texts)


def test_texts_too_long_beside_the_prompt_are_truncated_dropped_or_refused_as_configured(
    small_encoder: Path, data: Path
) -> None:
    def task(**changes: object) -> Cloze:
        return Cloze(TaskInputs(params(**changes), 1, small_encoder, data, data.with_name("seen.parquet")))

    every = pq.read_table(data).column("text").to_pylist()
    num_too_long = too_long_by_hand(every, small_encoder)
    assert num_too_long > too_long_by_hand(every, small_encoder, prompt="") + 5
    cut = task()
    for part in (cut.train, cut.test_part):
        assert cut.num_truncated(part) == too_long_by_hand(part.texts.first, small_encoder) > 1
        assert cut.num_truncated(part) == cut.rows(part.texts.first).num_truncated
    assert cut.counts()["num_truncated_train"] == cut.num_truncated(cut.train)
    assert cut.counts()["num_truncated_test"] == cut.num_truncated(cut.test_part)
    dropped = task(too_long="drop")
    assert dropped.selection.count.too_long == num_too_long
    assert dropped.counts()["num_truncated_train"] == dropped.counts()["num_truncated_test"] == 0
    with pytest.raises(DataError, match=f"{num_too_long} of 80 texts exceed"):
        task(too_long="error")
    with pytest.raises(ParamsError, match="leaves no room"):
        task(too_long="drop", prompt="the text " * 20 + "[MASK]")


def test_labels_with_words_need_no_training_texts(
    small_encoder: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    rows = pq.read_table(data).to_pylist()
    odd = [{"text": f"{label} {n}", "label": label} for label in ("odd", "wordless") for n in range(6)]
    for part, records in {"train": rows[:60], "test": [*rows[60:], *odd]}.items():
        pq.write_table(pa.Table.from_pylist(records), folder / f"{part}.parquet")
    words = WORDS | {"odd": ["t"], "misspelt": ["g"]}
    changes = {"label_words": words, "splits": {"train": "train.parquet", "test": "test.parquet"}}
    task = Cloze(TaskInputs(params(**changes), 1, small_encoder, folder, data.with_name("seen.parquet")))
    assert task.labels == ("files", "misspelt", "models", "odd")
    assert "`label_words` has labels that no text of the task has" in caplog.text
    assert "wrong: misspelt;" in caplog.text
    assert "counts as missed: wordless (6 texts)" in caplog.text
    assert task.counts()["num_test_of_classes_without_training_text"] == 12
    answers = task._answers(task.test_part)
    by_label = [task.test_part.labels[place] for place in task.test_part.targets_T]
    assert by_label.count("odd") == by_label.count("wordless") == 6
    assert max(answers) < 4
    assert task.logits(task.test_part).shape[1] == 4


def test_a_trained_encoder_beats_word_counts_of_few_labelled_texts(topical_encoder: Path, tmp_path: Path) -> None:
    write_few_labelled(tmp_path)
    given = params(prompt=f"{ABOUT} [MASK]", label_words=None, calibrated=False, max_length=32, splits=SPLITS)
    headline = metrics_of(fine_tune(given, tmp_path / "out", encoder=topical_encoder, data=tmp_path))["headline"]
    assert (headline["metric"], headline["baseline"]) == ("accuracy", "TF-IDF + logistic regression")
    assert headline["value"] > headline["baseline_value"] + 0.2 > headline["trivial_value"] + 0.2


def test_the_finetune_stage_evaluates_a_zero_shot_task_without_training(
    small_encoder: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    out = fine_tune(params(), tmp_path / "out", encoder=small_encoder, data=data)
    told = metrics_of(out)
    assert told["best_epoch"] == 0
    assert told["headline"]["baseline"] == "TF-IDF + logistic regression"
    assert told["headline"]["method"] == "zero-shot encoder with a prompt"
    assert "before training: validation score" in caplog.text
    assert "epoch" not in caplog.text
    assert told["records"]["num_used"] == 80
    before, after = (
        AutoModelForMaskedLM.from_pretrained(folder).state_dict() for folder in (small_encoder, out / "model")
    )
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_training_knobs_have_no_effect(small_encoder: Path, data: Path, tmp_path: Path) -> None:
    usual = params()
    optimizer = usual.optimizer.model_copy(update={"learning_rate": 0.5})
    others = {"epochs": 7, "looks_per_epoch": 3, "patience": 1, "optimizer": optimizer, "warmup_fraction": 0.9}
    others |= {"layer_decay": 0.5, "frozen_layers": 1, "checkpoint_every_steps": 2, "micro_batch_tokens": 64}
    assert set(others) == set(usual.idle)
    once, twice = (
        contents(fine_tune(given, tmp_path / name, encoder=small_encoder, data=data))
        for name, given in (("usual", usual), ("others", usual.model_copy(update=others)))
    )
    assert once == twice


@pytest.mark.parametrize("words", [{"files": ["f"]}, {"files": ["filesystem"], "models": ["m"]}, None])
def test_labels_without_a_single_token_word_are_named(small_encoder: Path, data: Path, words: object) -> None:
    with pytest.raises(ParamsError, match=r"label `(files|models)` of the task cannot"):
        Cloze(TaskInputs(params(label_words=words), 1, small_encoder, data, data))


def test_a_model_that_cannot_fill_masks_is_refused(small_encoder: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for file in small_encoder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["ModernBertModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArtifactError, match="is not a masked language model"):
        Cloze(TaskInputs(params(), 1, folder, data, data))


@pytest.mark.parametrize("prompt", ["no blank", "[MASK] and [MASK]"])
def test_a_prompt_has_one_blank(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"one \[MASK\]"):
        params(prompt=prompt)
