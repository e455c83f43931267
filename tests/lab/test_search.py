"""Claim: an exported model without a head finds functions by their docstrings, with an index that is built once.
Retrieval in BEIR's layout is measured as pytrec_eval does, for the encoder, BM25 and both.
"""

import json
from math import log2
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.inference.language import Embedder
from clozeline.inference.package import load
from clozeline.lab.search import JudgedQueries, SearchIndex, figures_of
from clozeline.system.errors import ArtifactError, ClozelineError, DataError, ParamsError
from tests.make.packages import write_embedder

DOCS = {
    "train": (
        "torch",
        "torch.pad",
        "Returns a tensor of the same shape.\n\nRows are padded at the end by torch.pad(x).",
    ),
    "validation": ("python", "python.hash", "Raises an error if the file is empty.\n\nIts hash is the one given."),
    "holdout": ("python", "python.cut", "Cuts text into pieces that the model has seen."),
}


def write_docs(project: Path, split: str, *row: str) -> None:
    table = pa.Table.from_pylist([dict(zip(("source", "title", "text"), row, strict=True))])
    pq.write_table(table, project / f"data/clean/{split}.parquet")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data/clean").mkdir(parents=True)
    for split, row in DOCS.items():
        write_docs(tmp_path, split, *row)
    write_embedder(tmp_path / "dist/docsearch")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opened(project: Path) -> tuple[Embedder, SearchIndex]:
    model = load(project / "dist/docsearch")
    assert isinstance(model, Embedder)
    package, clean = project / "dist/docsearch", project / "data/clean"
    return model, SearchIndex.open(model, package, clean, project / "work/search/docsearch")


def search(*arguments: object) -> str:
    return CliRunner().invoke(app, ["search", *map(str, arguments)], catch_exceptions=False).stdout


def test_word_search_finds_matching_entries_and_combined_search_finds_the_union(project: Path) -> None:
    """Only torch.pad contains `rows`; the query's vector is turned so that torch.pad comes last by meaning."""
    model, index = opened(project)
    (pad_H,) = model.embed(["Returns a tensor of the same shape. Rows are padded at the end by this(x)."])
    query = ("rows", -0.01 * pad_H)
    names = {by: [one.name for one in index.nearest(*query, 9, by=by)] for by in ("meaning", "words", "both")}
    assert names["meaning"][-1] == "torch.pad"
    assert names["words"] == ["torch.pad"]
    found = index.nearest("", pad_H, 9, by="meaning")[0]
    assert (found.name, found.library, found.summary) == ("torch.pad", "torch", "Returns a tensor of the same shape.")
    assert found.score == pytest.approx(1.0, abs=0.01)
    assert (names["both"][0], len(names["both"])) == ("torch.pad", 3)
    assert index.nearest("unheard", pad_H, 9, by="words") == []
    assert index.nearest(*query, 9)[0].score == pytest.approx(1 - 0.02, abs=0.001), "its best word score is scaled to 1"
    of_one_library = index.nearest("rows rows rows hash", -0.01 * pad_H, 9, "python")
    assert of_one_library[0].score == pytest.approx(1, abs=0.03)
    assert {one.name for one in of_one_library} == {"python.hash", "python.cut"}


def test_the_index_is_rebuilt_only_for_another_text_or_model(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = opened(project)
    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "embed", None)
        again = opened(project)[1]
    assert np.array_equal(again.vector_EH, made.vector_EH)
    assert np.array_equal(again.words.scores("the hash"), made.words.scores("the hash"))
    write_docs(project, "holdout", "a", "a.b", "Something else.")
    assert opened(project)[1].libraries == ["a", "python", "torch"]
    assert len(list((project / "work/search/docsearch").iterdir())) == 1, "it replaces the earlier one"


