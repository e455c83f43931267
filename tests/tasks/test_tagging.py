"""Claim: the same entities are read from every tagging scheme, and their scores equal seqeval's, also on tags that
break the rules; every word gets one tag."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB1, IOB2, IOBES, Entities
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForTokenClassification

from clozeline.params.tasks import TaggingParams
from clozeline.records.finetune.scored_items import read_held_out
from clozeline.records.reading.tokens import SpecialIds
from clozeline.system.errors import DataError
from clozeline.tasks import probe
from clozeline.tasks.selection import LabelledRecord, Part
from clozeline.tasks.tagging.data import Sentence, Sentences, is_tag, select, to_iob2, type_of
from clozeline.tasks.tagging.sentences import NO_TARGET, TaggedRows, Tagging, entities_in, score, usual_tags
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer
from tests.make.tasks import CASES, fine_tune, metrics_of, params_of, prepare, record, write_rows


@pytest.mark.parametrize("scheme", [IOB1, IOB2, IOBES])
def test_tags_of_every_scheme_give_the_entities_of_seqeval(scheme: type) -> None:
    draw = random.Random(1)
    for _ in range(200):
        tags = as_scheme([(draw.choice("OAB"), draw.randint(1, 3)) for _ in range(draw.randint(1, 6))], scheme.__name__)
        strict = {(e.tag, e.start, e.end - 1) for e in Entities([tags], scheme).entities[0]}
        assert set(get_entities(to_iob2(tags))) == strict
        bilou = [tag.replace("E-", "L-").replace("S-", "U-") for tag in tags]
        assert to_iob2(bilou) == to_iob2(tags)


def as_scheme(spans: list[tuple[str, int]], scheme: str) -> list[str]:
    """Return the tags of spans of (type, number of words); O is one of the types."""
    tags: list[str] = []
    before = "O"
    for name, length in spans:
        if name == "O":
            tags += ["O"] * length
        elif scheme == "IOBES":
            tags += [f"S-{name}"] if length == 1 else [f"B-{name}", *[f"I-{name}"] * (length - 2), f"E-{name}"]
        else:
            first = "B" if scheme == "IOB2" or before == name else "I"
            tags += [f"{first}-{name}", *[f"I-{name}"] * (length - 1)]
        before = name
    return tags


Given = tuple[Part, str, str]
PARTS = params_of("tagging", splits={"train": "a", "validation": "b", "test": "c"})
FEW: tuple[Given, ...] = (
    ("train", "in Paris", "O B-LOC"),
    ("validation", "to Rome", "O B-LOC"),
    ("test", "by Ada", "O B-PER"),
)


def chosen(*given: Given, params: TaggingParams = PARTS) -> Sentences:
    records = [
        (part, LabelledRecord({"tokens": words.split(), "ner_tags": tags.split()}, f"line {number}"))
        for number, (part, words, tags) in enumerate(given)
    ]
    return select(records, params)


def test_each_entity_type_of_training_has_two_tags_and_test_sentences_are_removed_from_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = chosen(*FEW, *(("train", words, "O O") for words in ("TO rome", "BY ada", "By Ada")))
    assert (found.tags, found.types_not_trained) == (("O", "B-LOC", "I-LOC"), {"PER": 1})
    assert "count as missed: PER (1)" in caplog.text
    assert (found.count["in_several_parts"], found.count.first_places) == (3, {"in_several_parts": "line 3"})
    assert [sentence.words for sentence in found.train] == [("in", "Paris")]
    assert len(chosen(*FEW, FEW[0]).train) == 2, "copies within a split stay"


def test_the_counts_add_up_and_the_order_of_records_changes_nothing() -> None:
    given: tuple[Given, ...] = (*FEW, ("train", "", ""), ("train", "a b", "O B-LOC"), ("train", "a b", "O O"))
    found = chosen(*given)
    count = dict(found.count.by_reason)
    assert count.pop("num_read") == sum(count.values()) == 6
    assert found.count["num_used"] == sum(map(len, found.parts.values())) == 5
    assert found.parts == chosen(*given[::-1]).parts
    many: list[Given] = [("train", f"word {number}", "B-X O") for number in range(500)]
    found = chosen(*many, params=params_of("tagging"))
    assert len(found.test) == pytest.approx(150, abs=40), "without given splits the words determine them"
    assert not {it.words for it in found.train} & {it.words for it in found.test}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([*FEW, ("train", "a b", "O")], "2 tags, one for each word, not 1"),
        ([*FEW, ("train", "a", "NNP")], "not NNP"),
        (FEW[:2], "too few tagged sentences"),
        ([("train", "in Paris", "O O"), *FEW[1:]], "too few tagged sentences"),
    ],
)
def test_sentences_that_do_not_fit_their_tags_or_teach_nothing_are_refused(given: list[Given], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        chosen(*given)
    tags = ("O", "B-creative-work", "", "PER", "X-PER", "B-", "o", "IN")
    assert [text for text in tags if is_tag(text)] == ["O", "B-creative-work"]
    assert [type_of(tag) for tag in ("I-creative-work", "O")] == ["creative-work", "O"]


ADVERSARIAL = ["O O/O O", "B-A I-A/O O", "O O/B-A I-A", "B-A I-A I-A/I-A I-B I-A", "B-A B-A I-A/B-A I-A I-A"]
NAMES = ["O", "O", "B-A", "I-A", "B-B", "I-B"]
Tags = list[list[str]]


def drawn_tags() -> list[tuple[Tags, Tags]]:
    draw = random.Random(5)
    lengths = [[draw.randint(1, 8) for _ in range(20)] for _ in range(50)]
    one, other = ([[draw.choices(NAMES, k=length) for length in of] for of in lengths] for _ in range(2))
    return list(zip(one, other, strict=True))


def test_figures_as_a_whole_and_of_each_type_equal_those_of_seqeval() -> None:
    adversarial = [([one.split()], [other.split()]) for one, _, other in (it.partition("/") for it in ADVERSARIAL)]
    for actual, predicted in (*adversarial, ([["B-A"], ["I-A"]], [["B-A"], ["I-A"]]), *drawn_tags()):
        ours = score(actual, predicted)
        theirs = [f(actual, predicted, zero_division=0) for f in (precision_score, recall_score, f1_score)]
        assert [ours.precision, ours.recall, ours.f1] == pytest.approx(theirs)
    for actual, predicted in drawn_tags():
        report = classification_report(actual, predicted, output_dict=True, zero_division=0)
        for name, figures in score(actual, predicted).per_type.items():
            theirs = [report[name][key] for key in ("precision", "recall", "f1-score", "support")]
            assert [*figures.values()] == pytest.approx(theirs)
    found = entities_in(["New", "York", "met", "Ada", "Bob"], ["B-LOC", "I-LOC", "O", "B-PER", "B-PER"])
    assert found == [("New York", "LOC"), ("Ada", "PER"), ("Bob", "PER")]


def sentence(words: str, tags: str) -> Sentence:
    return Sentence(tuple(words.split(" ")), tuple(tags.split()), words, "train")


def test_a_word_gets_the_tag_it_has_most_often_and_of_equally_many_the_first_by_name() -> None:
    train = [sentence("Paris is Paris", "B-LOC O B-LOC"), sentence("Paris sang x x", "B-PER O O B-A")]
    assert usual_tags(train, [sentence("Paris is x", "O O O")]) == [["B-LOC", "O", "B-A"]]


THINGS = ["tensor", "model", "file", "error", "shape", "text", "hash"]


def conll(num_sentences: int, seed: int) -> str:
    """Return sentences in which the words after `the` are an entity; elsewhere the same words are not."""
    draw = random.Random(seed)
    lines = []
    for _ in range(num_sentences):
        for _ in range(draw.randint(1, 3)):
            lines += [f"{draw.choice(THINGS)}\tO" for _ in range(draw.randint(0, 2))]
            lines += ["the\tO", f"{draw.choice(THINGS)}\tB-thing"]
            lines += [f"small\tI-thing\n{draw.choice(THINGS)}\tI-thing"] * draw.randint(0, 1)
        lines.append("\t" if draw.random() < 0.3 else "")
    return "\n".join(lines)


def test_the_model_beats_the_most_frequent_tag_baseline_and_else_the_fitted_head_is_kept(
    small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.conll").write_text(conll(300, seed=1))
    (tmp_path / "test.conll").write_text(conll(60, seed=2))
    splits = {"splits": {"train": "train.conll", "test": "test.conll"}, "validation_fraction": 0.2}
    sizes = {"max_length": 32, "batch_size": 8, "epochs": 5, "optimizer": {"learning_rate": 0.01}}
    params = params_of("tagging", **splits, **sizes)
    out = fine_tune(params, tmp_path / "out", encoder=small_encoder, data=tmp_path)
    headline = metrics_of(out)["headline"]
    assert (headline["metric"], headline["trivial_value"]) == ("f1", 0)
    assert headline["value"] > 0.65 > headline["baseline_value"] + 0.4
    (beside,) = headline["beside"]
    assert beside == {"name": probe.NAME, "value": metrics_of(out)["baseline_probe_f1"]}
    assert headline["baseline_value"] < beside["value"] < headline["value"]
    model = AutoModelForTokenClassification.from_pretrained(out / "model")
    assert model.config.id2label == {0: "O", 1: "B-thing", 2: "I-thing"}
    shown = json.loads((out / "examples" / "examples.json").read_text())
    assert any("(thing)" in item["actual"] for item in shown)
    held_out = read_held_out(out / "model")
    assert 40 < len(held_out) < 100
    found = [item.text[entity.start : entity.end].split() for item in held_out for entity in item.entities]
    assert {words[-1] for words in found} == {*THINGS}
    assert {len(words) for words in found} == {1, 3}

    scores = iter([0.5, 0.4])
    monkeypatch.setattr(Tagging, "validation_score", lambda task: next(scores))
    once = params.model_copy(update={"epochs": 1, "rate_factors": (1.0,)})
    metrics = metrics_of(fine_tune(once, tmp_path / "kept", encoder=small_encoder, data=tmp_path))
    assert (metrics["best_epoch"], metrics["headline"]["method"]) == (0, probe.NAME)
    assert metrics["f1"] == metrics["baseline_probe_f1"] > metrics["baseline_usual_tag_f1"]


def test_entities_of_unseen_types_count_as_missed_and_rows_shorter_than_sentences_lose_no_word(
    small_encoder: Path, tmp_path: Path
) -> None:
    """The most frequent tag of each word finds every entity of the type that training has."""

    def salted(numbers: range, name: str) -> list[dict[str, object]]:
        records = [record(number, {}) for number in numbers]
        tags = [[f"B-{name}" if word == "salt" else "O" for word in str(it["text"]).split()] for it in records]
        return [it | {"ner_tags": of_words} for it, of_words in zip(records, tags, strict=True)]

    odd = salted(range(300, 310), "odd")
    write_rows(tmp_path / "train.jsonl", salted(range(80), "thing"))
    write_rows(tmp_path / "test.jsonl", [*salted(range(200, 230), "thing"), *odd])
    splits = {"train": "train.jsonl", "test": "test.jsonl"}
    report, short = (
        prepare("tagging", CASES["tagging"][0], small_encoder, tmp_path, splits=splits, max_length=length).test()
        for length in (24, 8)
    )
    num_odd, num_entities = sum(str(it["text"]).split().count("salt") for it in odd), report.figures["num_entities"]
    assert report.figures["num_entities_of_unknown_types"] == num_odd > 5
    assert report.per_class["odd"] == {"precision": 0, "recall": 0, "f1": 0, "num_entities": num_odd}
    assert isinstance(num_entities, int)
    assert report.headline.baseline_value == pytest.approx(1 - num_odd / num_entities), "finds as many as exist"
    assert (short.figures["num_split_test"], short.figures["num_entities"]) == (40, num_entities)


TAGS = ("O", "B-X", "I-X")


@pytest.fixture
def opened(small_encoder: Path) -> OpenTokenizer:
    return OpenTokenizer.open(small_encoder)


def test_the_tag_of_a_word_is_at_its_first_token_and_a_tag_unseen_in_training_is_no_target(
    opened: OpenTokenizer,
) -> None:
    rows = TaggedRows.encode(
        [sentence("sentence xylophone a", "O B-X O"), sentence("a file", "B-Y O")], TAGS, opened, 32
    )
    batch = rows.batch(np.array([0]))
    assert [place for place in batch.targets_B[0].tolist() if place != NO_TARGET] == [0, 1, 0]
    tokens = [opened.tokenizer.id_to_token(id_) for id_ in batch.input_ids_BL[0].tolist()]
    assert [tokens[place][:1] for place in rows.first_RW[0]] == ["s", "x", "a"]
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    assert rows.num_targets(np.array([1])) == 1


def test_a_sentence_longer_than_a_row_continues_in_the_next_without_losing_words(opened: OpenTokenizer) -> None:
    long = sentence(" ".join(["the", "model", "xylophone"] * 9), " ".join(["O", "B-X", "O"] * 9))
    rows = TaggedRows.encode([long, sentence("a file", "O B-X")], TAGS, opened, 12)
    assert rows.num_split == 1
    assert max(rows.rows.length_T) <= 12
    said = dict(enumerate(rows.target_RW))
    assert rows.tags_of(said, TAGS, "O") == [list(it.tags) for it in rows.sentences]
    assert rows.num_targets(np.arange(len(rows.rows))) == 29
    rows = TaggedRows.encode([sentence("a \u200b file", "O B-X B-X")], TAGS, opened, 32)
    assert rows.num_unread_words == 1, "a word that the tokenizer drops is tagged O"
    assert rows.tags_of({0: np.array([0, 1])}, TAGS, "O") == [["O", "O", "B-X"]]


def test_a_word_has_the_byte_level_tokens_of_running_text() -> None:
    vocab = {token: place for place, token in enumerate(["<s>", "</s>", "<pad>", "<mask>", "a", "b", "Ġ", "Ġb"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("Ġ", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    ids = SpecialIds(pad=2, unk=None, cls=0, sep=1, mask=3, every=(0, 1, 2, 3))
    rows = TaggedRows.encode([sentence("a b", "O O")], TAGS, OpenTokenizer(tokenizer, ids, (), 8, "", Path()), 8)
    assert rows.rows.ids_T[0].tolist() == [0, *tokenizer.encode("a b").ids, 1] == [0, 4, 7, 1]
