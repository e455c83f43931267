"""Claim: the benchmark `worth` reads biomedical text as sentences, and compares encoders by what it says."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import worth
from comparison import biomedical, labelled, texts
from tests.conftest import VOCAB_SIZE
from tests.make.models import small_bert, with_random_weights

_ARTICLE = """<article xmlns:xlink="http://www.w3.org/1999/xlink"><front><article-meta><title-group>
<article-title>A title</article-title></title-group><abstract><p>In short.</p></abstract></article-meta></front>
<body><sec><title>Results</title>{paragraphs}</sec></body></article>"""
_CITED = """<p>Mice slept <italic>well</italic> [<xref ref-type="bibr">1</xref>,<xref ref-type="bibr">2</xref>], and
long <xref ref-type="bibr">3</xref>, <xref ref-type="bibr">4</xref>.<table-wrap><td>7.5</td></table-wrap>
So did we.</p>"""


def words(start: int, num_words: int) -> str:
    """Words of the tiny language, one after the other."""
    return " ".join(f"w{5 + (start + place) % 59}" for place in range(num_words))


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder with labelled and biomedical text, of the shapes of the published sets."""
    folder = tmp_path / "data"
    for name in ("plos", "wikinews-en", "ncbi-disease", "sci-cite"):
        (folder / name).mkdir(parents=True)
    for number in range(12):
        starts = range(number * 5, number * 5 + 42, 7)
        several = "".join(f"<p>{words(start, 8)}. A{words(start + 2, 60)}.</p>" for start in starts)
        text = _ARTICLE.format(paragraphs=several if number else _CITED)
        (folder / "plos" / f"{number:02}.xml.gz").write_bytes(gzip.compress(text.encode()))
    for name, first in (("train.txt", 0), ("dev.txt", 1)):
        tagged = [
            "".join(f"w{5 + word}\tNN\tO\t{'B-Disease' if word % 9 == 0 else 'O'}\n" for word in range(at, at + 8))
            for at in range(first, 40, 2)
        ]
        (folder / "ncbi-disease" / name).write_text("\n".join(tagged), encoding="utf-8")
    cited = [{"text": words(number, 9), "label": "method" if number % 2 else "result"} for number in range(50)]
    labelled.write_lines(folder / "sci-cite" / "train.txt", cited)
    labelled.write_lines(tmp_path / "news", [{"text": f"news {number} {words(0, 98)}"} for number in range(200)])
    (folder / "wikinews-en" / "wiki_00.gz").write_bytes(gzip.compress((tmp_path / "news").read_bytes()))
    for module in (labelled, worth):
        monkeypatch.setattr(module, "KEPT", tmp_path / "kept")
    monkeypatch.setenv(labelled.DATA_VARIABLE, str(folder))


def test_biomedical_text_is_clean_replayed_in_part_and_searched_by_article() -> None:
    first = biomedical.articles()[0]
    assert first.paragraphs == ["In short.", "Mice slept well, and long. So did we."]
    domain, with_replay = (biomedical.texts(with_replay=it) for it in (False, True))
    assert with_replay[: len(domain)] == domain
    num_general, num_words = (sum(len(text.split()) for text in it) for it in (with_replay[len(domain) :], with_replay))
    assert num_general / num_words == pytest.approx(biomedical.REPLAY, abs=0.02)
    parts = biomedical.search_parts({"test": 10, "validation": 10, "train": 99}, 0)
    of_part = [{item["article"] for item in parts.read(part)} for part in ("test", "validation", "train")]
    assert [len(it) for it in of_part] == [2, 2, 7]
    assert len(set().union(*of_part)) == 11


def test_the_recipe_that_counts_is_chosen_by_validation() -> None:
    def figures(test: float, validation: float) -> worth.Figures:
        every = dict.fromkeys(worth.TASKS, test)
        return worth.Figures(every, dict.fromkeys(worth.TASKS[:3], validation), every, 1.0)

    found = {
        "published": [figures(0.5, 0.9), figures(0.6, 0.9)],
        "masked_replay": [figures(0.9, 0.1), figures(0.9, 0.1)],
        "pairs": [figures(0.6, 0.2), figures(0.8, 0.2)],
    }
    rounds, told = worth.result(found)
    assert told["adapted"] == "pairs"
    assert rounds.ratio(higher_is_better=True) == pytest.approx(0.7 / 0.55)
    assert told["recipes"]["pairs"]["search"] == {"test": [0.6, 0.8], "difference": 0.15, "standard_error": 0.05}
    assert worth.table(found).splitlines()[3].startswith("| published | 0.550 |")


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> Any:
    monkeypatch.setattr("sys.argv", ["worth", *arguments, "--threads", "1"])
    worth.main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_without_data_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(labelled.DATA_VARIABLE, str(tmp_path / "nothing"))
    line = run(monkeypatch, capsys, [])
    assert (line["ratio"], line["recipes"]) == (None, {})


def test_a_recipe_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, ["published", "magic"])
    assert "magic" in capsys.readouterr().err


@pytest.fixture
def tiny_bert(monkeypatch: pytest.MonkeyPatch, tiny_tokenizer: Path) -> Path:
    """A BERT of the tiny language beside its tokenizer: the published encoder."""
    config = small_bert()
    config.vocab_size = VOCAB_SIZE
    with_random_weights("BertModel", config).save_pretrained(tiny_tokenizer)
    monkeypatch.setattr(biomedical, "weights", lambda: tiny_tokenizer)
    return tiny_tokenizer


@pytest.mark.slow
def test_encoders_are_made_and_judged(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, tiny_tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = texts.Corpus("tiny", tiny_tokens, tiny_bert, tiny_tokens)
    monkeypatch.setattr(biomedical, "biomedical_corpus", lambda tokenize, with_replay: corpus)
    names = ["published", "detour", "pairs", "static"]
    numbers = ["--tokens", "4000", "--labelled", "12", "--test", "10", "--epochs", "1", "--seeds", "1"]
    line = run(monkeypatch, capsys, [*names, *numbers])
    assert [*line["recipes"]] == names
    assert line["adapted"] in ("detour", "pairs")
    assert [line["recipes"][name]["cpu_seconds"][0] > 0 for name in names] == [False, True, True, False]
    judged = [[line["recipes"][name][task]["test"][0] for task in worth.TASKS[:3]] for name in names]
    assert all(0 <= figure <= 1 for of_encoder in judged for figure in of_encoder)
    assert line["theirs_rounds"] == [pytest.approx(sum(judged[0]) / 3, abs=1e-3)]
    monkeypatch.setattr(worth, "judged", None)  # an earlier run measured them all
    assert run(monkeypatch, capsys, [*names, *numbers])["recipes"] == line["recipes"]


@pytest.mark.slow
def test_a_static_encoder_gives_a_token_one_vector(tiny_bert: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel

    made = biomedical.static(biomedical.Budget(1, 0, 1, pairs=tmp_path, folder=tmp_path))
    model = AutoModel.from_pretrained(made.folder).eval()
    with torch.inference_mode():
        one, other = (model(torch.tensor([ids])).last_hidden_state[0] for ids in ([2, 7, 9, 3], [9, 7]))
    torch.testing.assert_close(one[1:3], other.flip(0))
    assert not torch.allclose(one[1], one[2], atol=1e-2)
