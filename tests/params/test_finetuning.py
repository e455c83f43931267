"""Claim: a task sets its required keys and takes the rest from defaults and presets; errors name where a fault is."""

from pathlib import Path

import pytest

from clozeline.params.reading import read_params
from clozeline.params.tasks import SECTIONS, FinetuneParams
from tests.make.params import Editor, message, with_task


def test_a_misspelt_key_of_a_task_is_named_too(edited: Editor) -> None:
    told = message(edited("    max_classes: 20", "    max_clases: 20"))
    assert "`finetune.library.max_clases`" in told
    assert "rename it to `max_classes`" in told


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_task_of_any_kind_needs_only_kind_and_data(tmp_path: Path, kind: str) -> None:
    params = read_params(with_task(tmp_path, f"kind: {kind}", "data: labels.csv"))
    assert type(params.finetune["more"]) is SECTIONS[kind]
    assert params.finetune["more"].epochs == params.finetune_defaults["shared"]["epochs"]


def test_values_of_a_task_override_the_defaults_key_by_key(tmp_path: Path) -> None:
    path = with_task(tmp_path, "kind: classification", "data: x.csv", "optimizer: {learning_rate: 1.0e-5}")
    optimizer = read_params(path).finetune["more"].optimizer
    assert optimizer.learning_rate == 1e-5
    assert optimizer.beta2 == read_params(path).finetune_defaults["shared"]["optimizer"]["beta2"]


@pytest.mark.parametrize("line", ["kind: classificatoin", "data: x.csv"])
def test_a_task_must_have_a_known_kind(tmp_path: Path, line: str) -> None:
    told = message(with_task(tmp_path, *{"data: x.csv", line}))
    assert "`finetune.more.kind` cannot be used" in told
    assert "expected: a kind of task: classification" in told
    assert ("given:    nothing" in told) == (line == "data: x.csv")


@pytest.mark.parametrize("place", ["    max_length: 128", "    max_classes: null "])
def test_a_misspelt_default_is_reported_with_its_key(edited: Editor, place: str) -> None:
    section = "shared" if "128" in place else "classification"
    told = message(edited(place, place.replace("max_", "mx_")))
    name = place.split(":")[0].strip()
    assert f"unknown key `finetune_defaults.{section}.{name.replace('max_', 'mx_')}`" in told
    assert f"do:       rename it to `{name}`" in told


def test_an_invalid_default_is_reported_under_finetune_defaults(edited: Editor) -> None:
    told = message(edited("    warmup_fraction: 0.1", "    warmup_fraction: 3"))
    assert "`finetune_defaults.shared.warmup_fraction` cannot be used" in told


def test_defaults_of_an_unknown_kind_are_refused(edited: Editor) -> None:
    told = message(edited("  classification:\n    rate_factors", "  clasification:\n    rate_factors"))
    assert "unknown key `finetune_defaults.clasification`" in told
    assert "one of: shared, classification" in told
    assert "rename it to `classification`" in told


def test_a_task_takes_the_values_of_a_preset_and_its_own_win(tmp_path: Path) -> None:
    known, own = (
        read_params(with_task(tmp_path, "preset: sst2", "data: requirements.lock", *more)).finetune["more"]
        for more in ((), ("hub: {dataset: my/copy}", "text_field: body"))
    )
    assert known.hub is not None
    assert (known.kind, known.hub.subset, known.text_field, known.metric) == (
        "classification",
        "sst2",
        "sentence",
        "accuracy",
    )
    assert own.hub is not None
    assert (own.hub.dataset, own.hub.revision, own.text_field, own.splits) == ("my/copy", None, "body", known.splits)


@pytest.mark.parametrize(
    "line", ["epochs: 9", "epochs: 3", "frozen_layers: 2", "optimizer: {learning_rate: 1.0e-5}", "patience: null"]
)
def test_a_knob_without_effect_in_the_kind_is_refused(tmp_path: Path, line: str) -> None:
    key = line.partition(":")[0]
    told = message(with_task(tmp_path, "kind: zero_shot", "data: x.csv", line))
    assert f"`finetune.more.{key}` cannot be used" in told
    assert "it has no effect in a task of kind `zero_shot`" in told
    assert "do:       remove it from" in told
    assert key in vars(read_params(with_task(tmp_path, "kind: classification", "data: x.csv", line)).finetune["more"])


def test_a_knob_without_effect_is_refused_in_the_kinds_defaults_and_accepted_in_shared_ones(tmp_path: Path) -> None:
    path = with_task(tmp_path, "kind: zero_shot", "data: x.csv")
    usual = path.read_text(encoding="utf-8")
    path.write_text(usual.replace("\n    calibrated: true", "\n    epochs: 9\n    calibrated: true"), encoding="utf-8")
    assert "`finetune_defaults.zero_shot.epochs` cannot be used" in message(path)
    path.write_text(usual.replace("\n    epochs: 3\n", "\n    epochs: 9\n"), encoding="utf-8")
    assert read_params(path).finetune["more"].epochs == 9


@pytest.mark.parametrize("label", ["1", "true", "0.5"])
def test_a_label_that_yaml_reads_as_a_number_must_be_quoted(tmp_path: Path, label: str) -> None:
    lines = ("kind: classification", "data: x.csv")
    told = message(with_task(tmp_path, *lines, f"positive_label: {label}"))
    assert f"given:    finetune.more.positive_label: {label}\n" in told
    assert told.endswith(f"params.yaml: '{label}'")
    quoted = read_params(with_task(tmp_path, *lines, f"positive_label: '{label}'"))
    assert quoted.finetune["more"].positive_label == label


