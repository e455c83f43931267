import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.encoder.families.layout import TokenIds
from clozeline.evaluation.detection import NUM_EXAMPLES
from clozeline.evaluation.groups import NUM_FOLDS
from clozeline.language import models
from clozeline.params.pretraining import EvaluateParams, PretrainParams
from clozeline.stages import evaluate
from clozeline.system.errors import ArtifactError

PARAMS = EvaluateParams(max_length=32, num_bootstrap_samples=100, num_pseudo_documents=6)
TRAINING = ("return a new array of the given shape", "raise an error if the file is not there")
VALIDATION = ("sort the items of a list in place", "the same text in upper case is the same text")
CONTRACT = {
    "loss_nats_per_token",
    "perplexity",
    "top1",
    "top5",
    "nats_per_byte",
    "text_bytes",
    "target_tokens",
    "unknown_tokens",
    "validation_tokens",
}


def encoder(params: PretrainParams, tokenizer: Path, folder: Path, vocab_size: int = 64) -> Path:
    folder.mkdir()
    model = models.build(params.model, params.objective, TokenIds(vocab_size, pad_id=0, cls_id=2, sep_id=3), seed=1)
    models.save(model, tokenizer, folder)
    return folder


def run_stage(
    encoder: Path, tokens: Path, tokenizer: Path, folder: Path, validation: Sequence[str] = VALIDATION
) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    for name, texts in (("train", TRAINING), ("validation", validation)):
        pq.write_table(pa.table({"text": list(texts)}), folder / f"{name}.parquet")
    evaluate.run(
        PARAMS,
        seed=1,
        family="bert",
        encoder=encoder,
        tokens=tokens,
        tokenizer=tokenizer,
        training_text=folder / "train.parquet",
        validation_text=folder / "validation.parquet",
        metrics=folder / "metrics.json",
        plots=folder / "plots",
        examples=folder / "examples",
    )
    return json.loads((folder / "metrics.json").read_text())


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_contain_the_promised_figures_and_the_unigram_baseline(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    made = encoder(tiny_pretraining, tiny_tokenizer, tmp_path / "encoder")
    metrics = run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path)
    assert set(metrics) >= CONTRACT
    assert metrics["target_tokens"] == metrics["validation_tokens"]
    assert metrics["unigram_perplexity"] == pytest.approx(59, rel=0.05)  # all words are equally frequent
    assert metrics["perplexity"] == pytest.approx(64, rel=0.2)  # untrained


def test_replaced_token_detection_reports_the_generator_and_the_detection_metrics(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    model = tiny_pretraining.model.model_copy(update={"family": "electra"})
    detecting = tiny_pretraining.model_copy(update={"objective": "rtd", "model": model})
    made = encoder(detecting, tiny_tokenizer, tmp_path / "encoder")
    metrics = run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path)
    (tmp_path / "alone").mkdir()
    alone = run_stage(made / "generator", tiny_tokens, tiny_tokenizer, tmp_path / "alone")
    found = {name: value for name, value in metrics.items() if name.startswith("detection_")}
    assert metrics == pytest.approx(alone | found)
    assert {"accuracy", "majority_accuracy", "auc", "f1", "precision", "recall", "tokens"} == {
        name.removeprefix("detection_") for name in found
    }
    assert found["detection_majority_accuracy"] == pytest.approx(1 - 1 / NUM_FOLDS, abs=0.05)
    assert found["detection_tokens"] > NUM_FOLDS * metrics["validation_tokens"]


def test_validation_texts_that_were_trained_on_are_counted(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    made = encoder(tiny_pretraining, tiny_tokenizer, tmp_path / "encoder")
    assert run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path)["contaminated_fraction"] == 0
    seen = (*VALIDATION, TRAINING[0].upper(), TRAINING[1])
    metrics = run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path, seen)
    assert metrics["near_duplicates_in_training"] == 2
    assert metrics["contaminated_fraction"] == 0.5


def test_the_page_shows_original_masked_predicted_and_probability(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    made = encoder(tiny_pretraining, tiny_tokenizer, tmp_path / "encoder")
    run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path)
    text = (tmp_path / "examples" / "examples.txt").read_text()
    html = (tmp_path / "examples" / "examples.html").read_text()
    assert text.count("[MASK]") >= 3
    assert "→" in text
    assert "%" in text
    assert html.count("<article>") == NUM_EXAMPLES
    assert "http" not in html  # nothing from outside


