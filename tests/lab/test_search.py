"""Claim: an exported model without a head finds functions by their docstrings, with an index that is built once."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.inference.language import Embedder
from clozeline.inference.package import load
from clozeline.lab.search import SearchIndex
from clozeline.system.errors import ArtifactError, ParamsError
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
