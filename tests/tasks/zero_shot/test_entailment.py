"""Claim: an entailment model gives a text the label whose filled prompt follows from it, as transformers does."""

import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from clozeline.params.reading import read_params
from clozeline.params.tasks import ClassificationParams, ZeroShotParams, whole_task
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.zero_shot import Entailment
from tests.make.models import small_modernbert
from tests.make.tasks import fine_tune, metrics_of, write_records
from tests.make.texts import write_clean_text
from tests.tasks.zero_shot.topics import ABOUT, SPLITS, other_topic, topical, write_few_labelled

DEFAULTS = read_params(Path(__file__).parents[3] / "params.yaml").finetune_defaults
PROMPT = "the text is of [MASK]"
PHRASES = {"files": ["the file", "rows"], "models": ["models"]}
TOPICS = {"files": ["file", "rows", "hash"], "models": ["model", "encoder", "tensor"]}


def params(model: Path | str, **changes: object) -> ZeroShotParams:
    task = {"kind": "zero_shot", "data": "x", "prompt": PROMPT, "label_words": PHRASES, "max_length": 40}
    more = {"entailment": {"model": str(model)}, "num_threads": 1, **changes}
    return ZeroShotParams.model_validate(whole_task({**task, **more}, DEFAULTS))


@pytest.fixture(scope="module")
def judge(save_trained: Callable[[Any], Path]) -> Path:
    """An entailment model with random weights, in the usual form on the hub: no mask token, labels in capitals."""
    from transformers import ModernBertForSequenceClassification

    config = small_modernbert()
    config.id2label = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}
    config.label2id = {label: number for number, label in config.id2label.items()}
    torch.manual_seed(0)
    return save_trained(ModernBertForSequenceClassification(config))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        {"text": f"{'the ' * (n % 9)}{words[n % 3]} {n}", "label": label}
        for n in range(40)
        for label, words in TOPICS.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    write_clean_text(tmp_path / "seen.parquet", ["nothing"])
    return tmp_path / "data.parquet"


def test_labels_equal_those_of_the_transformers_zero_shot_pipeline(judge: Path, data: Path) -> None:
    """One phrase per label, without calibration, because the pipeline has nothing else."""
    words = {"files": ["the file"], "models": ["models"]}
    task = KINDS["zero_shot"].prepare(
        TaskInputs(params(judge, label_words=words, calibrated=False), 1, judge, data, data)
    )
    assert isinstance(task, Entailment)
    texts = task.test_part.texts.first
    stock = pipeline(
        "zero-shot-classification",
        model=AutoModelForSequenceClassification.from_pretrained(judge),
        tokenizer=AutoTokenizer.from_pretrained(judge),
    )
    told = stock(texts, ["the file", "models"], hypothesis_template=PROMPT.replace("[MASK]", "{}"))
    expected = [[one["scores"][one["labels"].index(phrase)] for phrase in ("the file", "models")] for one in told]
    shares = torch.from_numpy(task.logits(task.test_part)).softmax(dim=1)
    torch.testing.assert_close(shares, torch.tensor(expected), rtol=0, atol=1e-5)


def test_a_label_scores_the_mean_of_its_phrases_minus_their_scores_without_a_text(judge: Path, data: Path) -> None:
    def scores(**changes: object) -> torch.Tensor:
        task = Entailment(TaskInputs(params(judge, **changes), 1, judge, data, data))
        return torch.from_numpy(task.scores(["the file", ""]) if changes else task.logits(task.test_part))

    alone = [scores(label_words=PHRASES | {"files": [phrase]})[:, 0] for phrase in PHRASES["files"]]
    together = scores(label_words=PHRASES)
    torch.testing.assert_close(together[:, 0], (alone[0] + alone[1]) / 2)
    task = Entailment(TaskInputs(params(judge), 1, judge, data, data))
    plain = torch.from_numpy(task.scores(task.test_part.texts.first))
    torch.testing.assert_close(scores(), plain - together[1])


