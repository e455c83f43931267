"""An encoder that was pre-trained to know topics by their words."""

import json
import logging
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from clozeline.params.reading import read_params
from clozeline.params.tasks import ClassificationParams, ZeroShotParams, whole_task
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.training import use_threads
from clozeline.tasks.zero_shot import Cloze, Entailment
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from tests.make.models import small_modernbert
from tests.make.tasks import contents, fine_tune, metrics_of, write_rows
from tests.make.texts import write_clean_text


@pytest.fixture(scope="session")
def topical_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small ModernBERT, pre-trained on texts that end by naming their topic; the mask stands for it."""
    from transformers import ModernBertForMaskedLM

    folder = tmp_path_factory.mktemp("topical")
    tokenizer = _tokenizer()
    config = small_modernbert()
    config.vocab_size = len(tokenizer)
    use_threads(1)
    torch.manual_seed(0)
    model = ModernBertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for records in _batches(topical(400, seed=100), num_epochs=16):
        inputs = tokenizer([f"{it['text']} {ABOUT} [MASK]" for it in records], return_tensors="pt", padding=True)
        topics_B = torch.tensor(tokenizer.convert_tokens_to_ids([it["label"] for it in records]))
        logits_BV = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
        torch.nn.functional.cross_entropy(logits_BV, topics_B).backward()
        optimizer.step()
        optimizer.zero_grad()
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def _batches(records: list[dict[str, str]], num_epochs: int) -> Iterator[list[dict[str, str]]]:
    draw = random.Random(0)
    for _ in range(num_epochs):
        order = draw.sample(records, len(records))
        yield from (order[start : start + 32] for start in range(0, len(order), 32))


def _tokenizer() -> Any:
    """Return a tokenizer with one token for each word."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL_TOKENS.values(), *TOPICS, *FILLER, *ABOUT.split(), *" ".join(TOPICS.values()).split()]
    vocab = {word: number for number, word in enumerate(words)}
    return PreTrainedTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(vocab=vocab)._tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )


TOPICS = {
    "cooking": "salt oven butter flour pan dough sugar spoon pepper broth yeast cream",
    "sailing": "mast keel tide rudder anchor deck sail harbour rope hull wind crew",
    "gardens": "soil seed root weed spade hedge lawn rose bulb fence pond moss",
}
FILLER = ["the", "a", "of", "and", "with", "then", "under", "over"]
ABOUT = "this text is about"
SPLITS = {"train": "train.jsonl", "validation": "validation.jsonl", "test": "test.jsonl"}


def topical(num_texts: int, seed: int) -> list[dict[str, str]]:
    """Return texts of three words drawn from the twelve of their topic, and four other words."""
    draw = random.Random(seed)
    records = []
    for number in range(num_texts):
        topic = sorted(TOPICS)[number % len(TOPICS)]
        words = [*draw.sample(TOPICS[topic].split(), 3), *draw.choices(FILLER, k=4)]
        draw.shuffle(words)
        records.append({"text": " ".join(words), "label": topic})
    return records


def other_topic(topic: str, draw: random.Random) -> str:
    return draw.choice([other for other in sorted(TOPICS) if other != topic])


def write_few_labelled(folder: Path) -> None:
    """Write `SPLITS` into `folder`: nine training texts, which have few of the topic words, and many test texts."""
    for seed, (part, num_texts) in enumerate({"train": 9, "validation": 6, "test": 150}.items()):
        write_rows(folder / SPLITS[part], topical(num_texts, seed))


DEFAULTS = read_params(Path(__file__).parents[2] / "params.yaml").finetune_defaults
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
    assert cut.test().figures["num_truncated_train"] == cut.num_truncated(cut.train)
    assert cut.test().figures["num_truncated_test"] == cut.num_truncated(cut.test_part)
    dropped = task(too_long="drop")
    assert dropped.splits.count["too_long"] == num_too_long
    assert dropped.test().figures["num_truncated_train"] == dropped.test().figures["num_truncated_test"] == 0
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
    assert task.test().figures["num_test_of_classes_without_training_text"] == 12
    answers = task.logits(task.test_part).argmax(axis=1).tolist()
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


