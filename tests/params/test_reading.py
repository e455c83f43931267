"""Short files are completed; an error about params.yaml names the key, the given value and the expected one.

Rooms name their own fields; the user reads the keys of params.yaml that set them.
"""

import re
from operator import attrgetter
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.params.project import Params
from clozeline.params.reading import _ELSEWHERE, default_tree, in_params, read_params, renamed, with_defaults
from clozeline.system.errors import ClozelineError, DataError
from tests.make.params import PROJECT, is_knob_of, message, with_values, without_tasks

PARAMS = PROJECT / "params.yaml"


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "params.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_an_invalid_value_is_reported_with_its_key_and_what_is_expected(tmp_path: Path) -> None:
    for content, key, expected in (
        ("pretrain: {masking: {mask_rate: 20}}", "pretrain.masking.mask_rate", "less than 1"),
        ("pretrain: {validation: {every_steps: two}}", "pretrain.validation.every_steps", "a whole number"),
        ("pretrain: {masking: {protected_tokens: the}}", "pretrain.masking.protected_tokens", "a list: [one, two]"),
        ("pretrain: {optimizer: {learning_rate: .inf}}", "pretrain.optimizer.learning_rate", "a finite number"),
        ("tokenize: {existing: 3}", "tokenize.existing", "text"),
        ("finetune: {one: {kind: tagging}}", "finetune.one.data", "a value for this key"),
        ("pretrain: {recipe: no-such}", "pretrain.recipe", "a key of `recipes`: measured, standard, low-resource, dom"),
        (
            "finetune: {one: {kind: classification, data: x.csv, preset: ss2}}",
            "finetune.one.preset",
            "a preset of kind `classification`: glue, cola, sst2",
        ),
    ):
        told = message(path := written(tmp_path, f"{content}\nexport: {{models: {{}}}}\n"))
        assert f"{path}: `{key}` cannot be used" in told
        assert f"expected: {expected}" in told
        assert "Input should" not in told


def test_a_misspelt_key_or_one_of_an_earlier_version_is_named_once_with_the_right_one(tmp_path: Path) -> None:
    for content, problem, do in (
        ("pretrain: {masking: {mask_rat: 3}}", "unknown key `pretrain.masking.mask_rat`", "rename it to `mask_rate`"),
        (
            "finetune: {a: {kind: tagging, data: x, hub: {dataset: x, revison: b}}}",
            "unknown key `finetune.a.hub.revison`",
            "rename it to `revision`",
        ),
        ("recipes: {a: {validation: {max_tokens: 5}}}", "`recipes.a.validation.max_tokens` is gone", "remove it from "),
        (
            "finetune_defaults: {shared: {looks_per_epoch: 2}}",
            "`finetune_defaults.shared.looks_per_epoch` is now validations_per_epoch",
            "rename it in ",
        ),
    ):
        told = message(path := written(tmp_path, f"{content}\n"))
        assert told.startswith(f"{path}: {problem}")
        assert told.endswith(f"  do:       {do}{path if do.endswith(' ') else ''}")


def test_invalid_yaml_is_reported_with_its_file_the_line_and_the_reason(tmp_path: Path) -> None:
    for content, expected in (
        (b"seed: [1\nevaluate:\n", "line 1"),
        (b"seed: 1\nseed: 2\n", 'duplicate key "seed"'),
        (b"seed: 1\n# \xc3\xa9\xc3\xa9\nevaluate: \x07\n", "line 3: unacceptable character #x0007"),
        ("seed: 1\n# café\n".encode("latin-1"), "line 2: 'utf-8' codec can't decode byte 0xe9"),
        (b"seed: 2001-99-99\n", "month must be in 1..12"),
        (b"seed: 1\nfinetune: {one: {<<: *sst2}}\n", "line 2"),
    ):
        told = message(path := written(tmp_path, content))
        assert f"{path} is not YAML" in told
        assert expected in told.partition("given:")[2]
        assert ("`preset: NAME`" in told) == (b"*sst2" in content), "an alias of earlier versions has a successor"
        assert "<unicode string>" not in told


def test_a_missing_or_empty_file_is_called_so(tmp_path: Path) -> None:
    assert str(tmp_path.resolve()) in message(tmp_path / "params.yaml")
    assert "params.yaml is empty" in message(written(tmp_path, "# only a comment\n"))