def test_the_stage_evaluates_a_pair_classifier_trained_here(small_encoder: Path, tmp_path: Path) -> None:
    words = [word for words in TOPICS.values() for word in words]
    pairs = [
        {"text": f"{first} here {number}", "second": f"the text is of {second}", "label": label}
        for first in words
        for second in words
        for label in ["entailment" if first == second else "contradiction"]
        for number in range(4)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    task = {"kind": "classification", "data": "x", "second_field": "second", "max_length": 40, "batch_size": 8}
    learning = {"epochs": 1, "num_threads": 1, "optimizer": {"learning_rate": 0.01}}
    trained = fine_tune(
        ClassificationParams.model_validate(whole_task({**task, **learning}, DEFAULTS)),
        tmp_path / "nli",
        encoder=small_encoder,
        data=tmp_path / "pairs.jsonl",
    )
    rows = [{"text": f"{words[n % 6]} here {n}", "label": words[n % 6]} for n in range(120)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    out = fine_tune(
        params(trained / "model", label_words=None),
        tmp_path / "out",
        encoder=small_encoder,
        data=tmp_path / "data.parquet",
    )
    told = metrics_of(out)
    assert (told["best_epoch"], told["headline"]["metric"]) == (0, "accuracy")
    assert told["headline"]["baseline"] == "TF-IDF + logistic regression"
    assert told["headline"]["method"] == "zero-shot entailment model"
    saved = AutoModelForSequenceClassification.from_pretrained(out / "model")
    assert set(saved.config.label2id) == {"entailment", "contradiction"}
    AutoTokenizer.from_pretrained(out / "model")


def test_an_entailment_model_beats_word_counts_of_few_labelled_texts(topical_encoder: Path, tmp_path: Path) -> None:
    write_few_labelled(tmp_path)
    draw = random.Random(1)
    pairs = [
        {"text": it["text"], "second": f"{ABOUT} {topic}", "label": relation}
        for it in topical(400, seed=101)
        for topic, relation in ((it["label"], "entailment"), (other_topic(it["label"], draw), "contradiction"))
    ]
    write_records(tmp_path / "pairs.jsonl", pairs)
    task = {"kind": "classification", "data": "x", "second_field": "second", "max_length": 32, "batch_size": 16}
    learning = {"epochs": 6, "test_fraction": 0.1, "num_threads": 1, "optimizer": {"learning_rate": 0.003}}
    trained = fine_tune(
        ClassificationParams.model_validate(whole_task({**task, **learning}, DEFAULTS)),
        tmp_path / "nli",
        encoder=topical_encoder,
        data=tmp_path / "pairs.jsonl",
    )
    given = params(
        trained / "model", prompt=f"{ABOUT} [MASK]", label_words=None, calibrated=False, max_length=32, splits=SPLITS
    )
    headline = metrics_of(fine_tune(given, tmp_path / "out", encoder=topical_encoder, data=tmp_path))["headline"]
    assert (headline["metric"], headline["baseline"]) == ("accuracy", "TF-IDF + logistic regression")
    assert headline["value"] > headline["baseline_value"] + 0.2 > headline["trivial_value"] + 0.2


@pytest.mark.usefixtures("offline_hub")
def test_a_model_is_downloaded_from_the_hub_by_its_name(
    judge: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "models--some--nli" / "snapshots" / "c0ffee"
    shutil.copytree(judge, snapshot)
    (tmp_path / "hub" / "models--some--nli" / "refs").mkdir()
    (tmp_path / "hub" / "models--some--nli" / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    by_folder, by_name = (
        Entailment(TaskInputs(params(name), 1, judge, data, data)).scores(["the file"]) for name in (judge, "some/nli")
    )
    assert by_folder.tolist() == by_name.tolist()
    with pytest.raises(ArtifactError, match="cannot be downloaded from the hub"):
        Entailment(TaskInputs(params("other/nli"), 1, judge, data, data))


def test_a_model_without_an_entailment_label_is_refused(
    judge: Path, small_encoder: Path, small_classifier: Path, data: Path, tmp_path: Path
) -> None:
    headless = Path(shutil.copytree(judge, tmp_path / "headless"))
    config = json.loads((headless / "config.json").read_text()) | {"architectures": ["ModernBertModel"]}
    (headless / "config.json").write_text(json.dumps(config))
    empty = Path(shutil.copytree(judge, tmp_path / "empty"))
    (empty / "config.json").unlink()
    wrongs = (
        (small_classifier, "jax, numpy, torch"),
        (small_encoder, "none"),
        (headless, "ModernBertModel"),
        (empty, "none"),
    )
    for wrong, labels in wrongs:
        with pytest.raises(ArtifactError, match=r"`entailment\.model`") as caught:
            Entailment(TaskInputs(params(wrong), 1, judge, data, data))
        assert labels in str(caught.value)


def test_texts_too_long_for_the_longest_prompt_are_truncated_dropped_or_refused_as_configured(
    judge: Path, data: Path, tmp_path: Path
) -> None:
    phrases = {"files": ["rows", "the end of the file"], "models": ["the model"]}
    rows = [row | {"text": f"{row['text']} " * (n % 4 + 1)} for n, row in enumerate(pq.read_table(data).to_pylist())]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "longer.parquet")

    def task(**changes: object) -> Entailment:
        given = params(judge, **{"label_words": phrases, **changes})
        return Entailment(TaskInputs(given, 1, judge, tmp_path / "longer.parquet", data.with_name("seen.parquet")))

    def too_long_by_hand(texts: Iterable[str], *words: str) -> int:
        tokenizer = AutoTokenizer.from_pretrained(judge)
        prompts = [PROMPT.replace("[MASK]", word) for word in words]
        return sum(any(len(tokenizer(text, prompt).input_ids) > 40 for prompt in prompts) for text in texts)

    every, words = [row["text"] for row in rows], [word for words in phrases.values() for word in words]
    num_too_long = too_long_by_hand(every, *words)
    assert num_too_long > too_long_by_hand(every, "rows") > 5
    cut = task()
    for part in (cut.train, cut.test_part):
        assert cut.num_truncated(part) == too_long_by_hand(part.texts.first, *words) > 1
    assert cut.counts()["num_truncated_test"] == cut.num_truncated(cut.test_part)
    dropped = task(too_long="drop")
    assert dropped.selection.count.too_long == num_too_long
    assert dropped.counts()["num_truncated_train"] == dropped.counts()["num_truncated_test"] == 0
    with pytest.raises(DataError, match=f"{num_too_long} of 80 texts exceed"):
        task(too_long="error")
    with pytest.raises(ParamsError, match="over half of `max_length"):
        task(too_long="drop", prompt="the " * 20 + "[MASK]")


def test_a_prompt_stays_whole_with_a_long_text_and_a_too_long_prompt_is_refused(judge: Path, data: Path) -> None:
    task = Entailment(TaskInputs(params(judge), 1, judge, data, data))
    (long, longer) = task.scores(["the model " * 40, "the model " * 50])
    assert long.tolist() == longer.tolist()
    with pytest.raises(ParamsError, match="over half of `max_length"):
        Entailment(TaskInputs(params(judge, prompt="the " * 20 + "[MASK]"), 1, judge, data, data))
    with pytest.raises(ParamsError, match="label `models` of the task has no words"):
        Entailment(TaskInputs(params(judge, label_words={"files": ["file"]}), 1, judge, data, data))
