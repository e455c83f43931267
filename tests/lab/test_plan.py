"""Claim: a sweep that cannot work is refused before anything runs, with the place in its file."""

from pathlib import Path

import pytest

from clozeline.lab.plan import NumberRange, SweepPlan, read_plan, value_in, with_values
from clozeline.params.editing import Config
from clozeline.system.errors import ParamsError


def read(folder: Path, plan: str, params: str = "num_threads: 1") -> tuple[SweepPlan, Config]:
    (folder / "params.yaml").write_text(f"pretrain: {{{params}}}", encoding="utf-8")
    (folder / "sweep.yaml").write_text(plan, encoding="utf-8")
    return read_plan(folder / "sweep.yaml", folder)


def plan_of(space: str, metric: str = "nats_per_byte") -> str:
    return f"metric: {metric}\ntrials: 3\nspace: {{{space}}}"


def test_a_plan_is_read_with_the_params_that_it_changes(tmp_path: Path) -> None:
    ranges = "pretrain.masking.mask_rate: {low: 0.1, high: 0.5}, pretrain.steps: {low: 10, high: 90, step: 10}"
    plan, config = read(tmp_path, plan_of(f"{ranges}, pretrain.schedule.decay: [linear, cosine]"))
    assert (plan.stage, plan.direction, plan.task, plan.pruning) == ("pretrain", "minimize", None, True)
    assert list(map(type, plan.space.values())) == [NumberRange, NumberRange, tuple]
    changed = with_values(config, {"pretrain.masking.mask_rate": 0.4, "pretrain.steps": 30})
    assert value_in(changed.checked, "pretrain.masking.mask_rate") == 0.4
    assert (changed.pretrain.steps, changed.pretrain.tokens, config.pretrain.masking.mask_rate) == (30, None, 0.3)
    plan, config = read(tmp_path, plan_of("finetune.library.epochs: [1, 2]", "validation_score"))
    assert (plan.stage, plan.direction, plan.task) == ("finetune", "maximize", "library")
    assert value_in(config.checked, "finetune.library.epochs") == config.checked.finetune["library"].epochs


STEPS, EPOCHS = "pretrain.steps: [1, 2]", "finetune.{}.epochs: [1, 2]"


@pytest.mark.parametrize(
    ("plan", "params", "told"),
    [
        *(
            (plan, "num_threads: 1", told)
            for plan, told in {
                plan_of(""): "`space`",
                plan_of("pretrain.stepz: [1, 2]"): "unknown key `pretrain.stepz`",
                plan_of("pretrain.masking.mask_rate: {low: 0.1, high: 1.5}"): "mask_rate: 1.5",
                plan_of("pretrain.schedule.decay: [linear, cosy]"): "cosy",
                plan_of("pretrain.steps: {low: 9, high: 2}"): "`low` below `high`",
                plan_of("pretrain.steps: {low: 0, high: 2, log: true}"): "above 0",
                plan_of("tokenize.vocab_size: [100, 200]"): "tokenize.vocab_size",
                f"trials: 3\nspace: {{{STEPS}}}": "`metric`",
                plan_of(STEPS, "validation_score"): "cannot change the figure",
                plan_of(EPOCHS.format("nothing"), "validation_score"): "docsearch, library",
                plan_of(f"{EPOCHS.format('library')}, {EPOCHS.format('docsearch')}", "validation_score"): "one task",
                "[": "not YAML",
            }.items()
        ),
        (plan_of(STEPS), "start: champion", "live model"),
        (plan_of(STEPS), "validation: {every_steps: null}", "no validation passes"),
    ],
)
def test_a_plan_or_params_that_cannot_work_are_refused(tmp_path: Path, plan: str, params: str, told: str) -> None:
    with pytest.raises(ParamsError) as error:
        read(tmp_path, plan, params)
    assert told in str(error.value)
