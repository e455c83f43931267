"""Claim: without training, a text gets the label whose words the encoder fills into the prompt, or the label whose
filled prompt follows from it by an entailment model, as stock transformers has it.
"""

import json
import logging
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from clozeline.params.tasks import ZeroShotParams
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.tasks.training import use_threads
from clozeline.tasks.zero_shot import Cloze, Entailment, prompted
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from tests.make.models import small_modernbert
from tests.make.tasks import contents, fine_tune, inputs_of, metrics_of, params_of, write_rows

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


@pytest.fixture(scope="module")
def topical_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small ModernBERT, pre-trained on texts that end by naming their topic; the mask stands for it."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import ModernBertForMaskedLM, PreTrainedTokenizerFast

    words = [*SPECIAL_TOKENS.values(), *TOPICS, *FILLER, *ABOUT.split(), *" ".join(TOPICS.values()).split()]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(vocab={word: place for place, word in enumerate(words)})._tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )
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
    folder = tmp_path_factory.mktemp("topical")
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def _batches(records: list[dict[str, str]], num_epochs: int) -> Iterator[list[dict[str, str]]]:
    draw = random.Random(0)
    for _ in range(num_epochs):
        order = draw.sample(records, len(records))
        yield from (order[start : start + 32] for start in range(0, len(order), 32))


PROMPT, PROMPT_OF_ENTAILMENT = "the text is [MASK] here", "the text is of [MASK]"
WORDS = {"files": ["f", "h"], "models": ["m"]}
"""The tests' tokenizer knows hardly more than letters."""
PHRASES = {"files": ["the file", "rows"], "models": ["models"]}
THINGS = {"files": ["file", "rows", "hash"], "models": ["model", "encoder", "tensor"]}


def params(**changes: object) -> ZeroShotParams:
    made: ZeroShotParams = params_of(
        "zero_shot", **{"prompt": PROMPT, "label_words": WORDS, "max_length": 24, **changes}
    )
    return made


def entailing(model: Path | str, **changes: object) -> ZeroShotParams:
    knobs = {"prompt": PROMPT_OF_ENTAILMENT, "label_words": PHRASES, "max_length": 40}
    return params(**{**knobs, "entailment": {"model": str(model)}, **changes})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"text": f"{of[0]} " * (1 + n) + f"{n}", "label": label} for n in range(40) for label, of in WORDS.items()]
    return write_rows(tmp_path / "data.jsonl", rows)


@pytest.fixture
def things(tmp_path: Path) -> Path:
    rows = [
        {"text": f"{'the ' * (n % 9)}{words[n % 3]} {n}", "label": label}
        for n in range(40)
        for label, words in THINGS.items()
    ]
    return write_rows(tmp_path / "things.jsonl", rows)


def texts_in(data: Path) -> list[str]:
    return [json.loads(line)["text"] for line in data.read_text().splitlines()]


@pytest.fixture(scope="module")
def judge(save_trained: Callable[[Any], Path]) -> Path:
    """An entailment model with random weights, in the usual form on the hub: no mask token, labels in capitals."""
    from transformers import ModernBertForSequenceClassification

    config = small_modernbert()
    config.id2label = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}
    config.label2id = {label: number for number, label in config.id2label.items()}
    torch.manual_seed(0)
    return save_trained(ModernBertForSequenceClassification(config))


def by_hand(encoder: Path, text: str) -> dict[str, float]:
    """Return the mean log-probability of each label's words, by stock transformers."""
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)
    inputs = tokenizer(f"{text} {PROMPT}".strip(), return_tensors="pt")
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    with torch.inference_mode():
        log_V = model(**inputs).logits[0, place].log_softmax(0)
    return {label: float(log_V[tokenizer.convert_tokens_to_ids(words)].mean()) for label, words in WORDS.items()}


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_scores_equal_those_of_stock_transformers_for_the_filled_prompt(
    small_encoder: Path, data: Path, is_calibrated: bool
) -> None:
    task = Cloze(inputs_of(params(calibrated=is_calibrated), small_encoder, data))
    text = min(task.test_part.texts.first, key=len)
    given = task.logits(task.test_part)[task.test_part.texts.first.index(text)]
    scores, prior = by_hand(small_encoder, text), by_hand(small_encoder, "")
    expected = [scores[label] - (prior[label] if is_calibrated else 0) for label in task.labels]
    assert given.tolist() == pytest.approx(expected, abs=1e-4)


