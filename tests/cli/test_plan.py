"""`clozeline plan` shows the figures of params.yaml and of all families, and advises a choice."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.testing import CliRunner

from clozeline.cli import app, plan_tables
from clozeline.cli import plan as plan_module
from clozeline.cli.plan import plan as verb
from clozeline.params.editing import edit
from clozeline.params.model import SIZE_NAMES
from clozeline.params.reading import read_params
from clozeline.planning.costs import ParameterCount, outline
from clozeline.planning.timing import Footprint
from clozeline.records.reading.tokens import INFO_NAME, SpecialIds, SplitInfo, TokensInfo
from clozeline.system.errors import ParamsError


def told(*arguments: str) -> str:
    return CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False).stdout


def plan(*arguments: str) -> dict[str, str]:
    """Run `clozeline plan`; return the last column of each line by the text before it."""
    rows = (line.rsplit(maxsplit=1) for line in told(*arguments).splitlines() if len(line.split()) > 1)
    return {" ".join(name.split()): last for name, last in rows}


def test_the_figures_match_the_params_and_options_override_them(project: Path, small_encoder: Path) -> None:
    params = read_params(project / "params.yaml")
    count = ParameterCount.of(outline(params.pretrain.model, "mlm", params.tokenize.vocab_size))
    shown = plan("--no-timing")
    assert shown["total"] == f"{count.total:,}"
    assert shown[f"weights in fp32 {plan_tables.size_of(count.fp32_bytes).split()[0]}"] == "MiB"
    assert not any("tokens/s" in name for name in shown)
    options = "--family bert --size tiny --objective clm --vocab-size 1000 --max-length 600 --no-timing"
    assert told(*options.split()).startswith(
        "bert tiny (4 layers × 256, 4 heads, MLP width 1,024), clm, vocabulary of 1,000, rows of 600 tokens\n"
    )
    literal, _ = get_args(get_type_hints(verb)["size"])
    assert get_args(literal) == SIZE_NAMES
    edit(project / "params.yaml", [("pretrain.start", str(small_encoder))], "the test")
    vocab_size = json.loads((small_encoder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    assert f"vocabulary of {vocab_size:,}, rows of 64" in told("--no-timing"), "that of the checkpoint"


@pytest.mark.slow
def test_a_few_steps_are_timed(project: Path) -> None:
    shown = plan("--vocab-size", "300")
    assert float(shown["tokens/s here, measured"].replace(",", "")) > 0
    assert any(name.startswith("ETA of the budget") for name in shown)


@pytest.mark.slow
def test_the_zoo_has_a_plain_text_line_for_each_family_and_size(project: Path) -> None:
    shown = told("--all", "--vocab-size", "300", "--max-length", "64")
    rows = [line.split() for line in shown.splitlines()[2:]]
    assert len([row for row in rows if row]) == 60  # ELECTRA's five sizes count twice: alone and as pairs
    shapes = {tuple(row[:2]): " ".join(row[2:6]) for row in rows if row}
    assert shapes["modernbert", "mini"] == "2 layers × 96"
    assert shapes["distilbert", "base"] == "6 layers × 768"
    assert not set("│─┃━") & set(shown)


def test_the_chooser_needs_no_project_and_ends_with_lines_for_params_yaml() -> None:
    shown = told("--for", "long", "--for", "efficiency")
    assert "max_position_embeddings: 8192" in shown
    assert "efficiency recommends another" in shown


def test_a_custom_encoder_is_imported_from_the_project_folder(project: Path) -> None:
    """This holds for the installed script too, for which Python does not look for modules in the current folder."""
    (project / "mine.py").write_text("from torch import nn\n\n\ndef build(params, ids):\n    return nn.Linear(1, 1)\n")
    as_script = [sys.executable, "-P", "-c", "from clozeline.cli import main; main()"]
    done = subprocess.run([*as_script, "plan", "--family", "mine:build"], capture_output=True, text=True)
    assert "`mine:build` gives Linear" in done.stderr
    assert done.returncode == ParamsError.exit_code


def test_options_that_are_invalid_or_without_effect_are_refused_by_name(project: Path) -> None:
    for options, problem in (
        (
            "--no-timing --family bort",
            "these options cannot be used with params.yaml: family: bort; expected: one of: modernbert, bert",
        ),
        ("--serving --max-length 128 --no-timing", "--serving cannot be combined with --max-length and --no-timing"),
        ("--all --family bert --size mini", "--all cannot be combined with --family and --size"),
        ("--for long --family bert", "--for cannot be combined with --family"),
        ("--serving --all", "only one table can be made at a time"),
        ("--published x --size mini", "--published cannot be combined with --size"),
        ("--serving --family longformer", "longformer cannot be served: it has no export to ONNX"),
    ):
        error = CliRunner().invoke(app, ["plan", *options.split()]).exception
        assert isinstance(error, ParamsError)
        assert error.problem.startswith(problem)
        if "family bort" in options or "longformer" in options:
            assert "modernbert" in str(error)
            assert [word for word in ("export.models", "/tmp") if word in str(error)] == []


def test_a_budget_in_epochs_is_counted_in_the_existing_tokens(project: Path) -> None:
    path = project / "params.yaml"
    edit(path, [("pretrain.steps", None), ("pretrain.epochs", 2.5)], "the test")
    params = read_params(path).pretrain
    with pytest.raises(ParamsError, match=r"(?s)epochs: 2.5.*dvc repro tokenize"):
        plan_module.with_budget_in_tokens(params)
    split = SplitInfo(num_documents=1, num_tokens=1000, text_bytes=1, shards=())
    ids = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, every=(0, 1, 2, 3, 4))
    info = TokensInfo.of(vocab_size=64, tokenizer_sha256="", special_ids=ids, splits={"train": split})
    (project / "data/tokens").mkdir(parents=True)
    info.write(project / "data/tokens" / INFO_NAME)
    assert plan_module.with_budget_in_tokens(params).tokens == 2500


@pytest.mark.slow
def test_serving_cost_is_that_of_graphs_of_every_precision_without_int8_for_an_empty_ladder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_alone = "clozeline.planning.serving._cost"
    monkeypatch.setattr(size_alone, lambda graph, *given: Footprint(graph.ByteSize(), 1, 1, 1))

    def sizes() -> dict[str, str]:
        rows = [line.split() for line in told("--serving", "--family", "bert", "--size", "mini").splitlines()]
        return {row[1]: row[2] for row in rows if row[:1] == ["bert"]}

    assert sizes() == {"fp32": "4.1", "fp16": "2.1", "INT8": "1.1"}, "as docs/planning.md says"
    edit(project / "params.yaml", [("export.ladder", [])], "the test")
    assert sizes() == {"fp32": "4.1", "fp16": "2.1"}
