"""Claim: the benchmark `worth` reads biomedical text as sentences, and compares encoders by what it says."""

import gzip
import json
from pathlib import Path

import pytest

import worth
from comparison import biomedical, labelled, texts

_ARTICLE = """<article xmlns:xlink="http://www.w3.org/1999/xlink"><front><article-meta><title-group>
<article-title>A title</article-title></title-group><abstract><p>In short.</p></abstract></article-meta></front>
<body><sec><title>Results</title>{paragraphs}</sec></body></article>"""
_CITED = """<p>Mice slept <italic>well</italic> [<xref ref-type="bibr">1</xref>,<xref ref-type="bibr">2</xref>], and
long <xref ref-type="bibr">3</xref>, <xref ref-type="bibr">4</xref>.<table-wrap><td>7.5</td></table-wrap>
So did we.</p>"""


def words(start: int, num_words: int) -> str:
    """Words of the tiny language, one after the other."""
    return " ".join(f"w{5 + (start + place) % 59}" for place in range(num_words))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with labelled and biomedical text, of the shapes of the published sets."""
    folder = tmp_path / "data"
    for name in ("plos", "wikinews-en", "ncbi-disease", "sci-cite"):
        (folder / name).mkdir(parents=True)
    for number in range(12):
        several = "".join(
            f"<p>{words(number * 5 + place * 7, 8)}. A{words(number * 5 + place * 7 + 2, 60)}.</p>"
            for place in range(6)
        )
        text = _ARTICLE.format(paragraphs=several if number else _CITED)
        (folder / "plos" / f"{number:02}.xml.gz").write_bytes(gzip.compress(text.encode()))
    tagged = [
        "".join(f"w{5 + word}\tNN\tO\t{'B-Disease' if word % 9 == 0 else 'O'}\n" for word in range(at, at + 8))
        for at in range(40)
    ]
    for name, sentences in (("train.txt", tagged[::2]), ("dev.txt", tagged[1::2])):
        (folder / "ncbi-disease" / name).write_text("\n".join(sentences), encoding="utf-8")
    cited = [{"text": words(number, 9), "label": "method" if number % 2 else "result"} for number in range(50)]
    (folder / "sci-cite" / "train.txt").write_text("".join(json.dumps(it) + "\n" for it in cited), encoding="utf-8")
    news = [{"text": f"news {number} " + words(0, 98)} for number in range(200)]
    lines = "".join(json.dumps(it) + "\n" for it in news)
    (folder / "wikinews-en" / "wiki_00.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


@pytest.fixture(autouse=True)
def made_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: Path) -> None:
    monkeypatch.setattr(labelled, "KEPT", tmp_path / "kept")
    monkeypatch.setenv(labelled.DATA_VARIABLE, str(data))


def test_paragraphs_lose_citations_and_tables_and_nothing_else() -> None:
    first = biomedical.articles()[0]
    assert first.paragraphs == ["In short.", "Mice slept well, and long. So did we."]


def test_a_fifth_of_the_words_with_replay_are_general() -> None:
    domain, with_replay = (biomedical.texts(with_replay=it) for it in (False, True))
    assert with_replay[: len(domain)] == domain
    num_general, num_words = (sum(len(text.split()) for text in it) for it in (with_replay[len(domain) :], with_replay))
    assert num_general / num_words == pytest.approx(biomedical.REPLAY, abs=0.02)


def test_the_paragraphs_of_an_article_are_in_one_part() -> None:
    parts = biomedical.search_parts({"test": 10, "validation": 10, "train": 99}, 0)
    of_part = [{item["article"] for item in parts.read(part)} for part in ("test", "validation", "train")]
    assert [len(it) for it in of_part] == [2, 2, 7]
    assert len(set().union(*of_part)) == 11


@pytest.fixture
def tiny_worth(monkeypatch: pytest.MonkeyPatch, tiny_bert: Path, tmp_path: Path) -> None:
    """The benchmark with a tiny published encoder."""
    monkeypatch.setattr(biomedical, "weights", lambda: tiny_bert)
    monkeypatch.setattr(worth, "KEPT", tmp_path / "kept")


@pytest.fixture
def tiny_bert(tiny_tokenizer: Path) -> Path:
    """A BERT of the tiny language, beside its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=64, pad_token_id=0, **sizes)).save_pretrained(tiny_tokenizer)
    return tiny_tokenizer


