"""The figures in the README and the docs are those of the lines that `make bench` and `make run` wrote."""

import json
from functools import cache
from statistics import fmean, median
from typing import Any

from tests.conftest import PROJECT


@cache
def page(name: str) -> str:
    return " ".join((PROJECT / name).read_text(encoding="utf-8").split())


def measured(name: str) -> Any:
    return json.loads((PROJECT / f"docs/measured/{name}.json").read_text(encoding="utf-8"))


def test_the_default_run_is_told_as_it_was_measured() -> None:
    run = measured("default_run")
    library, docsearch = (run[task]["headline"] for task in ("library", "docsearch"))
    leads = [f"{100 * one['lead_low']:.1f} to {100 * one['lead_high']:.1f} points" for one in (library, docsearch)]
    readme = page("README.md")
    rows = [
        f"accuracy {library['value']:.1%} | TF-IDF {library['baseline_value']:.1%} | {leads[0]}",
        f"recall@10 {docsearch['value']:.1%} with BM25, {docsearch['beside'][0]['value']:.1%} alone | "
        f"BM25 {docsearch['baseline_value']:.1%} | {leads[1]}",
        f"perplexity {run['encoder']['perplexity']:.1f} | unigram {run['encoder']['unigram_perplexity']:.1f}",
    ]
    assert [row for row in rows if row.replace("%", " %") not in readme] == []
    assert f"perplexity {run['encoder']['perplexity']:.1f} (95 %" in page("docs/planning.md")


def test_few_labels_are_told_as_they_were_measured() -> None:
    line = measured("finetune_few_labels")
    assert f"is {line['ours']:.3f}; that of logistic regression on its vectors is {line['theirs']:.3f}." in page(
        "README.md"
    )
    assert f"| {line['ours']:.3f} | {line['theirs']:.3f} | {line['ratio']:.2f} |" in page("docs/benchmarks.md")
    for name, one in line["sets"].items():
        ours, probe, tfidf = (f"{fmean(one[side]):.3f}" for side in ("ours", "probe", "tfidf"))
        seconds = f"{fmean(one['cpu_seconds']):.0f} s"
        (row,) = (row for row in rows_of("docs/tasks.md") if row[0] == name and len(row) == 6)
        assert [row[1].strip("*").split()[0], *row[2:4]] == [ours, probe, tfidf]
        assert row[4].removeprefix("+").split(",")[0] == f"{one['difference']:.3f}".replace("0.000", "0")
        assert row[5] == seconds


def test_the_worth_of_adapting_is_told_as_it_was_measured() -> None:
    line = measured("worth")
    recipes = line["recipes"]
    kinds = ("tagging", "classification", "search")

    def mean_of(recipe: str) -> str:
        return f"{fmean(fmean(recipes[recipe][kind]['test']) for kind in kinds):.3f}"

    words = f"{fmean(fmean(recipes['published']['words'][kind]) for kind in kinds):.3f}"
    told = {row[0].split(":")[0].split(" by ")[0]: row[-1] for row in rows_of("README.md") if len(row) == 3}
    assert told["neither"] == f"{mean_of('published')} (words alone {words})"
    assert told["adapt it"] == mean_of("pairs")
    assert told["train from nothing"] == mean_of("own")


def test_spread_text_is_told_as_it_was_measured() -> None:
    line = measured("scale_out")
    assert line["bytes_equal"]
    assert line["bytes_equal_before"]
    told = page("docs/benchmarks.md")
    assert f"ratio {line['ratio']:.2f} on two cores and {line['ratio_one_core']:.2f} on one" in told
    for name in ("2 processes", "2 raylets", "1 process"):
        seconds = [f"{median(line['seconds'][f'{name}, {stage}']):.1f} s" for stage in ("preprocess", "tokenize")]
        assert f"| {name} | {seconds[0]} | {seconds[1]} |" in told


def rows_of(name: str) -> list[list[str]]:
    """Return the cells of each row of the page's tables."""
    lines = (PROJECT / name).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