def test_labels_equal_those_of_the_transformers_zero_shot_pipeline(judge: Path, things: Path) -> None:
    """One phrase per label, without calibration, because the pipeline has nothing else."""
    phrases = ("the file", "models")
    words = {label: [phrase] for label, phrase in zip(THINGS, phrases, strict=True)}
    task = Entailment(inputs_of(entailing(judge, label_words=words, calibrated=False), judge, things))
    stock = pipeline(
        "zero-shot-classification",
        model=AutoModelForSequenceClassification.from_pretrained(judge),
        tokenizer=AutoTokenizer.from_pretrained(judge),
    )
    template = PROMPT_OF_ENTAILMENT.replace("[MASK]", "{}")
    told = stock(task.test_part.texts.first, [*phrases], hypothesis_template=template)
    expected = [[one["scores"][one["labels"].index(phrase)] for phrase in phrases] for one in told]
    shares = torch.from_numpy(task.logits(task.test_part)).softmax(dim=1)
    torch.testing.assert_close(shares, torch.tensor(expected), rtol=0, atol=1e-5)


def test_a_label_scores_the_mean_of_its_phrases_minus_their_scores_without_a_text(judge: Path, things: Path) -> None:
    def task(**changes: object) -> Entailment:
        return Entailment(inputs_of(entailing(judge, **changes), judge, things))

    def scores(**changes: object) -> torch.Tensor:
        return torch.from_numpy(task(**changes).scores(["the file", ""]))

    alone = [scores(label_words=PHRASES | {"files": [phrase]})[:, 0] for phrase in PHRASES["files"]]
    together, calibrated = scores(), task()
    torch.testing.assert_close(together[:, 0], (alone[0] + alone[1]) / 2)
    plain = torch.from_numpy(calibrated.scores(calibrated.test_part.texts.first))
    torch.testing.assert_close(torch.from_numpy(calibrated.logits(calibrated.test_part)), plain - together[1])
    (long, longer) = calibrated.scores(["the model " * 40, "the model " * 50])
    assert long.tolist() == longer.tolist(), "the prompt stays whole beside a long text"


def test_the_prompt_stays_whole_after_a_text_that_is_too_long(small_encoder: Path, data: Path) -> None:
    task = Cloze(inputs_of(params(), small_encoder, data))
    rows = prompted(["the model " * 40, "the model"], task.params.prompt, task.opened, task.params.max_length)
    assert (len(rows.ids_T[0]), rows.num_truncated) == (24, 1)
    tail = rows.ids_T[1][3:].tolist()
    assert rows.ids_T[0][-len(tail) :].tolist() == tail


def test_texts_too_long_beside_the_prompt_are_truncated_dropped_or_refused_as_configured(
    small_encoder: Path, judge: Path, data: Path, things: Path
) -> None:
    phrases = {"files": ["rows", "the end of the file"], "models": ["the model"]}
    longer = [
        {"text": f"{text} " * (n % 4 + 1), "label": ("files", "models")[n % 2]}
        for n, text in enumerate(texts_in(things))
    ]
    write_rows(things, longer)

    def after_the_prompt(text: str) -> int:
        return len(AutoTokenizer.from_pretrained(small_encoder)(f"{text} {PROMPT}".strip()).input_ids) - 24

    def beside_the_longest_prompt(text: str) -> int:
        tokenizer, words = AutoTokenizer.from_pretrained(judge), [word for of in phrases.values() for word in of]
        prompts = [PROMPT_OF_ENTAILMENT.replace("[MASK]", word) for word in words]
        return max(len(tokenizer(text, prompt).input_ids) for prompt in prompts) - 40

    for kind, given, encoder, file, excess, problem in (
        (Cloze, params(), small_encoder, data, after_the_prompt, "leaves no room"),
        (Entailment, entailing(judge, label_words=phrases), judge, things, beside_the_longest_prompt, "over half of"),
    ):

        def task(
            kind: Any = kind, given: Any = given, encoder: Path = encoder, file: Path = file, **changes: str
        ) -> Any:
            return kind(inputs_of(given.model_copy(update=changes), encoder, file))

        def num_too_long(texts: Iterable[str], excess: Callable[[str], int] = excess) -> int:
            return sum(excess(text) > 0 for text in texts)

        cut, num_every = task(), num_too_long(texts_in(file))
        figures = cut.test().figures
        for name, part in (("train", cut.train), ("test", cut.test_part)):
            assert figures[f"num_truncated_{name}"] == cut.num_truncated(part) == num_too_long(part.texts.first) > 1
        dropped = task(too_long="drop").test().figures
        assert dropped["records"]["too_long"] == num_every
        assert dropped["num_truncated_train"] == dropped["num_truncated_test"] == 0
        with pytest.raises(DataError, match=f"{num_every} of 80 texts exceed"):
            task(too_long="error")
        with pytest.raises(ParamsError, match=problem):
            task(too_long="drop", prompt="the text " * 20 + "[MASK]")


