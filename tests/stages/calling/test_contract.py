"""A feed that differs too much from the last accepted one stops a run before any training."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo
from clozeline.stages.calling.contract import FILE, Accepted, under_contract
from clozeline.stages.calling.profiles import LabelProfile, TextProfile
from clozeline.system.errors import ArtifactError, ContractError
from tests.conftest import SPECIAL_IDS, VOCAB_SIZE
from tests.make.params import with_task
from tests.make.texts import corpus_metrics, token_metrics, write_documents

PROJECT = Path(__file__).parents[3]
ENGLISH = ["the", "file", "is", "opened", "and", "returned", "as", "a", "list", "of", "lines", "when", "there"]
GERMAN = ["die", "Datei", "wird", "geöffnet", "und", "als", "Liste", "von", "Zeilen", "zurückgegeben", "wenn", "es"]
RUSSIAN = ["файл", "открывается", "возвращается", "как", "список", "строк", "если", "нет", "другого", "способа"]
LOCK = {
    "stages": {
        "preprocess": {"cmd": "python -m clozeline stage preprocess out=data/clean metrics=metrics/preprocess.json"},
        "tokenize": {"cmd": "python -m clozeline stage tokenize out=data/tokens metrics=metrics/tokenize.json"},
    }
}


def night(words: Sequence[str], number: int = 600, length: int = 12, seed: int = 0) -> list[str]:
    """Texts of about `length` words each."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(length // 2, 2 * length))) for _ in range(number)]