def write(folder: Path, *judgements: tuple[str, str, int]) -> Path:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, texts in {"corpus": DOCUMENTS, "queries": QUERIES}.items():
        lines = [
            json.dumps({"_id": key, "title": "On" if name == "corpus" else "", "text": it}) for key, it in texts.items()
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    rows = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judgements)]
    (folder / "qrels/test.tsv").write_text("\n".join(rows) + "\n")
    return folder


DOCUMENTS = {"d1": "the tensor", "d2": "the file", "d3": "a tensor of rows", "q3": "a text"}
QUERIES = {"q1": "tensor", "q2": "hash of a file", "q3": "a text", "q4": "nobody judged it"}
JUDGEMENTS = [("q1", "d1", 1), ("q1", "d3", 2), ("q2", "d2", 1), ("q2", "d1", 0), ("q3", "d1", 1), ("q1", "gone", 1)]


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        (["x", "--library", "jax"], ParamsError, "python, torch"),
        (["x", "--model", "dist/nothing"], ArtifactError, "dvc repro export@docsearch"),
        (["--beir", "unjudged"], DataError, "no score above 0"),
        (["--beir", "torn"], DataError, "line 3"),
        ([], ParamsError, "nothing to search for"),
    ],
)
def test_faults_are_told_with_what_to_do(project, arguments, kind: type[ClozelineError], told: str) -> None:
    write(project / "unjudged", JUDGEMENTS[-1])
    with (write(project / "torn", JUDGEMENTS[0]) / "qrels/test.tsv").open("a") as file:
        file.write("q1 d1 1\n")
    with pytest.raises(kind, match=f"(?s){told}"):
        search(*arguments)


def test_equal_scores_are_in_falling_order_of_ids_and_a_query_does_not_find_itself(tmp_path: Path) -> None:
    judged = JudgedQueries.open(write(tmp_path, *JUDGEMENTS))
    assert judged.query_ids == ["q1", "q2", "q3"], "those with relevant documents"
    assert judged.gains == [{0: 1, 2: 2}, {1: 1}, {0: 1}]
    score_D = np.array([1, 1, 2, 1], dtype=np.float32)
    assert judged.first(score_D, 0) == [2, 3, 1, 0]
    assert judged.first(score_D, 2) == [2, 1, 0]
    many = JudgedQueries([f"{place:02}" for place in range(30)], [""] * 30, ["q"], [""], [{0: 1}])
    assert many.first(np.ones(30, dtype=np.float32), 0) == [*range(29, 19, -1)]
    assert many.first(np.full(30, -np.inf, dtype=np.float32), 0) == []


def test_gains_are_discounted_by_the_logarithm_of_their_rank() -> None:
    ndcg, recall = figures_of([5, 0, 2], {0: 1, 2: 2, 9: 1})
    ideal = 2 + 1 / log2(3) + 1 / log2(4)
    assert ndcg == pytest.approx((1 / log2(3) + 2 / log2(4)) / ideal)
    assert recall == pytest.approx(2 / 3)
    assert figures_of([], {0: 1}) == (0, 0)


def test_the_command_measures_every_method(tmp_path: Path) -> None:
    write_embedder(tmp_path / "package")
    command = ["--beir", write(tmp_path, *JUDGEMENTS), "-m", tmp_path / "package"]
    found = json.loads(search(*command, "--json"))
    assert (found["num_queries"], found["num_documents"]) == (3, 4)
    encoder, words, both = found["methods"]
    # BM25: q1 finds d1 before the longer d3, q2 finds d3 (two words) before d2, q3 finds d3 alone.
    of_each = [(1 + 2 / log2(3)) / (2 + 1 / log2(3)), 1 / log2(3), 0]
    assert (words["method"], words["ndcg_at_10"]["value"]) == ("BM25", pytest.approx(sum(of_each) / 3))
    assert encoder["recall_at_10"]["value"] == 1, "four documents are fewer than ten"
    found = both["recall_at_10"]
    assert found["lead"]["low"] <= found["value"] - words["recall_at_10"]["value"] <= found["lead"]["high"]
    assert "BM25" in search(*command)
