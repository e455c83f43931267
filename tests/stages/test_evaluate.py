"""The figures, plots and shown examples that the stage writes of an encoder."""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.encoder.families.layout import TokenIds
from clozeline.evaluation.groups import NUM_FOLDS
from clozeline.evaluation.measuring import NUM_EXAMPLES
from clozeline.language import models
from clozeline.params.pretraining import EvaluateParams, PretrainParams
from clozeline.stages import evaluate
from clozeline.system.errors import ArtifactError
from tests.conftest import counting_documents, write_tokens
from tests.make.tasks import contents

PARAMS = EvaluateParams(max_length=32, num_bootstrap_samples=100, num_pseudo_documents=6)
TRAINING = ("return a new array of the given shape", "raise an error if the file is not there")
VALIDATION = ("sort the items of a list in place", "the same text in upper case is the same text")


def encoder(params: PretrainParams, tokenizer: Path, folder: Path) -> Path:
    folder.mkdir()
    model = models.build(params.model, params.objective, TokenIds(64, pad_id=0, cls_id=2, sep_id=3), seed=1)
    models.save(model, tokenizer, folder)
    return folder


def run_stage(encoder: Path, folder: Path, validation: Sequence[str] = VALIDATION, **changes: int) -> dict[str, float]:
    """Run the stage on the tokens and with the tokenizer beside `encoder`; return its metrics."""
    folder.mkdir(exist_ok=True)
    for name, texts in (("train", TRAINING), ("validation", validation)):
        pq.write_table(pa.table({"text": list(texts)}), folder / f"{name}.parquet")
    evaluate.run(
        PARAMS.model_copy(update=changes),
        seed=1,
        family="bert",
        encoder=encoder,
        tokens=encoder.parent / "tokens",
        tokenizer=encoder.parent / "tokenizer",
        training_text=folder / "train.parquet",
        validation_text=folder / "validation.parquet",
        metrics=folder / "metrics.json",
        plots=folder / "plots",
        examples=folder / "examples",
    )
    return metrics_of(folder)


def metrics_of(folder: Path) -> dict[str, float]:
    metrics: dict[str, float] = json.loads((folder / "metrics.json").read_text())
    return metrics