def test_the_recipe_that_counts_is_chosen_by_validation() -> None:

    def figures(test: float, validation: float) -> object:
        every = dict.fromkeys(worth.TASKS, test)
        return worth.Figures(every, dict.fromkeys(worth.TASKS[:3], validation), every, 1.0)

    found = {
        "published": [figures(0.5, 0.9), figures(0.6, 0.9)],
        "masked": [figures(0.9, 0.1), figures(0.9, 0.1)],
        "pairs": [figures(0.6, 0.2), figures(0.8, 0.2)],
    }
    line = worth.result(found, 1, {})
    assert line["adapted"] == "pairs"
    assert line["ratio"] == pytest.approx(0.7 / 0.55, abs=1e-3)
    assert line["recipes"]["pairs"]["search"] == {"test": [0.6, 0.8], "difference": 0.15, "standard_error": 0.05}
    assert worth.table(found).splitlines()[3].startswith("| published | 0.550 |")


def test_without_data_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(labelled.DATA_VARIABLE, str(tmp_path / "nothing"))
    monkeypatch.setattr("sys.argv", ["worth.py", "--threads", "1"])
    worth.main()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["ratio"] is None
    assert line["recipes"] == {}


def test_a_recipe_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["worth.py", "published", "magic"])
    with pytest.raises(SystemExit):
        worth.main()
    assert "magic" in capsys.readouterr().err


@pytest.mark.slow
def test_encoders_are_made_and_judged(
    tiny_worth: None,
    monkeypatch: pytest.MonkeyPatch,
    tiny_tokens: Path,
    tiny_bert: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    corpus = texts.Corpus("tiny", tiny_tokens, tiny_bert, tiny_tokens)
    monkeypatch.setattr(biomedical, "biomedical_corpus", lambda tokenize, with_replay: corpus)
    names = ["published", "detour", "averaged", "masked_pairs", "static"]
    given = ["--tokens", "4000", "--labelled", "12", "--test", "10", "--epochs", "1", "--seeds", "1", "--threads", "1"]
    monkeypatch.setattr("sys.argv", ["worth.py", *names, *given])
    worth.main()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [*line["recipes"]] == names
    assert line["adapted"] in names[1:4]
    assert [line["recipes"][name]["cpu_seconds"][0] > 0 for name in names] == [False, True, True, True, False]
    search = [line["recipes"][name]["search"]["test"][0] for name in names]
    assert all(0 <= figure <= 1 for figure in search)
    assert line["theirs_rounds"] == [
        pytest.approx(
            sum(line["recipes"]["published"][task]["test"][0] for task in ("tagging", "classification", "search")) / 3,
            abs=1e-3,
        )
    ]
    monkeypatch.setattr(worth, "judged", None)  # an earlier run measured them all
    worth.main()
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["recipes"] == line["recipes"]


@pytest.mark.slow
def test_a_static_encoder_gives_a_token_one_vector(tiny_worth: None, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel

    made = biomedical.static(biomedical.Budget(1, 0, 1, pairs=tmp_path, folder=tmp_path))
    model = AutoModel.from_pretrained(made.folder).eval()
    with torch.inference_mode():
        one, other = (model(torch.tensor([ids])).last_hidden_state[0] for ids in ([2, 7, 9, 3], [9, 7]))
    torch.testing.assert_close(one[1], other[1])
    torch.testing.assert_close(one[2], other[0])
    assert not torch.allclose(one[1], one[2], atol=1e-2)


@pytest.mark.slow
def test_averaged_weights_are_halfway(
    tiny_worth: None, monkeypatch: pytest.MonkeyPatch, tiny_bert: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModel

    trained = AutoModel.from_pretrained(tiny_bert)
    before = {name: weight.clone() for name, weight in trained.named_parameters() if "pooler" not in name}
    with torch.no_grad():
        for weight in trained.parameters():
            weight.add_(1.0)
    trained.save_pretrained(tmp_path / "trained")
    monkeypatch.setattr(biomedical, "masked_replay", lambda budget: biomedical.Made(tmp_path / "trained", 7.0))
    made = biomedical.averaged(biomedical.Budget(1, 0, 1, pairs=tmp_path, folder=tmp_path))
    after = dict(AutoModel.from_pretrained(made.folder).named_parameters())
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight + 0.5)
    assert made.cpu_seconds == 7.0
