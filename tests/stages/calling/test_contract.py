"""A feed that differs too much from the last accepted one stops a run before any training."""

import json
import random
import shutil
from collections.abc import Sequence
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
from clozeline.params.reading import read_params
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo
from clozeline.stages.calling.contract import FILE, Accepted, LabelProfile, TextProfile, under_contract
from clozeline.system.errors import ArtifactError, ContractError
from tests.conftest import SPECIAL_IDS, VOCAB_SIZE
from tests.make.params import with_task
from tests.make.texts import corpus_metrics, token_metrics, write_documents

PROJECT = Path(__file__).parents[3]
PARAMS = read_params(PROJECT / "params.yaml")
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


def train(root: Path, **limits: float) -> TextProfile:
    """Do what the command of the stage `pretrain` does, but train nothing; return what is accepted of the text."""
    params = PARAMS.model_copy(update={"contract": PARAMS.contract.model_copy(update=limits)})
    with under_contract("pretrain", None, None, params, root):
        pass
    text = Accepted.in_project(root).text
    assert text is not None
    return text


@pytest.fixture(scope="module")
def first_night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("first")
    write(root, night(ENGLISH))
    train(root)
    return root


@pytest.fixture
def accepted(first_night: Path, tmp_path: Path) -> Path:
    """A project whose last accepted night was 600 English texts."""
    return Path(shutil.copytree(first_night, tmp_path / "project"))


def test_the_first_nightly_run_is_recorded_with_its_texts_by_the_next_power_of_two_of_their_length(
    first_night: Path, tmp_path: Path
) -> None:
    text = train(first_night)
    assert (text.documents, text.kept, text.num_sampled) == (610, 600, 600)
    assert text.script_shares == {"LATIN": 1.0}
    write(tmp_path, ["a" * length for length in (1, 63, 64, 65)])
    assert train(tmp_path).texts_by_length == {"1": 1, "64": 2, "128": 1}


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
    with pytest.raises(ContractError, match="the text") as refused:
        train(accepted)
    assert found in str(refused.value.given)
    assert (accepted / FILE).read_bytes() == before


def test_the_command_of_the_stage_in_dvc_yaml_stops_before_it_trains_unless_a_person_accepts_the_text(
    accepted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PROJECT / "params.yaml", accepted)
    write(accepted, night(ENGLISH, 240))
    monkeypatch.chdir(accepted)
    command = YAML(typ="safe").load(PROJECT / "dvc.yaml")["stages"]["pretrain"]["cmd"].split()
    result = CliRunner().invoke(app, command[command.index("stage") :])
    assert isinstance(result.exception, ContractError)
    assert not (accepted / "models").exists()
    (accepted / FILE).unlink()
    with pytest.raises(RuntimeError, match="NaN"), under_contract("pretrain", None, None, PARAMS, accepted):
        raise RuntimeError("NaN")
    assert not (accepted / FILE).exists(), "a training that failed accepts nothing"
    assert train(accepted).kept == 240
    (accepted / FILE).write_text('{"text": 7}')
    with pytest.raises(ArtifactError, match=r"contract\.lock cannot be used: text: (?s:.*)git checkout"):
        train(accepted)


@pytest.mark.parametrize(
    ("limits", "number", "stops"),
    [
        ({}, 1_200, False),
        ({"min_documents": 611}, 600, True),
        ({"max_documents": 609}, 600, True),
        ({"max_missing_share": 0.1}, 530, True),
        ({"max_missing_share": 0.1}, 540, False),
    ],
)
def test_the_number_of_documents_has_limits_and_beside_an_accepted_run_a_missing_share(
    accepted: Path, limits: dict[str, float], number: int, stops: bool
) -> None:
    """Fewer unknown tokens train."""
    write(accepted, night(ENGLISH, number, seed=1), unknown=0.01 if limits else 0)
    with pytest.raises(ContractError, match="the text") if stops else nullcontext():
        assert train(accepted, **limits).kept == number


OTHER = LabelProfile(num_texts=1, num_conflicts=0, texts_by_label={"good": 1}, test_rows={})


def test_what_was_accepted_for_the_text_and_other_tasks_is_kept(accepted: Path) -> None:
    before, tasks = Accepted.in_project(accepted), [f"task {number}" for number in range(20)]
    with ThreadPoolExecutor(8) as threads:  # they train side by side
        list(threads.map(lambda task: Accepted.add(accepted, labels={task: OTHER}), tasks))
    fine_tune(accepted, "classification", "more.csv", [("a text", "good")])
    after = Accepted.in_project(accepted)
    assert after.text == before.text
    assert after.labels.pop("more").num_texts == 1
    assert after.labels == dict.fromkeys(tasks, OTHER)


Items = list[tuple[str, str]]


def table(items: Items) -> str:
    return "text,label\n" + "".join(f"{text},{label or 'bad'}\n" for text, label in items)


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


WRITTEN = {".csv": table, ".conll": sentences, ".jsonl": questions}


def fine_tune(root: Path, kind: str, data: str, items: Items) -> None:
    """Do what the command of the stage `finetune` does for a task `more` on these items."""
    (root / data).write_text(WRITTEN[Path(data).suffix](items))
    (root / "params").mkdir(exist_ok=True)
    params = read_params(with_task(root / "params", f"kind: {kind}", f"data: {data}"))
    with under_contract("finetune", "more", Path(data), params, root):
        pass


@pytest.mark.parametrize(
    ("kind", "data"),
    [("classification", "more.csv"), ("tagging", "more.conll"), ("question_answering", "more.jsonl")],
)
def test_conflicting_shifted_or_changed_labels_tags_and_answers_stop_fine_tuning(
    tmp_path: Path, kind: str, data: str
) -> None:
    items = [(f"text{number}", ("good", "")[number % 2]) for number in range(400)]
    more = [(f"new{number}", ("good", "")[number % 2]) for number in range(100)]
    for accepted in (items, [*items, *more]):
        fine_tune(tmp_path, kind, data, accepted)
    for changed, found in (
        ([*items, *((text, "bad") for text, _ in items[:80:2])], "conflicting labels"),
        ([(text, "") for text, _ in items], "stability index of classes"),
        ([(text, {"good": "", "": "good"}[label]) for text, label in items], "relabelled"),
    ):
        with pytest.raises(ContractError, match="the labels of task `more`") as refused:
            fine_tune(tmp_path, kind, data, changed)
        assert found in str(refused.value.given)


def test_test_rows_that_a_growing_split_pushes_out_do_not_count_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def profile(*rows: str) -> LabelProfile:
        return OTHER.model_copy(update={"test_rows": dict.fromkeys(rows, "label")})

    monkeypatch.setattr("clozeline.stages.calling.contract._MOST_TEST_ROWS", 2)
    assert profile("a1", "b2").changed_test_rows(profile("b2", "c3")) == 0
    assert profile("a1", "c3").changed_test_rows(profile("b2", "c3")) == 0.5
    assert profile("b2").changed_test_rows(profile("b2", "c3")) == 0.5
