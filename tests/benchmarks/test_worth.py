"""Claim: the benchmark `worth` reads biomedical text as sentences, and compares encoders by what it says."""

import gzip
from pathlib import Path

import pytest

import worth
from comparison import labelled
from tests.conftest import VOCAB_SIZE
from tests.make.models import small_bert, with_random_weights

_ARTICLE = """<article xmlns:xlink="http://www.w3.org/1999/xlink"><front><article-meta><title-group>
<article-title>A title</article-title></title-group><abstract><p>In short.</p></abstract></article-meta></front>
<body><sec><title>Results</title>{paragraphs}</sec></body></article>"""
_CITED = """<p>Mice slept <italic>well</italic> [<xref ref-type="bibr">1</xref>,<xref ref-type="bibr">2</xref>], and
long <xref ref-type="bibr">3</xref>, <xref ref-type="bibr">4</xref>.<table-wrap><td>7.5</td></table-wrap>
So did we.</p>"""


def test_biomedical_text_is_clean_replayed_in_part_and_searched_by_article(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("plos", "wikinews-en", "ncbi-disease"):
        (tmp_path / name).mkdir()
    for number in range(12):
        several = "".join(f"<p>{number} paragraph {place}. {'A word. ' * 30}</p>" for place in range(6))
        text = _ARTICLE.format(paragraphs=several if number else _CITED)
        (tmp_path / "plos" / f"{number:02}.xml.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "ncbi-disease" / "train.txt").write_text("Gout\tNN\tO\tB-Disease\nhurts\tVB\tO\tO\n", encoding="utf-8")
    labelled.write_lines(tmp_path / "news", [{"text": f"news {number} {'word ' * 98}"} for number in range(200)])
    (tmp_path / "wikinews-en" / "wiki_00.gz").write_bytes(gzip.compress((tmp_path / "news").read_bytes()))
    monkeypatch.setattr(labelled, "KEPT", tmp_path / "kept")
    monkeypatch.setenv(labelled.DATA_VARIABLE, str(tmp_path))
    assert worth.articles()["00.xml.gz"] == ["In short.", "Mice slept well, and long. So did we."]
    domain, with_replay = (worth.texts(with_replay=it) for it in (False, True))
    assert domain[-1] == "Gout hurts"
    assert with_replay[: len(domain)] == domain
    num_general, num_words = (sum(len(text.split()) for text in it) for it in (with_replay[len(domain) :], with_replay))
    assert num_general / num_words == pytest.approx(worth.REPLAY, abs=0.02)
    parts = worth.search_parts({"test": 10, "validation": 10, "train": 99}, 0)
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


@pytest.mark.slow
def test_a_static_encoder_gives_a_token_one_vector(
    monkeypatch: pytest.MonkeyPatch, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModel

    config = small_bert()
    config.vocab_size = VOCAB_SIZE
    with_random_weights("BertModel", config).save_pretrained(tiny_tokenizer)
    monkeypatch.setattr(worth, "weights", lambda: tiny_tokenizer)
    made = worth.static(worth.Budget(1, 0, 1, pairs=tmp_path, folder=tmp_path / "made"))
    model = AutoModel.from_pretrained(made.folder).eval()
    with torch.inference_mode():
        one, other = (model(torch.tensor([ids])).last_hidden_state[0] for ids in ([2, 7, 9, 3], [9, 7]))
    torch.testing.assert_close(one[1:3], other.flip(0))
    assert not torch.allclose(one[1], one[2], atol=1e-2)
