"""Zero-shot labels are ranked by cloze as in the task, and by entailment as in transformers' pipeline."""

from pathlib import Path

import numpy as np
import pytest

from clozeline.inference.classifier import Classifier
from clozeline.inference.language import OpenEncoder
from clozeline.inference.package import load
from clozeline.inference.tokenization import TargetError, TextTooLongError
from clozeline.serving.zero_shot import can_choose, choosing_by_cloze, choosing_by_entailment, chosen, tells_entailment
from clozeline.system.errors import DataError
from tests.make.packages import classifier_graph, write_classifier, write_encoder, write_package, write_tagger

TEXT = "open the [MASK] of a"
LABELS = ["list", "return file", "é"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> OpenEncoder:
    folder = tmp_path_factory.mktemp("zero") / "encoder"
    write_encoder(folder)
    opened = load(folder)
    assert isinstance(opened, OpenEncoder)
    return opened


def entailer(folder: Path, labels: tuple[str, ...], **facts: object) -> Classifier:
    write_package(folder, "text-classification", classifier_graph(len(labels)), labels=labels, **facts)
    opened = load(folder)
    assert isinstance(opened, Classifier)
    return opened


def test_a_label_scores_the_mean_of_its_words_in_the_last_blank(encoder: OpenEncoder) -> None:
    (scores,) = encoder.answers(choosing_by_cloze(encoder, TEXT, LABELS, template="b {} c"))
    read = encoder.tokenize([f"{TEXT} b [MASK] c"])
    (logits_MV,) = encoder.rows(read, "logits")
    ids = {label: [encoder.tokenizer.ids_of(word)[0] for word in label.split()] for label in LABELS}
    log_V = logits_MV[1] - np.log(np.exp(logits_MV[1]).sum())
    shares = np.exp([log_V[ids[label]].mean() for label in LABELS])
    expected = dict(zip(LABELS, shares / shares.sum(), strict=True))
    assert {one.label: one.score for one in scores} == pytest.approx(expected, abs=1e-5)
    assert [one.score for one in scores] == sorted((one.score for one in scores), reverse=True)


def test_a_mask_in_the_text_itself_is_not_taken_for_the_blank(encoder: OpenEncoder) -> None:
    question = choosing_by_cloze(encoder, TEXT, LABELS)
    logits_MV = np.zeros((2, encoder.manifest.vocab_size), dtype=np.float32)
    logits_MV[0, encoder.tokenizer.ids_of("list")] = 9
    logits_MV[1, encoder.tokenizer.ids_of("é")] = 5
    assert question.read(0, logits_MV)[0].label == "é"


def test_a_long_text_is_cut_and_the_prompt_stays_whole(encoder: OpenEncoder) -> None:
    long = "a b c d " * 40
    with pytest.raises(TextTooLongError, match="a prompt of"):
        choosing_by_cloze(encoder, long, LABELS)
    question = choosing_by_cloze(encoder, long, LABELS, truncate=True)
    (read,) = question.texts
    assert len(read) == encoder.manifest.max_length
    assert len(read.mask_spans) == 1
    assert len(encoder.answers(question)[0]) == 3


@pytest.mark.parametrize("label", ["lists", "list 🙂", " "])
def test_a_label_that_does_not_fit_the_blank_is_refused_by_name(encoder: OpenEncoder, label: str) -> None:
    with pytest.raises(TargetError, match="cannot be filled into the prompt"):
        choosing_by_cloze(encoder, TEXT, ["list", label])


@pytest.mark.parametrize("template", ["no blank", "{} and {}", "{label} is {}"])
def test_a_template_has_one_blank(encoder: OpenEncoder, tmp_path: Path, template: str) -> None:
    nli = entailer(tmp_path / "nli", ("contradiction", "entailment"), reads_pairs=True)
    for asking in (lambda: choosing_by_cloze(encoder, TEXT, LABELS, template=template),):
        with pytest.raises(DataError, match="hypothesis_template"):
            asking()
    with pytest.raises(DataError, match="hypothesis_template"):
        choosing_by_entailment(nli, TEXT, LABELS, template=template)


@pytest.mark.parametrize("names", [("contradiction", "neutral", "entailment"), ("ENTAILMENT", "not_entailment")])
def test_entailment_scores_equal_those_of_the_transformers_pipeline(tmp_path: Path, names: tuple[str, ...]) -> None:
    nli = entailer(tmp_path / "nli", names, reads_pairs=True)
    question = choosing_by_entailment(nli, "open a", LABELS, template="of {}")
    found = nli.answers(question)
    logits = nli.rows(nli.tokenize([("open a", f"of {label}") for label in LABELS]), "logits")
    place = [name.lower() for name in names].index("entailment")
    against = 0 if place else 1
    entailed = np.array([logits[n][place] for n in range(3)])
    assert found == [(pytest.approx(logits[n][place]), pytest.approx(logits[n][against])) for n in range(3)]
    among = np.exp(entailed) / np.exp(entailed).sum()
    assert {one.label: one.score for one in chosen(LABELS, found, multi_label=False)} == pytest.approx(
        dict(zip(LABELS, among, strict=True)), abs=1e-5
    )
    each = [1 / (1 + np.exp(logits[n][against] - logits[n][place])) for n in range(3)]
    several = chosen(LABELS, found, multi_label=True)
    assert {one.label: one.score for one in several} == pytest.approx(dict(zip(LABELS, each, strict=True)), abs=1e-5)
    assert [one.score for one in several] == sorted((one.score for one in several), reverse=True)


def test_only_encoders_and_entailment_models_can_choose_labels(encoder: OpenEncoder, tmp_path: Path) -> None:
    write_classifier(tmp_path / "library")
    write_tagger(tmp_path / "names")
    nli = entailer(tmp_path / "nli", ("entailment", "not_entailment"), reads_pairs=True)
    assert [can_choose(model) for model in (encoder, nli)] == [True, True]
    assert [can_choose(load(tmp_path / name)) for name in ("library", "names")] == [False, False]
    assert [tells_entailment(model) for model in (encoder, nli)] == [False, True]
