"""Figures are comparable if both locks have the same hashes of the text and rules of the measurement."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.artifacts.lock import Lock, LockedStage
from clozeline.artifacts.package_metrics import MetricPaths
from clozeline.registry.measured_on import MeasuredOn

ENCODER = MetricPaths.of("encoder", "encoder")
TASK = MetricPaths.of("library", "finetuned/library")
KNOBS = {
    "seed": 1,
    "pretrain": {"objective": "mlm", "steps": 10},
    "evaluate": {"num_folds": 7, "max_length": 64, "batch_tokens": 8192},
    "finetune.library": {"data": "labels.csv", "kind": "classification", "test_fraction": 0.3, "epochs": 3},
}

VALIDATION = "data/clean/validation.parquet"


def lock(validation: str = "aa", labels: str = "bb", text: str = VALIDATION, **knobs: Any) -> Lock:
    """Return a lock with these md5s, the validation text at `text`, and `knobs` of each section in place of `KNOBS`."""
    deps = {text: validation, "labels.csv": labels, "data/clean/train.parquet": "cc"}
    params = {key: {**value, **knobs.get(key.split(".")[0], {})} for key, value in KNOBS.items() if key != "seed"}
    seed = knobs.get("seed", KNOBS["seed"])
    stage = {
        "cmd": f"python -m clozeline stage evaluate validation_text={text} metrics=metrics/evaluate.json",
        "deps": [{"path": path, "md5": md5} for path, md5 in deps.items()],
        "params": {"params.yaml": {**params, "seed": seed}},
    }
    return Lock.model_validate({"stages": {"evaluate": stage}})


def differences(candidate: Lock, paths: MetricPaths) -> list[str]:
    return MeasuredOn.of(candidate, paths).differences(MeasuredOn.of(lock(), paths))


@pytest.mark.parametrize("paths", [ENCODER, TASK])
def test_a_model_trained_otherwise_compares(paths: MetricPaths) -> None:
    assert differences(lock(pretrain={"steps": 99}, finetune={"epochs": 9}), paths) == []


def test_an_encoder_compares_on_the_same_validation_text_only() -> None:
    assert differences(lock(validation="dd"), ENCODER) == [
        "data/clean/validation.parquet has md5 dd, the champion's aa"
    ]
    assert differences(lock(labels="dd"), ENCODER) == []


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"evaluate": {"num_folds": 2}}, "evaluate.num_folds is 2, the champion's 7"),
        ({"evaluate": {"max_length": 512}}, "evaluate.max_length is 512, the champion's 64"),
        ({"pretrain": {"objective": "clm"}}, "pretrain.objective is clm, the champion's mlm"),
    ],
)
def test_an_encoder_compares_by_the_same_rules_only(knobs: dict[str, Any], told: str) -> None:
    assert differences(lock(**knobs), ENCODER) == [told]


def test_a_validation_text_that_was_only_renamed_compares() -> None:
    assert differences(lock(text="data/clean/dev.parquet"), ENCODER) == []
    assert differences(lock(validation="dd", text="data/clean/dev.parquet"), ENCODER) == [
        "data/clean/dev.parquet has md5 dd, the champion's aa"
    ]


def test_a_task_compares_on_the_same_test_part_only() -> None:
    assert differences(lock(validation="dd"), TASK) == []
    assert differences(lock(labels="dd"), TASK) == ["labels.csv has md5 dd, the champion's bb"]
    assert differences(lock(seed=2, finetune={"test_fraction": 0.1}), TASK) == [
        "finetune.library.test_fraction is 0.1, the champion's 0.3",
        "seed is 2, the champion's 1",
    ]


def test_a_knob_may_move_from_the_task_to_the_defaults_under_it() -> None:
    moved = lock(finetune={"test_fraction": 0.3, "text_field": "body"})
    params = moved.stages["evaluate"].params["params.yaml"]
    task = {key: value for key, value in params["finetune.library"].items() if key not in {"test_fraction"}}
    defaults = {"shared": {"test_fraction": 0.3, "hub": None}, "classification": {"text_field": "text"}}
    stage = moved.stages["evaluate"].model_copy(
        update={"params": {"params.yaml": {**params, "finetune.library": task, "finetune_defaults": defaults}}}
    )
    assert MeasuredOn.of(Lock(stages={"evaluate": stage}), TASK).differences(MeasuredOn.of(moved, TASK)) == []


def test_what_a_lock_does_not_know_does_not_compare() -> None:
    nothing = MeasuredOn.of(Lock(stages={}), ENCODER)
    assert nothing.differences(nothing) == ["the text has md5 None, the champion's None"]


def test_the_names_are_those_of_the_projects_graph_and_params() -> None:
    project = Path(__file__).parents[2]
    from clozeline.params import read_params
    from clozeline.params.finetuning import SECTIONS
    from clozeline.registry import measured_on

    params = read_params(project / "params.yaml")
    known = params.model_dump()
    for name in measured_on._ENCODER_RULES:
        section, key = name.split(".")
        assert key in known[section]
    for section in SECTIONS.values():
        assert set(section.measured_by) <= set(section.model_fields)
    graph = YAML(typ="safe").load((project / "dvc.yaml").read_text(encoding="utf-8"))
    evaluate = LockedStage(cmd=graph["stages"][measured_on._ENCODER_STAGE]["cmd"])
    assert measured_on._argument(evaluate, measured_on._ENCODER_TEXT) in graph["stages"]["evaluate"]["deps"]
