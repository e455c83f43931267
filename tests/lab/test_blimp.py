"""Claim: of each minimal pair a model chooses the likelier sentence, and accuracy is by phenomenon and paradigm."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from clozeline.cli.evaluate import source_of
from clozeline.lab import blimp
from clozeline.lab.blimp import BlimpFigures, MinimalPair, Verdicts, read_pairs
from clozeline.lab.contest import ContestAsking, ContestQuestions, judge_models
from clozeline.language import models
from clozeline.language.models import LanguageModel
from clozeline.system.errors import DataError


def record(good: str, bad: str, paradigm: str = "p", phenomenon: str = "agreement") -> dict[str, str]:
    named = {"UID": paradigm, "linguistics_term": phenomenon, "field": "syntax"}
    return {"sentence_good": good, "sentence_bad": bad, **named, "pairID": "7"}


def lines(*records: dict[str, str]) -> str:
    return "".join(json.dumps(each) + "\n" for each in records)


def test_pairs_are_read_from_every_file_of_a_folder_compressed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(record("w5 w6", "w6 w6"), record("w7", "w8")))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(record("w9", "w5", "q", "islands")).encode()))
    (tmp_path / "README.md").write_text("no pairs")
    pairs = read_pairs(tmp_path)
    assert [pair.sentence_good for pair in pairs] == ["w5 w6", "w7", "w9"]
    assert pairs[2] == MinimalPair(**record("w9", "w5", "q", "islands"))
    assert list(blimp.sentences(pairs)) == ["w5 w6", "w6 w6", "w7", "w8", "w9", "w5"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        *((line, r"a\.jsonl, line 2 is not a minimal pair") for line in ("{", '{"sentence_good": "a"}', "7")),
        (None, "no file matches"),
    ],
)
def test_a_line_without_a_pair_or_a_folder_without_any_is_named(line: str | None, told: str, tmp_path: Path) -> None:
    if line:
        (tmp_path / "a.jsonl").write_text(f"{lines(record('a', 'b'))}{line}\n")
    with pytest.raises(DataError, match=told):
        read_pairs(tmp_path)
    with pytest.raises(DataError, match="there are no minimal pairs"):
        read_pairs(tmp_path / "nowhere")


def test_accuracy_is_per_phenomenon_and_its_mean_is_over_paradigms() -> None:
    pairs = [MinimalPair(**record("g", "b", paradigm, name)) for paradigm, name in ("px", "px", "qx", "ry")]
    verdicts = Verdicts(np.array([True, False, True, False]), np.array([False, False, False, True]))
    figures = BlimpFigures.of(pairs, verdicts)
    found = [(it.name, it.accuracy, it.num_pairs) for it in figures.phenomena]
    assert found == [("x", pytest.approx(2 / 3), 3), ("y", 0.0, 1)]
    assert figures.accuracy == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert (figures.overall.accuracy, figures.overall.num_ties) == (0.5, 1)


@pytest.mark.parametrize("name", ["model", "causal_model"])
def test_the_likelier_sentence_is_chosen_and_a_tie_counts_as_wrong(name, request, tiny_tokenizer, tmp_path) -> None:
    asked: LanguageModel = request.getfixturevalue(name)
    with torch.no_grad():
        asked.head.output.bias[5] += 3.0
    (folder := tmp_path / "model").mkdir()
    models.save(asked, tiny_tokenizer, folder)
    known = [record(f"w8 w5 w{other}", f"w8 w{other} w{other}", "known") for other in range(6, 16)]
    missed = [record(f"w8 w{other}", "w8 w5", "missed", "islands") for other in range(20, 30)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(lines(*known, *missed, record("w8 w9", "w8 w9", "same", "islands")))
    how = ContestAsking(estimator="folds", seed=1, num_folds=3, max_length=32, batch_tokens=256)
    questions = ContestQuestions(None, source_of(None), pairs, how, is_length_given=True, num_samples=100)
    (judged,) = judge_models([str(folder)], questions, None).models
    assert judged.text is None
    by_name = {found.name: found for found in judged.blimp.paradigms}
    assert {name: found.accuracy for name, found in by_name.items()} == {"known": 1.0, "missed": 0.0, "same": 0.0}
    assert by_name["same"].num_ties == 1
