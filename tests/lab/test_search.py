"""Claim: an exported model without a head finds functions by their docstrings, with an index that is built once.
Retrieval in BEIR's layout is measured as pytrec_eval does, for the encoder, BM25 and both.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
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
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from tests.make.packages import write_embedder

DOCS = {
    "torch.pad": ("torch", "Returns a tensor of the same shape.\n\nRows are padded at the end by torch.pad(x)."),
    "python.hash": ("python", "Raises an error if the file is empty.\n\nIts hash is the one given."),
    "python.cut": ("python", "Cuts text into pieces that the model has seen."),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data/clean").mkdir(parents=True)
    rows = [{"title": title, "source": source, "text": text} for title, (source, text) in DOCS.items()]
    for name, part in (("train", rows[:1]), ("validation", rows[1:2]), ("holdout", rows[2:])):
        pq.write_table(pa.Table.from_pylist(part), tmp_path / f"data/clean/{name}.parquet")
    write_embedder(tmp_path / "dist/docsearch")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opened(project: Path) -> tuple[Embedder, SearchIndex]:
    model = load(project / "dist/docsearch")
    assert isinstance(model, Embedder)
    package, clean = project / "dist/docsearch", project / "data/clean"
    return model, SearchIndex.open(model, package, clean, project / "work/search/docsearch")


def test_a_function_is_found_by_its_own_docstring(project: Path) -> None:
    model, index = opened(project)
    text = "Raises an error if the file is empty. Its hash is the one given."
    query = (text, model.embed([text])[0])
    found = index.nearest(*query, top_k=2, by="meaning")
    assert [found[0].name, found[0].library] == ["python.hash", "python"]
    assert found[0].summary == "Raises an error if the file is empty."
    assert found[0].score == pytest.approx(1.0, abs=0.01)
    assert found[0].score > found[1].score
    assert {one.name for one in index.nearest(*query, 9, "python")} == {"python.hash", "python.cut"}


def test_word_search_finds_matching_entries_and_combined_search_finds_the_union(project: Path) -> None:
    """Only torch.pad contains `rows`; the query's vector is turned so that torch.pad comes last by meaning."""
    model, index = opened(project)
    (pad_H,) = model.embed(["Returns a tensor of the same shape. Rows are padded at the end by this(x)."])
    query = ("rows", -0.01 * pad_H)
    names = {by: [one.name for one in index.nearest(*query, 9, by=by)] for by in ("meaning", "words", "both")}
    assert names["meaning"][-1] == "torch.pad"
    assert names["words"] == ["torch.pad"]
    assert (names["both"][0], set(names["both"])) == ("torch.pad", set(DOCS))
    assert index.nearest("unheard", pad_H, 9, by="words") == []
    first = index.nearest(*query, 9)[0]
    assert first.score == pytest.approx(1 - 0.02, abs=0.001), "its best word score is scaled to 1"
    of_one_library = index.nearest("rows rows rows hash", -0.01 * pad_H, 9, "python")
    assert of_one_library[0].score == pytest.approx(1, abs=0.03)


def test_the_index_is_rebuilt_only_for_another_text_or_model(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = opened(project)
    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "embed", None)
        again = opened(project)[1]
        assert np.array_equal(again.vector_EH, made.vector_EH)
        assert np.array_equal(again.words.scores("the hash"), made.words.scores("the hash"))
    rows = [{"title": "a.b", "source": "a", "text": "Something else."}]
    pq.write_table(pa.Table.from_pylist(rows), project / "data/clean/holdout.parquet")
    assert opened(project)[1].libraries == ["a", "python", "torch"]


def test_a_new_index_replaces_the_earlier_one_of_the_same_model(project: Path) -> None:
    def search(model: str) -> set[Path]:
        CliRunner().invoke(app, ["search", "hash", "--model", model], catch_exceptions=False)
        return {folder.relative_to(kept) for folder in kept.glob("*/*")}

    kept = project / "work/search"
    shutil.copytree(project / "dist/docsearch", project / "dist/another")
    search("dist/docsearch")
    before = search("dist/another")
    assert {folder.parent.name for folder in before} == {"docsearch", "another"}
    rows = [{"title": "a.b", "source": "a", "text": "Something else."}]
    pq.write_table(pa.Table.from_pylist(rows), project / "data/clean/holdout.parquet")
    after = search("dist/docsearch")
    assert {folder.parent.name for folder in before & after} == {"another"}
    assert sorted(folder.parent.name for folder in after) == ["another", "docsearch"]


def test_the_command_writes_json_or_columns_for_programs(project: Path) -> None:
    run = CliRunner().invoke
    result = run(app, ["search", "padded rows", "hash", "--top-k", "2", "--json"])
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["query"] for record in records] == ["padded rows", "hash"]
    assert all(set(found) == {"library", "name", "summary", "score"} for found in records[0]["found"])
    assert run(app, ["search", "padded", "--by", "words"]).stdout.split("\t")[4] == "torch.pad"
    (line,) = run(app, ["search", "hash", "--top-k", "1", "--library", "torch"]).stdout.splitlines()
    assert line.split("\t")[3:] == ["torch", "torch.pad", "Returns a tensor of the same shape."]


def test_missing_inputs_are_reported_with_the_command_that_makes_them(project: Path) -> None:
    run = CliRunner().invoke
    assert isinstance(unknown := run(app, ["search", "x", "--library", "jax"]).exception, ParamsError)
    assert "python, torch" in str(unknown)
    (project / "data/clean/train.parquet").unlink()
    assert "preprocess`" in str(run(app, ["search", "x"]).exception)
    shutil.rmtree(project / "dist")
    result = run(app, ["search", "x"])
    assert isinstance(result.exception, ArtifactError)
    assert "dvc repro export@docsearch" in str(result.exception)


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
