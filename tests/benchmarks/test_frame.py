"""The frame of the benchmarks measures correctly; `make bench` takes the measurements themselves."""

import inspect
import json
import math
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest
from transformers import TrainingArguments

import pretrain
from clozeline.params.pretraining import PretrainParams
from comparison import frame, ours, stages


def test_the_side_that_goes_first_changes_with_every_round() -> None:
    calls: list[str] = []

    def side(name: str, value: float) -> float:
        calls.append(name)
        return value

    rounds = frame.alternate(lambda n: side(f"ours {n}", n), lambda n: side(f"theirs {n}", 10 + n), 3, "s")
    assert calls == ["ours 0", "theirs 0", "theirs 1", "ours 1", "ours 2", "theirs 2"]
    assert rounds == frame.Rounds(ours=(0, 1, 2), theirs=(10, 11, 12))


@pytest.mark.parametrize(("higher_is_better", "rounds"), [(True, (5.0, 109.0)), (False, (1.0, 102.0))])
def test_each_round_counts_the_best_of_their_set_ups(higher_is_better: bool, rounds: tuple[float, ...]) -> None:
    given = {"one": iter([1.0, 9.0]), "other": iter([5.0, 2.0])}
    setups = {name: lambda number, values=values: next(values) + 100 * number for name, values in given.items()}
    best = frame.BestOf(setups, higher_is_better=higher_is_better)
    assert (best(0), best(1)) == rounds
    assert best.facts("_x") == {"theirs_one_x": [1.0, 109.0], "theirs_other_x": [5.0, 102.0]}


def test_the_line_has_every_field_and_a_ratio_of_medians_above_1_if_we_are_ahead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = frame.Rounds(ours=(8.0, 1000.0, 7.0), theirs=(2.0, 0.001, 3.0))
    for name, ratio in (("serve_fill_mask", 4.0), ("serve_embed_single", 0.25)):
        frame.report(name, rounds, 2, {"fill": 0.5})
        line = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert {"ratio": ratio, "ours": 8.0, "theirs": 2.0, "rounds": 3, "fill": 0.5}.items() <= line.items()
    assert {"cpu", "cores", "threads"} <= line["machine"].keys()
    frame.report("serve_fill_mask", frame.Rounds((), ()), 2, {})
    nothing = json.loads(capsys.readouterr().out)
    assert (nothing["ratio"], nothing["ours"], nothing["theirs"]) == (None, None, None)


def test_each_benchmark_is_a_function_that_says_what_it_measures() -> None:
    for row in frame.BENCHMARKS.values():
        assert len(inspect.getdoc(resolve_name(row.run)) or "") > 200


def test_the_cost_of_a_stage_counts_its_worker_processes() -> None:
    hold = "import time; held = bytearray(200_000_000); print(flush=True); time.sleep(60)"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    with subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        resident, own = stages._memory_of_tree(process.pid)
        for child in stages.psutil.Process(process.pid).children():
            child.kill()
    assert resident > own > 200_000_000


def test_ours_trains_until_it_reaches_a_loss_measured_on_fixed_masks(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path
) -> None:
    split = ours.first_tokens(tiny_tokens, tiny_pretraining.max_length, 200)
    with ours.prepared(tiny_pretraining, 1, tiny_tokens, tiny_tokenizer) as job:
        before = ours.validation_loss(job.model, split)
        assert before == ours.validation_loss(job.model, split)
        assert before == pytest.approx(math.log(job.model.config.vocab_size), abs=0.3)
        theirs = ours.stock(job.model.eval()).eval()
        one, other = ours.losses_of_one_batch(job.model, theirs, tiny_tokens, tiny_pretraining.max_length, num_rows=4)
        assert one == pytest.approx(other, abs=1e-5)
        assert ours.validation_loss(ours.in_ours(theirs), split) == pytest.approx(before, rel=1e-6)
        passing = ours.train_until(job, lambda: ours.validation_loss(job.model, split), before - 0.05)
    assert passing.passed
    assert passing.loss <= before - 0.05
    assert 0 < passing.step < tiny_pretraining.steps


@pytest.mark.parametrize("setup", [pretrain.AS_LARGE, pretrain.SAME_ARCHITECTURE])
def test_trainer_warms_up_over_the_share_of_steps_that_is_asked(
    tmp_path: Path, tiny_pretraining: PretrainParams, setup: pretrain.Setup
) -> None:
    """Releases of transformers rename its arguments."""
    given = setup.arguments(tiny_pretraining)
    settings = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=100, **given)
    assert 1 <= settings.get_warmup_steps(100) <= 20


@pytest.mark.parametrize(("seconds", "is_clear"), [((88, 67, 111), True), ((88, 400, 290), False)])
def test_a_race_is_run_over_several_seeds_and_reports_the_p_value(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: tuple[int, ...],
    is_clear: bool,
) -> None:
    """P40: the result of one race does not predict the next."""
    params = SimpleNamespace(optimizer=SimpleNamespace(learning_rate=1e-3))
    corpus = SimpleNamespace(name="some")
    job = SimpleNamespace(setup=pretrain.AS_LARGE, corpus=corpus, params=params, num_parameters={})
    monkeypatch.setattr(sys, "argv", ["time_to_quality"])
    monkeypatch.setattr(pretrain, "_prepare", lambda *_: job)
    monkeypatch.setattr(pretrain, "_race", lambda _, seed, most: pretrain.Race(5.0, 4.9, most, seconds[seed], True))
    pretrain.as_large()
    line = json.loads(capsys.readouterr().out)
    assert line["ours_rounds"] == [*seconds]
    assert (line["p"] < 0.05) == is_clear


@pytest.mark.parametrize(
    ("flags", "told"),
    [("sse avx2 avx512f avx512_vnni", "EPYC avx512f avx512_vnni"), ("avx2 avx_vnni", "EPYC avx2 avx_vnni")],
)
def test_the_machine_is_described_with_what_makes_int8_fast(tmp_path: Path, flags: str, told: str) -> None:
    """R35: without VNNI the same benchmark gives another ratio."""
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"processor\t: 0\nmodel name\t: EPYC\nflags\t\t: {flags}\n", encoding="utf-8")
    assert frame.cpu_model(facts) == told