PROMPT_OF_ENTAILMENT = "the text is of [MASK]"
PHRASES = {"files": ["the file", "rows"], "models": ["models"]}
THINGS = {"files": ["file", "rows", "hash"], "models": ["model", "encoder", "tensor"]}


def entailing(model: Path | str, **changes: object) -> ZeroShotParams:
    task = {"kind": "zero_shot", "data": "x", "prompt": PROMPT_OF_ENTAILMENT, "label_words": PHRASES, "max_length": 40}
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
def entailed(tmp_path: Path) -> Path:
    rows = [
        {"text": f"{'the ' * (n % 9)}{words[n % 3]} {n}", "label": label}
        for n in range(40)
        for label, words in THINGS.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    write_clean_text(tmp_path / "seen.parquet", ["nothing"])
    return tmp_path / "data.parquet"


def test_labels_equal_those_of_the_transformers_zero_shot_pipeline(judge: Path, entailed: Path) -> None:
    """One phrase per label, without calibration, because the pipeline has nothing else."""
    words = {"files": ["the file"], "models": ["models"]}
    task = KINDS["zero_shot"].prepare(
        TaskInputs(
            entailing(judge, label_words=words, calibrated=False),
            1,
            judge,
            entailed,
            entailed,
        )
    )
    assert isinstance(task, Entailment)
    texts = task.test_part.texts.first
    stock = pipeline(
        "zero-shot-classification",
        model=AutoModelForSequenceClassification.from_pretrained(judge),
        tokenizer=AutoTokenizer.from_pretrained(judge),
    )
    told = stock(texts, ["the file", "models"], hypothesis_template=PROMPT_OF_ENTAILMENT.replace("[MASK]", "{}"))
    expected = [[one["scores"][one["labels"].index(phrase)] for phrase in ("the file", "models")] for one in told]
    shares = torch.from_numpy(task.logits(task.test_part)).softmax(dim=1)
    torch.testing.assert_close(shares, torch.tensor(expected), rtol=0, atol=1e-5)


def test_a_label_scores_the_mean_of_its_phrases_minus_their_scores_without_a_text(judge: Path, entailed: Path) -> None:
    def scores(**changes: object) -> torch.Tensor:
        task = Entailment(TaskInputs(entailing(judge, **changes), 1, judge, entailed, entailed))
        return torch.from_numpy(task.scores(["the file", ""]) if changes else task.logits(task.test_part))

    alone = [scores(label_words=PHRASES | {"files": [phrase]})[:, 0] for phrase in PHRASES["files"]]
    together = scores(label_words=PHRASES)
    torch.testing.assert_close(together[:, 0], (alone[0] + alone[1]) / 2)
    task = Entailment(TaskInputs(entailing(judge), 1, judge, entailed, entailed))
    plain = torch.from_numpy(task.scores(task.test_part.texts.first))
    torch.testing.assert_close(scores(), plain - together[1])


def test_the_stage_evaluates_a_pair_classifier_trained_here(small_encoder: Path, tmp_path: Path) -> None:
    words = [word for words in THINGS.values() for word in words]
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
        entailing(trained / "model", label_words=None),
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
    write_rows(tmp_path / "pairs.jsonl", pairs)
    task = {"kind": "classification", "data": "x", "second_field": "second", "max_length": 32, "batch_size": 16}
    learning = {"epochs": 6, "test_fraction": 0.1, "num_threads": 1, "optimizer": {"learning_rate": 0.003}}
    trained = fine_tune(
        ClassificationParams.model_validate(whole_task({**task, **learning}, DEFAULTS)),
        tmp_path / "nli",
        encoder=topical_encoder,
        data=tmp_path / "pairs.jsonl",
    )
    given = entailing(
        trained / "model", prompt=f"{ABOUT} [MASK]", label_words=None, calibrated=False, max_length=32, splits=SPLITS
    )
    headline = metrics_of(fine_tune(given, tmp_path / "out", encoder=topical_encoder, data=tmp_path))["headline"]
    assert (headline["metric"], headline["baseline"]) == ("accuracy", "TF-IDF + logistic regression")
    assert headline["value"] > headline["baseline_value"] + 0.2 > headline["trivial_value"] + 0.2


@pytest.mark.usefixtures("offline_hub")
def test_a_model_is_downloaded_from_the_hub_by_its_name(
    judge: Path, entailed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "models--some--nli" / "snapshots" / "c0ffee"
    shutil.copytree(judge, snapshot)
    (tmp_path / "hub" / "models--some--nli" / "refs").mkdir()
    (tmp_path / "hub" / "models--some--nli" / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    by_folder, by_name = (
        Entailment(TaskInputs(entailing(name), 1, judge, entailed, entailed)).scores(["the file"])
        for name in (judge, "some/nli")
    )
    assert by_folder.tolist() == by_name.tolist()
    with pytest.raises(ArtifactError, match="cannot be downloaded from the hub"):
        Entailment(TaskInputs(entailing("other/nli"), 1, judge, entailed, entailed))


def test_a_model_without_an_entailment_label_is_refused(
    judge: Path, small_encoder: Path, small_classifier: Path, entailed: Path, tmp_path: Path
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
            Entailment(TaskInputs(entailing(wrong), 1, judge, entailed, entailed))
        assert labels in str(caught.value)


def test_texts_too_long_for_the_longest_prompt_are_truncated_dropped_or_refused_as_configured(
    judge: Path, entailed: Path, tmp_path: Path
) -> None:
    phrases = {"files": ["rows", "the end of the file"], "models": ["the model"]}
    rows = [
        row | {"text": f"{row['text']} " * (n % 4 + 1)} for n, row in enumerate(pq.read_table(entailed).to_pylist())
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "longer.parquet")

    def task(**changes: object) -> Entailment:
        given = entailing(judge, **{"label_words": phrases, **changes})
        return Entailment(TaskInputs(given, 1, judge, tmp_path / "longer.parquet", entailed.with_name("seen.parquet")))

    def too_long_by_hand(texts: Iterable[str], *words: str) -> int:
        tokenizer = AutoTokenizer.from_pretrained(judge)
        prompts = [PROMPT_OF_ENTAILMENT.replace("[MASK]", word) for word in words]
        return sum(any(len(tokenizer(text, prompt).input_ids) > 40 for prompt in prompts) for text in texts)

    every, words = [row["text"] for row in rows], [word for words in phrases.values() for word in words]
    num_too_long = too_long_by_hand(every, *words)
    assert num_too_long > too_long_by_hand(every, "rows") > 5
    cut = task()
    for part in (cut.train, cut.test_part):
        assert cut.num_truncated(part) == too_long_by_hand(part.texts.first, *words) > 1
    assert cut.test().figures["num_truncated_test"] == cut.num_truncated(cut.test_part)
    dropped = task(too_long="drop")
    assert dropped.splits.count["too_long"] == num_too_long
    assert dropped.test().figures["num_truncated_train"] == dropped.test().figures["num_truncated_test"] == 0
    with pytest.raises(DataError, match=f"{num_too_long} of 80 texts exceed"):
        task(too_long="error")
    with pytest.raises(ParamsError, match="over half of `max_length"):
        task(too_long="drop", prompt="the " * 20 + "[MASK]")


def test_a_prompt_stays_whole_with_a_long_text_and_a_too_long_prompt_is_refused(judge: Path, entailed: Path) -> None:
    task = Entailment(TaskInputs(entailing(judge), 1, judge, entailed, entailed))
    (long, longer) = task.scores(["the model " * 40, "the model " * 50])
    assert long.tolist() == longer.tolist()
    with pytest.raises(ParamsError, match="over half of `max_length"):
        Entailment(
            TaskInputs(
                entailing(judge, prompt="the " * 20 + "[MASK]"),
                1,
                judge,
                entailed,
                entailed,
            )
        )
    with pytest.raises(ParamsError, match="label `models` of the task has no words"):
        Entailment(
            TaskInputs(
                entailing(judge, label_words={"files": ["file"]}),
                1,
                judge,
                entailed,
                entailed,
            )
        )
