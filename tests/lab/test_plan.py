"""Claim: a sweep that cannot work is refused before anything runs, with the place in its file."""

from pathlib import Path

import pytest

from clozeline.lab.plan import NumberRange, read_plan, value_in, with_values
from clozeline.system.errors import ParamsError

HEAD = "metric: nats_per_byte\ntrials: 3\n"
TASK = "metric: validation_score\ntrials: 3\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text("pretrain: {num_threads: 1}\n", encoding="utf-8")
    return tmp_path


def test_a_plan_is_read_with_the_params_that_it_changes(root: Path) -> None:
    file = root / "sweep.yaml"
    ranges = "pretrain.masking.mask_rate: {low: 0.1, high: 0.5}, pretrain.steps: {low: 10, high: 90, step: 10}"
    file.write_text(f"{HEAD}space: {{{ranges}, pretrain.schedule.decay: [linear, cosine]}}", encoding="utf-8")
    plan, config = read_plan(file, root)
    assert (plan.stage, plan.direction, plan.task, plan.pruning) == ("pretrain", "minimize", None, True)
    assert list(map(type, plan.space.values())) == [NumberRange, NumberRange, tuple]
    changed = with_values(config, {"pretrain.masking.mask_rate": 0.4, "pretrain.steps": 30})
    assert value_in(changed.checked, "pretrain.masking.mask_rate") == 0.4
    assert (changed.pretrain.steps, changed.pretrain.tokens, config.pretrain.masking.mask_rate) == (30, None, 0.3)


def test_a_plan_of_a_task_knows_its_task(root: Path) -> None:
    (root / "sweep.yaml").write_text(f"{TASK}space: {{finetune.library.epochs: [1, 2]}}", encoding="utf-8")
    plan, config = read_plan(root / "sweep.yaml", root)
    assert (plan.stage, plan.direction, plan.task) == ("finetune", "maximize", "library")
    assert value_in(config.checked, "finetune.library.epochs") == config.checked.finetune["library"].epochs


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (f"{HEAD}space: {{}}", "`space`"),
        (f"{HEAD}space: {{pretrain.stepz: [1, 2]}}", "unknown key `pretrain.stepz`"),
        (f"{HEAD}space: {{pretrain.masking.mask_rate: {{low: 0.1, high: 1.5}}}}", "mask_rate: 1.5"),
        (f"{HEAD}space: {{pretrain.schedule.decay: [linear, cosy]}}", "cosy"),
        (f"{HEAD}space: {{pretrain.steps: {{low: 9, high: 2}}}}", "`low` below `high`"),
        (f"{HEAD}space: {{pretrain.steps: {{low: 0, high: 2, log: true}}}}", "above 0"),
        (f"{HEAD}space: {{pretrain.steps: [5]}}", "two values"),
        (f"{HEAD}space: {{pretrain.steps: {{low: 1, hi: 2}}}}", "`space.pretrain.steps.hi`"),
        (f"{HEAD}space: {{tokenize.vocab_size: [100, 200]}}", "tokenize.vocab_size"),
        (f"{HEAD}space: {{seed: [1, 2]}}", "seed"),
        (f"{HEAD}spaze: {{}}", "`spaze`"),
        ("trials: 3\nspace: {pretrain.steps: [1, 2]}", "`metric`"),
        ("metric: nats_per_byte\ntrials: 0\nspace: {pretrain.steps: [1, 2]}", "`trials`"),
        ("metric: accuracy\ntrials: 3\nspace: {pretrain.steps: [1, 2]}", "validation_score"),
        (f"{TASK}space: {{pretrain.steps: [1, 2]}}", "do not change the figure"),
        (f"{TASK}space: {{finetune.nothing.epochs: [1, 2]}}", "docsearch, library"),
        (f"{TASK}space: {{finetune.library.epochs: [1, 2], finetune.docsearch.epochs: [1, 2]}}", "one task"),
        ("[", "not YAML"),
        ("[1]", "keys: metric"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(root: Path, content: str, told: str) -> None:
    (root / "sweep.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(ParamsError) as error:
        read_plan(root / "sweep.yaml", root)
    assert told in str(error.value)


@pytest.mark.parametrize("params", ["pretrain: {start: champion}", "pretrain: {validation: {every_steps: null}}"])
def test_params_that_a_sweep_cannot_start_from_are_refused(root: Path, params: str) -> None:
    (root / "params.yaml").write_text(params, encoding="utf-8")
    (root / "sweep.yaml").write_text(f"{HEAD}space: {{pretrain.steps: [1, 2]}}", encoding="utf-8")
    with pytest.raises(ParamsError, match=r"live model|no validation passes"):
        read_plan(root / "sweep.yaml", root)
