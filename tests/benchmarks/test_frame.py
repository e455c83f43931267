"""The frame of the benchmarks measures correctly; `make bench` takes the measurements themselves."""

import ast
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import TrainingArguments

import time_to_quality
import time_to_quality_same_architecture
from clozeline.params.pretraining import PretrainParams
from comparison import frame, ours, quality, stages

FOLDER = Path(__file__).parent
NAMES = sorted([*frame.BENCHMARKS, "finetune_table"])  # the table has no other side


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


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


@pytest.mark.parametrize(("higher_is_better", "ratio"), [(True, 4.0), (False, 0.25)])
def test_the_ratio_of_medians_exceeds_1_if_we_are_faster(higher_is_better: bool, ratio: float) -> None:
    rounds = frame.Rounds(ours=(8.0, 1000.0, 7.0), theirs=(2.0, 0.001, 3.0))
    assert rounds.ratio(higher_is_better=higher_is_better) == ratio


def test_a_second_measurement_gets_its_own_keys_in_the_result_line() -> None:
    rounds = frame.Rounds(ours=(4.0, 6.0), theirs=(2.0, 2.0))
    assert rounds.facts("in_requests", higher_is_better=True) == {
        "ratio_in_requests": 2.5,
        "ours_rounds_in_requests": [4.0, 6.0],
        "theirs_rounds_in_requests": [2.0, 2.0],
    }


def test_the_result_line_has_every_required_field(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = frame.Rounds(ours=(4.0, 6.0), theirs=(2.0, 2.0))
    frame.report("gpu_pretrain", rounds, 2, {"fill": 0.5})
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"name", "ratio", "goal", "ours", "theirs", "unit", "machine", "rounds", "fill"} <= line.keys()
    assert (line["ratio"], line["ours"], line["theirs"], line["rounds"]) == (2.5, 5.0, 2.0, 2)
    assert {"cpu", "cores", "threads"} <= line["machine"].keys()


def test_without_rounds_the_ratio_is_null() -> None:
    line = frame.line_of("gpu_pretrain", frame.Rounds((), ()), 2, {})
    assert (line["ratio"], line["ours"], line["theirs"]) == (None, None, None)


def test_an_unknown_name_is_answered_with_the_known_names() -> None:
    answer = run_bench("pretrain_thruput")
    assert answer.returncode == 2
    assert f"'pretrain_thruput'; there are: {', '.join(NAMES)}" in answer.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_has_a_docstring_and_a_main(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    assert len(ast.get_docstring(tree) or "") > 200
    assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


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

        def validation() -> float:
            return ours.validation_loss(job.model, split)

        before = validation()
        assert before == validation()
        assert before == pytest.approx(math.log(job.model.config.vocab_size), abs=0.3)
        passing = ours.train_until(job, validation, before - 0.05)
    assert passing.passed
    assert passing.loss <= before - 0.05
    assert 0 < passing.step <= tiny_pretraining.steps


def test_a_batch_has_the_same_loss_in_our_model_and_in_the_stock_model_of_its_weights(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path
) -> None:
    with ours.prepared(tiny_pretraining, 1, tiny_tokens, tiny_tokenizer) as job:
        model, theirs = job.model.eval(), ours.stock(job.model).eval()
        one, other = ours.losses_of_one_batch(model, theirs, tiny_tokens, tiny_pretraining.max_length, num_rows=4)
        assert one == pytest.approx(other, abs=1e-5)
        split = ours.first_tokens(tiny_tokens, tiny_pretraining.max_length, 200)
        back = ours.validation_loss(ours.in_ours(theirs), split)
        assert back == pytest.approx(ours.validation_loss(model, split), rel=1e-6)


@pytest.mark.parametrize("module", [time_to_quality, time_to_quality_same_architecture])
def test_trainer_accepts_the_arguments_of_the_comparison(
    tmp_path: Path, tiny_pretraining: PretrainParams, module: ModuleType
) -> None:
    """Releases of transformers rename them."""
    arguments = module.SETUP.arguments(tiny_pretraining)
    settings = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=100, **arguments)
    assert 1 <= settings.get_warmup_steps(100) <= 20


@pytest.mark.parametrize(
    ("seconds", "is_clear"), [((88, 67, 111), True), ((88, 400, 290), False), ((300, 300, 300), False)]
)
def test_a_race_is_run_over_several_seeds_and_reports_the_p_value(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[int, ...], is_clear: bool
) -> None:
    """P40: the result of one race does not predict the next."""
    corpus, optimizer = SimpleNamespace(name="some"), SimpleNamespace(learning_rate=1e-3)
    job = SimpleNamespace(
        setup=SimpleNamespace(name="time_to_quality", learning_rate=1e-3),
        corpus=corpus,
        params=SimpleNamespace(optimizer=optimizer),
        num_parameters={},
    )
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(sys, "argv", ["time_to_quality"])
    monkeypatch.setattr(quality, "_prepare", lambda *_: job)
    monkeypatch.setattr(quality, "_race", lambda _, seed, most: quality.Race(5.0, 4.9, most, seconds[seed], True))
    monkeypatch.setattr(quality, "report", lambda *line: told.append(line))
    quality.main(job.setup, "Some race.")
    ((_, rounds, _, facts),) = told
    assert rounds.ours == seconds
    assert (facts["p"] < 0.05) == is_clear
    assert quality._facts(job, [quality.Race(5.0, 4.9, 300, 1, True)])["p"] is None


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("sse avx2 avx512f avx512_vnni", "EPYC avx512f avx512_vnni"),
        ("avx2 avx_vnni", "EPYC avx2 avx_vnni"),
        ("avx2", "EPYC avx2"),
    ],
)
def test_the_machine_is_described_with_what_makes_int8_fast(tmp_path: Path, flags: str, told: str) -> None:
    """R35: without VNNI the same benchmark gives another ratio."""
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"processor\t: 0\nmodel name\t: EPYC\nflags\t\t: {flags}\n", encoding="utf-8")
    assert frame.cpu_model(facts) == told