def test_each_hidden_word_is_shown_with_its_probability_and_the_five_likeliest(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    made = encoder(tiny_pretraining, tiny_tokenizer, tmp_path / "encoder")
    run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path)
    examples = json.loads((tmp_path / "examples" / "examples.json").read_text())
    assert len(examples) == NUM_EXAMPLES
    for example in examples:
        hidden = [
            word
            for word, shown in zip(example["original"].split(), example["masked"].split(), strict=True)
            if shown == example["mask_token"] == "[MASK]"
        ]
        assert [guess["original"] for guess in example["guesses"]] == hidden
        for guess in example["guesses"]:
            likely = {candidate["token"]: candidate["probability"] for candidate in guess["candidates"]}
            assert len(likely) == 5
            assert list(likely.values()) == sorted(likely.values(), reverse=True)
            assert guess["original_probability"] == likely.get(guess["original"], guess["original_probability"])
            assert guess["original"] in likely or guess["original_probability"] <= min(likely.values())


def test_each_plot_covers_all_targets(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    made = encoder(tiny_pretraining, tiny_tokenizer, tmp_path / "encoder")
    metrics = run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path)
    assert 0 <= metrics["expected_calibration_error"] <= 1
    for name in ("calibration", "frequency", "place", "word_class"):
        rows = read_rows(tmp_path / "plots" / f"{name}.csv")
        targets = [int(row["targets"]) for row in rows]
        assert sum(targets) == metrics["target_tokens"]
        if name != "calibration":
            loss = sum(int(row["targets"]) * float(row["loss_nats_per_token"]) for row in rows)
            assert loss / sum(targets) == pytest.approx(metrics["loss_nats_per_token"])
    (of_words,) = read_rows(tmp_path / "plots" / "word_class.csv")
    assert of_words["word_class"] == "whole word"  # the tokenizer has a token for each word


def test_two_runs_write_the_same_bytes(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    made = encoder(tiny_pretraining, tiny_tokenizer, tmp_path / "encoder")
    written = []
    for name in ("one", "other"):
        run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path / name)
        files = sorted(file for file in (tmp_path / name).rglob("*") if file.is_file())
        written.append({file.relative_to(tmp_path / name): file.read_bytes() for file in files})
    assert written[0] == written[1]


def test_a_model_of_another_vocabulary_is_refused_before_any_work(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    made = encoder(tiny_pretraining, tiny_tokenizer, tmp_path / "encoder", vocab_size=70)
    with pytest.raises(ArtifactError, match="70 rows"):
        run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path)
    assert not (tmp_path / "metrics.json").exists()


def test_pseudo_log_likelihood_is_measured_on_some_documents_unless_turned_off(
    tiny_pretraining: PretrainParams,
    tiny_tokens: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = encoder(tiny_pretraining, tiny_tokenizer, tmp_path / "encoder")
    metrics = run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path)
    assert metrics["pseudo_documents"] == 6
    assert 0 < metrics["pseudo_target_tokens"] < metrics["target_tokens"]
    assert metrics["pseudo_perplexity"] == pytest.approx(64, rel=0.2)  # untrained
    monkeypatch.setattr(f"{__name__}.PARAMS", PARAMS.model_copy(update={"num_pseudo_documents": 0}))
    without = run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path)
    assert without == {name: value for name, value in metrics.items() if not name.startswith("pseudo_")}


def test_an_even_share_of_a_large_validation_split_is_compared_with_training(
    tiny_pretraining: PretrainParams,
    tiny_tokens: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = encoder(tiny_pretraining, tiny_tokenizer, tmp_path / "encoder")
    texts = [TRAINING[0] if place % 3 == 0 else f"{VALIDATION[0]} {place}" for place in range(30)]
    whole = run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path, texts)
    assert (whole["texts_compared_with_training"], whole["near_duplicates_in_training"]) == (30, 10)
    text_bytes = int(whole["text_bytes"])
    monkeypatch.setattr(evaluate, "_MOST_BYTES_COMPARED", text_bytes // 3 + 1)
    share = run_stage(made, tiny_tokens, tiny_tokenizer, tmp_path, texts)
    assert (share["texts_compared_with_training"], share["near_duplicates_in_training"]) == (10, 10)