@pytest.mark.parametrize("kind", SECTIONS)
def test_knobs_without_effect_in_a_kind_are_fields_of_all_kinds(kind: str) -> None:
    assert set(SECTIONS[kind].idle) <= set(FinetuneParams.model_fields)


def test_an_alias_of_earlier_versions_is_refused_with_its_line_and_the_key_instead(tmp_path: Path) -> None:
    path = with_task(tmp_path, "<<: *sst2")
    line = path.read_text(encoding="utf-8").splitlines().index("    <<: *sst2") + 1
    told = message(path)
    assert "undefined alias" in told
    assert f"line {line}" in told
    assert "`preset: NAME`" in told


def test_a_section_inside_a_task_is_checked_too(tmp_path: Path) -> None:
    lines = ("kind: classification", "data: corpus.lock", "hub: {dataset: a, revison: b}")
    told = message(with_task(tmp_path, *lines))
    assert "unknown key `finetune.more.hub.revison`" in told
    assert "rename it to `revision`" in told


@pytest.mark.parametrize(
    ("lines", "hub"),
    [
        (("preset: sst2",), "presets.sst2.hub"),
        (("kind: classification", "hub: {dataset: some/set}"), "finetune.more.hub"),
    ],
)
def test_a_task_with_both_a_file_and_a_hub_dataset_is_refused(tmp_path: Path, lines: tuple[str, ...], hub: str) -> None:
    told = message(with_task(tmp_path, *lines, "data: labels/mine.csv"))
    assert f"`finetune.more.data` and `{hub}` cannot be used together" in told
    assert f"given:    finetune.more.data: 'labels/mine.csv', {hub}: {{…}}\n" in told
    assert "`data: corpus.lock`" in told
    for lock in ("corpus.lock", "requirements.lock"):
        assert read_params(with_task(tmp_path, *lines, f"data: {lock}")).finetune["more"].hub is not None


def test_a_preset_can_be_used_with_an_own_file(tmp_path: Path) -> None:
    lines = ("preset: sst2", "data: labels/mine.csv", "hub: null", "splits: null")
    task = read_params(with_task(tmp_path, *lines)).finetune["more"]
    assert (task.hub, task.splits, task.text_field) == (None, None, "sentence")


@pytest.mark.parametrize("data", ["labels/copy", "labels/copy/train.parquet", "labels"])
def test_data_may_be_the_local_folder_of_the_dataset(tmp_path: Path, data: str) -> None:
    lines = ("kind: classification", f"data: {data}", "hub: {dataset: labels/copy}")
    assert read_params(with_task(tmp_path, *lines)).finetune["more"].data == data


@pytest.mark.parametrize(
    ("line", "expected"),
    [("second_field: other", "which hold no pairs"), ("hub: {dataset: folder}", "the records are on the hub")],
)
def test_label_files_must_be_local_and_cannot_hold_pairs(tmp_path: Path, line: str, expected: str) -> None:
    lines = ("kind: classification", "data: folder", "label_files: {good: some.pos, bad: some.neg}")
    assert read_params(with_task(tmp_path, *lines)).finetune["more"].label_files["bad"] == "some.neg"
    assert expected in message(with_task(tmp_path, *lines, line))


@pytest.mark.parametrize("factors", ["[1.0, 1.0]", "[3, 1.0, 3.0]"])
def test_a_learning_rate_is_tried_only_once(tmp_path: Path, factors: str) -> None:
    lines = ("kind: classification", "data: x.csv")
    assert read_params(with_task(tmp_path, *lines, "rate_factors: [1.0, 3.0]")).finetune["more"].rate_factors[1] == 3
    told = message(with_task(tmp_path, *lines, f"rate_factors: {factors}"))
    assert "`finetune.more.rate_factors` cannot be used" in told
    assert "expected: factors that all differ" in told


def test_a_boolean_is_no_factor_of_a_rate(tmp_path: Path) -> None:
    told = message(with_task(tmp_path, "kind: classification", "data: x.csv", "rate_factors: [true, 3]"))
    assert "`finetune.more.rate_factors` cannot be used" in told
    assert "expected: a number" in told


def test_label_files_with_only_one_label_are_refused(tmp_path: Path) -> None:
    told = message(with_task(tmp_path, "kind: classification", "data: folder", "label_files: {good: some.pos}"))
    assert "`finetune.more.label_files` cannot be used" in told
    assert "at least 2 items" in told


def test_a_zero_shot_task_begins_with_the_fields_of_classification_and_not_with_its_training(edited: Editor) -> None:
    path = edited("    text_field: text\n", "    text_field: body\n")
    text = path.read_text(encoding="utf-8").replace("class_weights: none ", "class_weights: balanced ")
    path.write_text(text.replace("\nfinetune:\n", "\nfinetune:\n  more: {kind: zero_shot, data: x.csv}\n"), "utf-8")
    params = read_params(path)
    task = params.finetune["more"]
    assert (task.text_field, task.class_weights, task.train_length) == ("body", "none", None)
    assert params.finetune["library"].class_weights == "balanced"
    path.write_text(path.read_text(encoding="utf-8").replace("too_long: truncate ", "too_long: shorten "), "utf-8")
    assert "`finetune_defaults.classification.too_long`" in message(path)
