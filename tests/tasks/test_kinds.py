"""Claim: every kind of task has its knobs, and two runs of each write the same files, which stock classes load."""

from pathlib import Path

import pytest
import transformers

from clozeline.params.tasks import SECTIONS
from clozeline.records.finetune.scored_items import read_held_out
from clozeline.tasks.kinds import KINDS
from tests.make.tasks import EACH, Case, contents, fine_tune, inputs_of_case, metrics_of, record, write_rows

STOCK = {
    "tagging": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "zero_shot": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
}


def test_kinds_and_sections_of_params_match() -> None:
    assert set(KINDS) == set(SECTIONS)


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_two_runs_write_the_same_files_which_stock_classes_load(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    write_rows(data, (record(number, case[1]) for number in range(120)))
    params = inputs_of_case(kind, case, small_encoder, data, epochs=1).params
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        fine_tune(params, tmp_path / name / "out", encoder=small_encoder, data=data)
    once, twice = (tmp_path / name / "out" for name in ("one", "two"))
    assert contents(once) == contents(twice)
    together = STOCK["classification"] if case[0].get("read_together") else "AutoModel"
    stock = getattr(transformers, STOCK.get(kind, together)).from_pretrained(once / "model", output_loading_info=True)
    assert not stock[1]["missing_keys"]
    held_out, texts = read_held_out(once / "model"), data.read_text()
    assert 0 < len(held_out) <= metrics_of(once)["num_validation"]
    assert all(item.text in texts and (item.second or "") in texts for item in held_out)