def test_all_faults_are_reported_at_once_each_with_its_key_what_was_given_and_what_to_do(tmp_path: Path) -> None:
    content = """
        pretrain: {masking: {mask_rat: 0.3}, steps: true, recipe: nosuch}
        recipes: {domain-adaptation: {masking: {mask_rte: 0.1}}}
        finetune: {one: {kind: tagging, data: x, preset: squad}}
        preprocess: {min_characters: 99999}
        export: {models: {}}
    """
    keys = (
        *("pretrain.masking.mask_rat", "recipes.domain-adaptation.masking.mask_rte", "pretrain.steps"),
        *("pretrain.recipe", "finetune.one.preset", "preprocess.min_characters` and `preprocess.max_characters"),
    )
    told = message(path := written(tmp_path, content))
    problems, given, expected, do = re.split(r"\n  (?:given|expected|do): +", told)
    assert f"{path} has {len(keys)} faults" in problems
    assert [key for key in keys if f"`{key}`" not in problems] == []
    assert "preprocess.min_characters: 99999, preprocess.max_characters: 20000" in given
    for part in (problems, given, expected, do):
        assert re.findall(r"(?m)^ *(\d)\. ", part) == [*map(str, range(1, len(keys) + 1))]


def test_params_and_defaults_do_not_change_and_are_the_projects_own() -> None:
    own, whole = YAML(typ="safe").load(PARAMS), default_tree()
    assert {name: section for name, section in whole.items() if name in own} == own
    assert whole.keys() - own.keys() == {"recipes", "presets"}
    whole["pretrain"]["model"]["size"] = "large"
    assert default_tree()["pretrain"]["model"]["size"] == "mini"
    params: Params = read_params(PARAMS)
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 1


def test_a_short_file_is_completed_and_its_budget_replaces_that_of_the_defaults(tmp_path: Path) -> None:
    params = read_params(written(tmp_path, "pretrain: {steps: 500, masking: {unit: word}}\n"))
    whole = read_params(PARAMS)
    assert (params.pretrain.steps, params.pretrain.masking.unit) == (500, "word")
    masking = params.pretrain.masking.model_copy(update={"unit": "token"})
    assert params.pretrain.model_copy(update={"steps": 6300, "epochs": 50, "masking": masking}) == whole.pretrain
    assert (params.tokenize, params.finetune, params.export) == (whole.tokenize, whole.finetune, whole.export)
    params = read_params(written(tmp_path, "pretrain: {epochs: 3}\n"))
    assert (params.pretrain.steps, params.pretrain.tokens, params.pretrain.epochs) == (None, None, 3)


def test_chosen_names_replace_those_of_the_defaults_except_for_layers() -> None:
    one = {"kind": "classification", "data": "mood.csv"}
    own = {"finetune": {"mood": one}, "export": {"models": {"words": "encoder"}}, "recipes": {"mine": {"steps": 5}}}
    found, usual = with_defaults({**own, "finetune_defaults": {"shared": {"epochs": 1}}}), default_tree()
    assert (found["finetune"], found["export"]["models"]) == (own["finetune"], {"words": "encoder"})
    assert set(found["recipes"]) == {"mine", *usual["recipes"]}
    assert set(found["finetune_defaults"]) == set(usual["finetune_defaults"])


def test_a_preset_or_recipe_of_ones_own_is_taken_by_its_name_and_replaces_keys_of_its_namesake(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "finetune: {one: {data: x.conll, preset: mine}, two: {data: my, preset: sst2}}\n"
        "presets: {mine: {kind: tagging, tags_field: tags}, sst2: {hub: {dataset: my/copy}}}\n"
        "export: {models: {encoder: encoder}}\n",
    )
    one, two = read_params(path).finetune.values()
    assert (one.kind, one.tags_field) == ("tagging", "tags")
    assert (two.hub.dataset, two.hub.revision, two.text_field) == ("my/copy", None, "sentence")
    for recipe, mask_share in (("mine", 0.8), ("low-resource", 0.9)):
        own = f"recipes: {{{recipe}: {{masking: {{mask_rate: 0.25}}}}}}\npretrain: {{recipe: {recipe}}}"
        masking = read_params(written(tmp_path, own)).pretrain.masking
        assert (masking.mask_rate, masking.mask_share) == (0.25, mask_share)


def test_the_docs_name_every_preset() -> None:
    page = (PROJECT / "docs" / "tasks.md").read_text(encoding="utf-8")
    listed = page[page.index("The presets are") : page.index("(question_answering)")]
    assert set(re.findall("`([^`]+)`", listed)) == set(default_tree()["presets"]) - {"glue"}


MASKS = ("mask_rate", "final_mask_rate", "mask_share", "random_share", "keep_share")
MEASURED_RATE = read_params(PARAMS).pretrain.optimizer.learning_rate


