"""Claim: a pre-training that will not fit into memory causes a warning before its first step; others cause none."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from clozeline.params.pretraining import PretrainParams
from clozeline.planning import costs
from clozeline.planning.costs import StepMemory, target_share, warn_of_memory
from clozeline.pretraining import job as pretraining
from tests.make.params import is_knob_of, named_in
from tests.stages.test_pretrain import run_stage


def test_a_step_that_needs_too_much_memory_is_named_before_the_first_step(
    tiny_pretraining: PretrainParams,
    tiny_tokens: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(costs, "device_bytes", lambda: 1000)
    run_stage(tiny_pretraining, tiny_tokens, tiny_tokenizer, tmp_path, before_first_step=warn_of_memory)
    (told,) = (record for record in caplog.records if record.name == costs.__name__)
    assert named_in(told.getMessage()) == ["micro_batch_tokens", "gradient_checkpointing"]
    assert all(is_knob_of(PretrainParams, knob) for knob in named_in(told.getMessage()))
    steps = next(place for place, record in enumerate(caplog.records) if "40 steps" in record.getMessage())
    assert caplog.records.index(told) < steps


def test_the_warning_uses_the_planned_figure_for_one_process(
    tiny_pretraining: PretrainParams,
    tiny_tokens: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    params = tiny_pretraining
    job = pretraining.prepare(params, seed=1, tokens=tiny_tokens, tokenizer=tiny_tokenizer, work=tmp_path)
    hardware = job.loop.hardware
    needed = StepMemory.of(job.model, params, hardware.precision, target_share(params)).total
    two = replace(hardware, processes=replace(hardware.processes, world_size=2))
    for there, used, is_reported in ((needed, hardware, False), (needed - 1, hardware, True), (needed - 1, two, False)):
        caplog.clear()
        monkeypatch.setattr(costs, "device_bytes", lambda there=there: there)
        warn_of_memory(replace(job, loop=replace(job.loop, hardware=used)))
        assert ("does not fit" in caplog.text) == is_reported