@pytest.fixture(scope="module")
def language(made_tiny_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the tokens and the tokenizer of the tiny language."""
    folder = tmp_path_factory.mktemp("language")
    write_tokens(folder / "tokens", made_tiny_tokenizer, *(counting_documents(*of) for of in ((300, 0), (40, 1))))
    shutil.copytree(made_tiny_tokenizer, folder / "tokenizer")
    return folder


@pytest.fixture(scope="module")
def untrained(language: Path, tiny_pretraining: PretrainParams) -> Path:
    return encoder(tiny_pretraining, language / "tokenizer", language / "encoder")


@pytest.fixture(scope="module")
def evaluated(untrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with what the stage says of the encoder; tests only look at it."""
    run_stage(untrained, folder := tmp_path_factory.mktemp("evaluated"))
    return folder


def test_the_metrics_have_the_promised_figures_and_each_plot_covers_all_targets(
    untrained: Path, evaluated: Path, tmp_path: Path
) -> None:
    metrics = metrics_of(evaluated)
    assert {"top1", "top5", "nats_per_byte", "text_bytes", "unknown_tokens"} <= set(metrics)
    assert metrics["target_tokens"] == metrics["validation_tokens"]
    assert metrics["unigram_perplexity"] == pytest.approx(59, rel=0.05)  # all words are equally frequent
    assert metrics["perplexity"] == pytest.approx(64, rel=0.2)  # untrained
    assert metrics["pseudo_documents"] == 6
    assert 0 < metrics["pseudo_target_tokens"] < metrics["target_tokens"]
    assert metrics["pseudo_perplexity"] == pytest.approx(64, rel=0.2)
    assert 0 <= metrics["expected_calibration_error"] <= 1
    for name in ("calibration", "frequency", "place", "word_class"):
        with (evaluated / "plots" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert sum(int(row["targets"]) for row in rows) == metrics["target_tokens"]
        if name != "calibration":
            loss = sum(int(row["targets"]) * float(row["loss_nats_per_token"]) for row in rows)
            assert loss / metrics["target_tokens"] == pytest.approx(metrics["loss_nats_per_token"])
    assert [row["word_class"] for row in rows] == ["whole word"]  # the tokenizer has a token for each word
    run_stage(untrained, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(evaluated)
    without = run_stage(untrained, tmp_path / "without", num_pseudo_documents=0)
    assert without == {name: value for name, value in metrics.items() if not name.startswith("pseudo_")}


def test_replaced_token_detection_reports_the_generator_and_the_detection_metrics(
    tiny_pretraining: PretrainParams, language: Path, tmp_path: Path
) -> None:
    model = tiny_pretraining.model.model_copy(update={"family": "electra"})
    detecting = tiny_pretraining.model_copy(update={"objective": "rtd", "model": model})
    made = encoder(detecting, language / "tokenizer", language / "pair")
    shutil.copytree(made / "generator", language / "generator")
    metrics, alone = run_stage(made, tmp_path), run_stage(language / "generator", tmp_path / "alone")
    found = {name: value for name, value in metrics.items() if name.startswith("detection_")}
    assert metrics == pytest.approx(alone | found)
    assert {"detection_accuracy", "detection_auc", "detection_f1"} <= set(found)
    assert found["detection_majority_accuracy"] == pytest.approx(1 - 1 / NUM_FOLDS, abs=0.05)
    assert found["detection_tokens"] > NUM_FOLDS * metrics["validation_tokens"]


def test_an_even_share_of_the_validation_texts_is_compared_with_those_trained_on(
    untrained: Path, evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert metrics_of(evaluated)["contaminated_fraction"] == 0
    texts = [TRAINING[0].upper() if place % 3 == 0 else f"{VALIDATION[0]} {place}" for place in range(30)]
    whole = run_stage(untrained, tmp_path, texts)
    assert (whole["texts_compared_with_training"], whole["near_duplicates_in_training"]) == (30, 10)
    assert whole["contaminated_fraction"] == pytest.approx(1 / 3)
    monkeypatch.setattr(evaluate, "_MOST_BYTES_COMPARED", int(whole["text_bytes"]) // 3 + 1)
    share = run_stage(untrained, tmp_path, texts)
    assert (share["texts_compared_with_training"], share["near_duplicates_in_training"]) == (10, 10)


def test_each_hidden_word_is_shown_with_its_probability_and_the_five_likeliest(evaluated: Path) -> None:
    page = evaluated / "examples"
    examples = json.loads((page / "examples.json").read_text())
    assert (page / "examples.html").read_text().count("<article>") == len(examples) == NUM_EXAMPLES
    assert (page / "examples.txt").read_text().count("[MASK]") >= 3
    for example in examples:
        words = zip(example["original"].split(), example["masked"].split(), strict=True)
        hidden = [word for word, shown in words if shown == example["mask_token"] == "[MASK]"]
        assert [guess["original"] for guess in example["guesses"]] == hidden
        for guess in example["guesses"]:
            likely = {candidate["token"]: candidate["probability"] for candidate in guess["candidates"]}
            assert len(likely) == 5
            assert list(likely.values()) == sorted(likely.values(), reverse=True)
            assert guess["original_probability"] == likely.get(guess["original"], guess["original_probability"])
            assert guess["original"] in likely or guess["original_probability"] <= min(likely.values())


def test_a_model_of_another_vocabulary_is_refused(tiny_pretraining: PretrainParams, language: Path, tmp_path) -> None:
    (made := language / "of more words").mkdir()
    ids = TokenIds(70, pad_id=0, cls_id=2, sep_id=3)
    model = models.build(tiny_pretraining.model, tiny_pretraining.objective, ids, seed=1)
    models.save(model, language / "tokenizer", made)
    with pytest.raises(ArtifactError, match="70 rows"):
        run_stage(made, tmp_path)