def test_a_recipe_has_the_masks_and_the_dropout_that_its_name_stands_for(tmp_path: Path) -> None:
    for recipe, masks, head_dropout, rate in (
        ("standard", (0.15, None, 0.8, 0.1, 0.1), 0.1, MEASURED_RATE),
        ("low-resource", (0.2, None, 0.9, 0.05, 0.05), 0.15, MEASURED_RATE),
        ("domain-adaptation", (0.1, None, 0.9, 0.05, 0.05), 0.05, 1e-5),
    ):
        params = read_params(with_values(tmp_path, recipe=recipe)).pretrain
        assert attrgetter(*MASKS)(params.masking) == masks
        assert params.model.head_dropout == head_dropout
        assert (params.schedule.decay, params.schedule.warmup_fraction) == ("cosine", 0.1)
        assert params.optimizer.learning_rate == rate
        assert (params.optimizer.weight_decay == 0.001) == (recipe == "domain-adaptation")


def test_a_published_recipe_has_its_published_values(tmp_path: Path) -> None:
    for recipe, rows, length, rate, beta2 in (
        ("bert", 256, 512, 1e-4, 0.999),  # Devlin et al. 2018, appendix A.2
        ("roberta", 8192, 512, 6e-4, 0.98),  # Liu et al. 2019, table 9
        ("24-hour-bert", 4096, 128, 2e-3, 0.98),  # Izsak et al. 2021, section 4
    ):
        params = read_params(with_values(tmp_path, recipe=recipe)).pretrain
        optimizer = params.optimizer
        assert (params.batch_tokens, params.max_length) == (rows * length, length)
        assert (optimizer.kind, optimizer.learning_rate) == ("adamw", rate)
        assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay) == (0.9, beta2, 1e-6, 0.01)
        assert (params.masking.mask_rate, params.masking.final_mask_rate) == (0.15, None)
        assert (params.model.dropout, params.model.attention_dropout) == (0.1, 0.1)
        assert (params.schedule.decay, params.schedule.final_fraction) == ("linear", 0.0)


def error(do: str, problem: str = "the cup is empty", given: object = "air") -> DataError:
    return DataError(problem, given=given, expected="tea", do=do)


def test_a_field_is_shown_as_its_params_key_and_the_file_follows_the_last_key() -> None:
    told = in_params(
        error("correct `source.path` or `source.pattern`, not `cup`", "`min_characters` of tea", "`source.path`: x"),
        *(PARAMS, "preprocess", read_params(PARAMS).preprocess),
    )
    assert type(told) is DataError
    assert told.problem == "`preprocess.min_characters` of tea"
    assert told.given == "`preprocess.source.path`: x"
    assert told.do == "correct `preprocess.source.path` or `preprocess.source.pattern` in params.yaml, not `cup`"
    assert renamed(error("see `source.path` and `more`"), {"source.path": "--text"}.get).do == "see `--text` and `more`"


def test_advice_names_the_keys_of_the_fields_and_keeps_their_values_and_other_words() -> None:
    """In the other parts of an error, the name of another section's key may be a label or a word of the text."""
    for told, key in (
        ("set `gradient_checkpointing: true`", "set `pretrain.gradient_checkpointing: true` in params.yaml"),
        ("set `stochastic_depth: 0.0`", "set `pretrain.model.stochastic_depth: 0.0` in params.yaml"),
        ("leave it out of `models`", "leave it out of `export.models` in params.yaml"),
        ("see `start.x`", "see `pretrain.start.x` in params.yaml"),  # under a null section
        *((told, told) for told in ("pour", "take `cup`", "take `model.cup` or `kind.of`", "`pretrain.start` it is")),
    ):
        problem = "label `models` has no words"
        changed = in_params(error(told, problem, given=5), PARAMS, "pretrain", read_params(PARAMS).pretrain)
        assert (changed.do, changed.given, changed.problem) == (key, 5, problem)


def test_every_key_of_another_section_exists_in_params() -> None:
    assert [name for name in _ELSEWHERE.values() if not is_knob_of(Params, name)] == []


@pytest.mark.parametrize(
    ("command", "knobs", "told"),
    [
        (
            "stage snapshot source=missing forgotten=forgotten.lock out=data/raw",
            {},
            "correct `preprocess.source.path` in params.yaml (a DVC-tracked",
        ),
        ("plan --no-timing", {"family": "longformer"}, "`pretrain.model.stochastic_depth` needs pre-norm layers"),
        ("plan --no-timing", {"start": "no/such/folder"}, "`pretrain.start` in params.yaml"),
    ],
)
def test_a_verb_reports_the_keys_of_params_yaml(
    command: str, knobs: dict[str, str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no/such/folder").mkdir(parents=True)
    without_tasks(with_values(tmp_path, stochastic_depth="0.1", **knobs))
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, command.split()).exception
    assert isinstance(error, ClozelineError)
    assert told in str(error)