def write(root: Path, texts: Sequence[str], *, near_duplicates: int = 10, unknown: float = 0.01) -> None:
    """Write the files that the stages before a training write.

    Texts have 20 tokens each, and the share `unknown` of the texts half of them unknown.
    """
    for folder in ("data/clean", "data/tokens", "metrics"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    YAML().dump(LOCK, root / "dvc.lock")
    pq.write_table(pa.table({"text": list(texts)}), root / "data/clean/train.parquet", row_group_size=100)
    corpus_metrics(train=len(texts), near_duplicate=near_duplicates, empty=0).write(root / "metrics/preprocess.json")
    token_metrics(unknown_rate=unknown / 2).write(root / "metrics/tokenize.json")
    assert SPECIAL_IDS.unk is not None
    ids_DL = np.full((len(texts), 20), VOCAB_SIZE - 1)
    ids_DL[: round(unknown * len(texts)), :10] = SPECIAL_IDS.unk
    tokens = root / "data/tokens"
    splits = {"train": write_documents(tokens, "train", list(ids_DL), bytes_per_token=4, shard_tokens=10_000)}
    TokensInfo.of(vocab_size=VOCAB_SIZE, tokenizer_sha256="", special_ids=SPECIAL_IDS, splits=splits).write(
        tokens / INFO_NAME
    )


def train(root: Path, params: Params | None = None) -> None:
    """Do what the command of the stage `pretrain` does, but train nothing."""
    with under_contract("pretrain", None, None, params or read_params(PROJECT / "params.yaml"), root):
        pass


def broken_by(train: Callable[[], None], what: str = "the text") -> str:
    """Return the clauses that the error of a training names."""
    with pytest.raises(ContractError, match=what) as caught:
        train()
    return str(caught.value.given)


def text_of(root: Path) -> TextProfile:
    """Return what the contract has accepted of the text."""
    text = Accepted.in_project(root).text
    assert text is not None
    return text


@pytest.fixture
def accepted(tmp_path: Path) -> Path:
    """A project whose last accepted night was 600 English texts."""
    write(tmp_path, night(ENGLISH))
    train(tmp_path)
    return tmp_path


def test_the_first_nightly_run_is_accepted_and_recorded(accepted: Path) -> None:
    text = text_of(accepted)
    assert (text.documents, text.kept, text.num_sampled) == (610, 600, 600)
    assert text.script_shares == {"LATIN": 1.0}


def test_texts_are_counted_by_the_next_power_of_two_of_their_length(tmp_path: Path) -> None:
    write(tmp_path, ["a" * length for length in (1, 63, 64, 65)])
    train(tmp_path)
    assert text_of(tmp_path).texts_by_length == {"1": 1, "64": 2, "128": 1}


@pytest.mark.parametrize("number", [540, 600, 700, 6_000])
def test_a_nightly_run_within_the_contract_trains(accepted: Path, number: int) -> None:
    write(accepted, night(ENGLISH, number, seed=1))
    train(accepted)
    assert text_of(accepted).kept == number


@pytest.mark.parametrize(
    ("texts", "changes", "found"),
    [
        (night(ENGLISH, 240, seed=1), {}, "documents is 250 (last accepted 610), at least 305"),
        (night(GERMAN), {}, "similarity of character trigrams"),
        (night(RUSSIAN), {}, "share of CYRILLIC letters is 1.0000"),
        (night(ENGLISH, length=200), {}, "stability index of lengths"),
        (night(ENGLISH), {"near_duplicates": 200}, "share dropped as near_duplicate"),
        (night(ENGLISH), {"unknown": 0.08}, "(0.50% of all tokens before, 4.00% now)"),
    ],
)
def test_a_short_or_foreign_feed_stops_the_run_before_training_and_names_the_difference(
    accepted: Path, texts: list[str], changes: dict[str, Any], found: str
) -> None:
    before = (accepted / FILE).read_bytes()
    write(accepted, texts, **changes)
    assert found in broken_by(lambda: train(accepted))
    assert (accepted / FILE).read_bytes() == before
    (accepted / FILE).unlink()
    train(accepted)  # a person accepts the new text
    assert (accepted / FILE).exists()


def test_the_command_of_the_stage_in_dvc_yaml_stops_before_it_trains(
    accepted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PROJECT / "params.yaml", accepted)
    write(accepted, night(ENGLISH, 240))
    monkeypatch.chdir(accepted)
    command = YAML(typ="safe").load(PROJECT / "dvc.yaml")["stages"]["pretrain"]["cmd"].split()
    result = CliRunner().invoke(app, command[command.index("stage") :])
    assert isinstance(result.exception, ContractError)
    assert not (accepted / "models").exists()


@pytest.mark.parametrize("unknown", [0.0, 0.02])
def test_as_many_or_fewer_unknown_tokens_train(tmp_path: Path, unknown: float) -> None:
    write(tmp_path, night(ENGLISH), unknown=0.02 if unknown else 0.5)
    train(tmp_path)
    write(tmp_path, night(ENGLISH, seed=1), unknown=unknown)
    train(tmp_path)
    assert text_of(tmp_path).texts_by_unknown == ({"0": 588, "1": 12} if unknown else {"0": 600})


@pytest.mark.parametrize(
    ("limits", "before", "number", "stops"),
    [
        ({"min_documents": 611}, None, 600, True),
        ({"max_documents": 609}, None, 600, True),
        ({}, None, 600, False),
        ({"max_missing_share": 0.1}, 600, 530, True),
        ({"max_missing_share": 0.1}, 600, 540, False),
    ],
)
def test_the_number_of_documents_has_limits_and_beside_an_accepted_run_a_missing_share(
    tmp_path: Path, limits: dict[str, float], before: int | None, number: int, stops: bool
) -> None:
    params = read_params(PROJECT / "params.yaml")
    params = params.model_copy(update={"contract": params.contract.model_copy(update=limits)})
    for num_texts in filter(None, (before, number)):
        write(tmp_path, night(ENGLISH, num_texts))
        is_last = num_texts == number
        with pytest.raises(ContractError, match="the text") if stops and is_last else nullcontext():
            train(tmp_path, params)


def test_a_failed_training_is_not_recorded_as_accepted(tmp_path: Path) -> None:
    write(tmp_path, night(ENGLISH))
    with (
        pytest.raises(RuntimeError, match="NaN"),
        under_contract("pretrain", None, None, read_params(PROJECT / "params.yaml"), tmp_path),
    ):
        raise RuntimeError("NaN")
    assert not (tmp_path / FILE).exists()


def test_a_damaged_contract_record_is_reported_with_what_to_do(accepted: Path) -> None:
    (accepted / FILE).write_text('{"text": 7}')
    with pytest.raises(ArtifactError, match=r"contract\.lock cannot be used: text: (?s:.*)git checkout"):
        train(accepted)


def labelled(root: Path, rows: Sequence[tuple[str, str]]) -> None:
    (root / "more.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))


def fine_tune(root: Path, kind: str = "classification", data: str = "more.csv") -> None:
    """Do what the command of the stage `finetune` does for a task on `more.csv`."""
    (root / "params").mkdir(exist_ok=True)
    params = read_params(with_task(root / "params", f"kind: {kind}", f"data: {data}"))
    with under_contract("finetune", "more", Path(data), params, root):
        pass


def test_what_was_accepted_for_the_text_and_other_tasks_is_kept(accepted: Path) -> None:
    before = Accepted.in_project(accepted)
    other = LabelProfile(num_texts=1, num_conflicts=0, texts_by_label={"good": 1}, test_rows={})
    before.model_copy(update={"labels": {"other": other}}).write(accepted / FILE)
    labelled(accepted, [("a text", "good")])
    fine_tune(accepted)
    after = Accepted.in_project(accepted)
    assert after.text == before.text
    assert after.labels["other"] == other
    assert after.labels["more"].num_texts == 1


def test_tasks_that_train_side_by_side_are_all_recorded(tmp_path: Path) -> None:
    profile = LabelProfile(num_texts=1, num_conflicts=0, texts_by_label={"good": 1}, test_rows={})
    tasks = [f"task {number}" for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda task: Accepted.add(tmp_path, labels={task: profile}), tasks))
    assert set(Accepted.in_project(tmp_path).labels) == set(tasks)


def test_test_rows_that_a_growing_split_pushes_out_do_not_count_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozeline.stages.calling.profiles._MOST_TEST_ROWS", 2)

    def profile(*rows: str) -> LabelProfile:
        return LabelProfile(num_texts=9, num_conflicts=0, texts_by_label={}, test_rows=dict.fromkeys(rows, "label"))

    assert profile("a1", "b2").changed_test_rows(profile("b2", "c3")) == 0
    assert profile("a1", "c3").changed_test_rows(profile("b2", "c3")) == 0.5
    assert profile("b2").changed_test_rows(profile("b2", "c3")) == 0.5


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda rows: [*rows, *((text, "other") for text, _ in rows[:40])], "conflicting labels"),
        (lambda rows: [(text, "good") for text, _ in rows], "stability index of classes"),
        (lambda rows: [(text, {"good": "bad", "bad": "good"}[label]) for text, label in rows], "relabelled"),
    ],
)
def test_conflicting_shifted_or_changed_labels_stop_fine_tuning(tmp_path: Path, change: object, found: str) -> None:
    rows = [(f"text number {number}", ("good", "bad")[number % 2]) for number in range(400)]
    labelled(tmp_path, rows)
    fine_tune(tmp_path)
    labelled(tmp_path, [*rows, *((f"new text {number}", ("good", "bad")[number % 2]) for number in range(100))])
    fine_tune(tmp_path)
    assert callable(change)
    labelled(tmp_path, change(rows))
    assert found in broken_by(lambda: fine_tune(tmp_path), "the labels of task `more`")


