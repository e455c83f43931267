"""Claim: retrieval in BEIR's layout is measured as pytrec_eval does, for the encoder, BM25 and both."""

import json
from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.lab.retrieval import JudgedQueries, figures_of
from clozeline.system.errors import DataError, ParamsError
from tests.make.packages import write_embedder

DOCUMENTS = {"d1": "the tensor", "d2": "the file", "d3": "a tensor of rows", "q3": "a text"}
QUERIES = {"q1": "tensor", "q2": "hash of a file", "q3": "a text", "q4": "nobody judged it"}
JUDGEMENTS = [("q1", "d1", 1), ("q1", "d3", 2), ("q2", "d2", 1), ("q2", "d1", 0), ("q3", "d1", 1), ("q1", "gone", 1)]


def write(folder: Path, judgements: Sequence[tuple[str, str, int]] = JUDGEMENTS) -> Path:
    def lines(rows: Mapping[str, str], **more: str) -> str:
        return "".join(json.dumps({"_id": name, **more, "text": text}) + "\n" for name, text in rows.items())

    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    (folder / "corpus.jsonl").write_text(lines(DOCUMENTS, title="On"))
    (folder / "queries.jsonl").write_text(lines(QUERIES))
    rows = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judgements)]
    (folder / "qrels/test.tsv").write_text("\n".join(rows) + "\n")
    return folder


def test_only_queries_with_relevant_documents_are_read(tmp_path: Path) -> None:
    judged = JudgedQueries.open(write(tmp_path))
    assert judged.query_ids == ["q1", "q2", "q3"]
    assert judged.gains == [{0: 1, 2: 2}, {1: 1}, {0: 1}]
    assert judged.documents[0] == "On the tensor"


def test_gains_are_discounted_by_the_logarithm_of_their_rank() -> None:
    ndcg, recall = figures_of([5, 0, 2], {0: 1, 2: 2, 9: 1})
    ideal = 2 + 1 / log2(3) + 1 / log2(4)
    assert ndcg == pytest.approx((1 / log2(3) + 2 / log2(4)) / ideal)
    assert recall == pytest.approx(2 / 3)
    assert figures_of([], {0: 1}) == (0, 0)


def test_equal_scores_are_in_falling_order_of_ids_and_a_query_does_not_find_itself(tmp_path: Path) -> None:
    judged = JudgedQueries.open(write(tmp_path))
    score_D = np.array([1, 1, 2, 1], dtype=np.float32)
    assert judged.first(score_D, 0) == [2, 3, 1, 0]
    assert judged.first(score_D, 2) == [2, 1, 0]
    many = JudgedQueries([f"{place:02}" for place in range(30)], [""] * 30, ["q"], [""], [{0: 1}])
    assert many.first(np.ones(30, dtype=np.float32), 0) == [*range(29, 19, -1)]
    assert many.first(np.full(30, -np.inf, dtype=np.float32), 0) == []


def test_the_command_measures_every_method(tmp_path: Path) -> None:
    write_embedder(tmp_path / "package")
    command = ["search", "--beir", str(write(tmp_path)), "-m", str(tmp_path / "package")]
    found = json.loads(CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False).stdout)
    methods = {method["method"]: method for method in found["methods"]}
    assert (found["num_queries"], found["num_documents"]) == (3, 4)
    # BM25: q1 finds d1 before the longer d3, q2 finds d3 (two words) before d2, q3 finds d3 alone.
    of_each = [(1 + 2 / log2(3)) / (2 + 1 / log2(3)), 1 / log2(3), 0]
    assert methods["BM25"]["ndcg_at_10"]["value"] == pytest.approx(sum(of_each) / 3)
    assert methods["encoder"]["recall_at_10"]["value"] == 1, "four documents are fewer than ten"
    lead = methods["both"]["recall_at_10"]
    assert lead["lead"]["low"] <= lead["value"] - methods["BM25"]["recall_at_10"]["value"] <= lead["lead"]["high"]
    assert "BM25" in CliRunner().invoke(app, command, catch_exceptions=False).stdout


def test_faults_are_told_before_a_model_is_opened(tmp_path: Path) -> None:
    for arguments, kind, words in (
        (["--beir", str(tmp_path)], DataError, "corpus.jsonl"),
        (["--beir", str(write(tmp_path / "none", JUDGEMENTS[-1:]))], DataError, "no query has a relevant document"),
        (["--beir", str(tmp_path), "a query"], ParamsError, "--beir"),
        ([], ParamsError, "nothing to search for"),
    ):
        with pytest.raises(kind, match=words):
            CliRunner().invoke(app, ["search", *arguments], catch_exceptions=False)
    with (write(tmp_path) / "qrels/test.tsv").open("a") as file:
        file.write("q1 d1 1\n")
    with pytest.raises(DataError, match="line 8"):
        JudgedQueries.open(tmp_path)