def test_labels_with_words_need_no_training_texts(
    small_encoder: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    odd = [{"text": f"{label} {n}", "label": label} for label in ("odd", "wordless") for n in range(6)]
    write_rows(folder / "train.jsonl", rows[:60])
    write_rows(folder / "test.jsonl", [*rows[60:], *odd])
    words = WORDS | {"odd": ["t"], "misspelt": ["g"]}
    given = params(label_words=words, splits={"train": "train.jsonl", "test": "test.jsonl"})
    task = Cloze(inputs_of(given, small_encoder, folder))
    assert task.labels == ("files", "misspelt", "models", "odd")
    for words_of_log in ("that no text of the task has", "wrong: misspelt;", "count as missed: wordless (texts: 6)"):
        assert words_of_log in caplog.text
    assert task.test().figures["num_test_of_classes_without_training_text"] == 12
    by_label = [task.test_part.labels[place] for place in task.test_part.targets_T]
    assert by_label.count("odd") == by_label.count("wordless") == 6
    assert task.logits(task.test_part).shape[1] == 4


@pytest.mark.parametrize("by_entailment", [False, True], ids=["cloze", "entailment"])
def test_a_trained_model_beats_word_counts_of_few_labelled_texts(
    topical_encoder: Path, tmp_path: Path, by_entailment: bool
) -> None:
    """Nine training texts have few of the topic words."""
    for seed, (part, num_texts) in enumerate({"train": 9, "validation": 6, "test": 150}.items()):
        write_rows(tmp_path / SPLITS[part], topical(num_texts, seed))
    knobs = {"prompt": f"{ABOUT} [MASK]", "label_words": None, "calibrated": False, "max_length": 32, "splits": SPLITS}
    if by_entailment:
        draw = random.Random(1)
        pairs = [
            {"text": it["text"], "second": f"{ABOUT} {topic}", "label": relation}
            for it in topical(400, seed=101)
            for relation, topics in (
                ("entailment", [it["label"]]),
                ("contradiction", sorted({*TOPICS} - {it["label"]})),
            )
            for topic in [draw.choice(topics)]
        ]
        sizes = {"second_field": "second", "max_length": 32, "batch_size": 16, "epochs": 6, "test_fraction": 0.1}
        given = params_of("classification", **sizes, optimizer={"learning_rate": 0.003})
        nli = write_rows(tmp_path / "pairs.jsonl", pairs)
        trained = fine_tune(given, tmp_path / "nli", encoder=topical_encoder, data=nli)
        knobs["entailment"] = {"model": str(trained / "model")}
    out = fine_tune(params(**knobs), tmp_path / "out", encoder=topical_encoder, data=tmp_path)
    headline = metrics_of(out)["headline"]
    assert (headline["metric"], headline["baseline"]) == ("accuracy", "TF-IDF + logistic regression")
    assert headline["value"] > headline["baseline_value"] + 0.2 > headline["trivial_value"] + 0.2
    if by_entailment:
        assert headline["method"] == "zero-shot entailment model"
        saved = AutoModelForSequenceClassification.from_pretrained(out / "model")
        assert set(saved.config.label2id) == {"entailment", "contradiction"}
        AutoTokenizer.from_pretrained(out / "model")


def test_the_stage_evaluates_without_training_and_training_knobs_have_no_effect(
    small_encoder: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    usual = params()
    out = fine_tune(usual, tmp_path / "out", encoder=small_encoder, data=data)
    told = metrics_of(out)
    assert (told["best_epoch"], told["records"]["num_used"]) == (0, 80)
    assert told["headline"]["baseline"] == "TF-IDF + logistic regression"
    assert told["headline"]["method"] == "zero-shot encoder with a prompt"
    assert "before training: validation score" in caplog.text
    assert "epoch" not in caplog.text
    before, after = (AutoModelForMaskedLM.from_pretrained(it).state_dict() for it in (small_encoder, out / "model"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    optimizer = usual.optimizer.model_copy(update={"learning_rate": 0.5})
    others = {"epochs": 7, "validations_per_epoch": 3, "patience": 1, "optimizer": optimizer, "warmup_fraction": 0.9}
    others |= {"layer_decay": 0.5, "frozen_layers": 1, "checkpoint_every_steps": 2, "micro_batch_tokens": 64}
    assert set(others) == set(usual.idle)
    again = fine_tune(usual.model_copy(update=others), tmp_path / "others", encoder=small_encoder, data=data)
    assert contents(again) == contents(out)


@pytest.mark.parametrize("words", [{"files": ["f"]}, {"files": ["filesystem"], "models": ["m"]}, None])
def test_labels_without_a_single_token_word_are_named(small_encoder: Path, data: Path, words: object) -> None:
    with pytest.raises(ParamsError, match=r"label `(files|models)` of the task cannot"):
        Cloze(inputs_of(params(label_words=words), small_encoder, data))


def test_labels_without_a_phrase_are_named(judge: Path, things: Path) -> None:
    with pytest.raises(ParamsError, match="label `models` of the task has no words"):
        Entailment(inputs_of(entailing(judge, label_words={"files": ["file"]}), judge, things))


def changed(model: Path, folder: Path, **config: object) -> Path:
    """Return a copy of a model with changes of its configuration; without changes it has none."""
    shutil.copytree(model, folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config)) if config else file.unlink()
    return folder


def test_a_model_of_another_kind_is_refused(
    small_encoder: Path, small_classifier: Path, judge: Path, data: Path, things: Path, tmp_path: Path
) -> None:
    headless = {"architectures": ["ModernBertModel"]}
    with pytest.raises(ArtifactError, match="is not a masked language model"):
        Cloze(inputs_of(params(), changed(small_encoder, tmp_path / "other", **headless), data))
    for wrong, labels in (
        (small_classifier, "jax, numpy, torch"),
        (small_encoder, "none"),
        (changed(judge, tmp_path / "headless", **headless), "ModernBertModel"),
        (changed(judge, tmp_path / "empty"), "none"),
    ):
        with pytest.raises(ArtifactError, match=r"`entailment\.model`") as caught:
            Entailment(inputs_of(entailing(wrong), judge, things))
        assert labels in str(caught.value)


@pytest.mark.parametrize("prompt", ["no blank", "[MASK] and [MASK]"])
def test_a_prompt_has_one_blank(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"one \[MASK\]"):
        params(prompt=prompt)


@pytest.mark.usefixtures("offline_hub")
def test_a_model_is_downloaded_from_the_hub_by_its_name(
    judge: Path, things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_model = tmp_path / "hub" / "models--some--nli"
    shutil.copytree(judge, of_model / "snapshots" / "c0ffee")
    (of_model / "refs").mkdir()
    (of_model / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    by_folder, by_name = (
        Entailment(inputs_of(entailing(name), judge, things)).scores(["the file"]) for name in (judge, "some/nli")
    )
    assert by_folder.tolist() == by_name.tolist()
    with pytest.raises(ArtifactError, match="cannot be downloaded from the hub"):
        Entailment(inputs_of(entailing("other/nli"), judge, things))