Items = list[tuple[str, str]]


def sentences(items: Items) -> str:
    """Sentences in columns; the label is the type of their entity, if they have one."""
    return "".join(f"{text} O\nAda {label and 'B-'}{label or 'O'}\n\n" for text, label in items)


def questions(items: Items) -> str:
    """Questions as JSON Lines; the label is the answer, if there is one."""
    lines = []
    for text, label in items:
        context = f"{text} is good or bad"
        answers = {"text": [label] * bool(label), "answer_start": [context.find(label)] * bool(label)}
        lines.append(json.dumps({"question": f"what about {text}?", "context": context, "answers": answers}))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("kind", "data", "written"),
    [("tagging", "more.conll", sentences), ("question_answering", "more.jsonl", questions)],
)
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda items: [*items, *((text, "bad") for text, _ in items[:80:2])], "conflicting labels"),
        (lambda items: [(text, "") for text, _ in items], "stability index of classes"),
        (lambda items: [(text, {"good": "", "": "good"}[label]) for text, label in items], "relabelled"),
    ],
)
def test_tags_and_answers_are_under_contract_too(
    tmp_path: Path, kind: str, data: str, written: Callable[[Items], str], change: Callable[[Items], Items], found: str
) -> None:
    items = [(f"text{number}", ("good", "")[number % 2]) for number in range(400)]
    for accepted in (items, [*items, *((f"new{number}", ("good", "")[number % 2]) for number in range(100))]):
        (tmp_path / data).write_text(written(accepted))
        fine_tune(tmp_path, kind, data)
    (tmp_path / data).write_text(written(change(items)))
    assert found in broken_by(lambda: fine_tune(tmp_path, kind, data), "the labels of task `more`")
