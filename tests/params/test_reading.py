"""Short files are completed; an error about params.yaml names the key, the given value and the expected one.

Rooms name their own fields; the user reads the keys of params.yaml that set them.
"""

import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.params.pretraining import laid_over
from clozeline.params.project import Params
from clozeline.params.reading import _ELSEWHERE, default_tree, in_params, read_params, renamed, with_defaults
from clozeline.records.record import leaves
from clozeline.system.errors import ClozelineError, DataError
from tests.make.params import PROJECT, is_knob_of, message, with_values, without_tasks


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "params.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("content", "key", "expected"),
    [
        ("pretrain: {masking: {mask_rate: 20}}", "pretrain.masking.mask_rate", "less than 1"),
        ("pretrain: {validation: {every_steps: two}}", "pretrain.validation.every_steps", "a whole number"),
        ("pretrain: {optimizer: {beta1: high}}", "pretrain.optimizer.beta1", "a number"),
        ("pretrain: {steps: true}", "pretrain.steps", "a number"),
        ("pretrain: {compile: maybe}", "pretrain.compile", "true or false"),
        ("pretrain: {masking: {protected_tokens: the}}", "pretrain.masking.protected_tokens", "a list: [one, two]"),
        ("pretrain: {optimizer: {learning_rate: .inf}}", "pretrain.optimizer.learning_rate", "a finite number"),
        ("evaluate: yes", "evaluate", "a section: indented lines of `key: value`"),
        ("tokenize: {existing: 3}", "tokenize.existing", "text"),
        ("finetune: {one: {kind: tagging}}", "finetune.one.data", "a value for this key"),
        ("pretrain: {recipe: {a: b}}", "pretrain.recipe", "text"),
        ("pretrain: {recipe: no-such}", "pretrain.recipe", "a key of `recipes`: measured, standard, low-resource, dom"),
    ],
)
def test_an_invalid_value_is_reported_with_its_key_and_what_is_expected(
    tmp_path: Path, content: str, key: str, expected: str
) -> None:
    told = message(path := written(tmp_path, f"{content}\nexport: {{models: {{}}}}\n"))
    assert f"{path}: `{key}` cannot be used" in told
    assert f"expected: {expected}" in told
    assert "Input should" not in told


@pytest.mark.parametrize(
    ("content", "key", "right"),
    [
        ("pretrain: {stepz: 50}", "pretrain.stepz", "steps"),
        ("pretrain: {masking: {mask_rat: 0.3}}", "pretrain.masking.mask_rat", "mask_rate"),
        ("preprocess: {sorce: {kind: files}}", "preprocess.sorce", "source"),
        ("finetune_defaults: {shared: {mx_length: 3}}", "finetune_defaults.shared.mx_length", "max_length"),
        ("finetune_defaults: {clasification: {}}", "finetune_defaults.clasification", "classification"),
        ("recipes: {mine: {masking: {mask_rat: 0.1}}}", "recipes.mine.masking.mask_rat", "mask_rate"),
        (
            "finetune: {a: {kind: tagging, data: x, hub: {dataset: x, revison: b}}}",
            "finetune.a.hub.revison",
            "revision",
        ),
    ],
)
def test_a_misspelt_key_is_named_once_with_the_right_spelling(
    tmp_path: Path, content: str, key: str, right: str
) -> None:
    told = message(path := written(tmp_path, f"{content}\n"))
    assert told.startswith(f"{path}: unknown key `{key}`\n")
    assert f"  given:    {key.rpartition('.')[2]}: " in told
    assert told.endswith(f"  do:       rename it to `{right}`")


def test_contradicting_keys_are_reported_without_their_common_section(tmp_path: Path) -> None:
    told = message(written(tmp_path, "preprocess: {min_characters: 99999}"))
    assert "given:    preprocess.min_characters: 99999, preprocess.max_characters: 20000\n" in told
    assert "do:       set `preprocess.min_characters` or `preprocess.max_characters`" in told


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"seed: [1\nevaluate:\n", "line 1"),
        (b"seed: 1\nseed: 2\n", 'duplicate key "seed"'),
        (b"seed: 1\nseed: 2\n", "line 2"),
        (b"seed: 1\n# \xc3\xa9\xc3\xa9\nevaluate: \x07\n", "line 3: unacceptable character #x0007"),
        ("seed: 1\n# café\n".encode("latin-1"), "line 2: 'utf-8' codec can't decode byte 0xe9"),
        ("seed: 1\n".encode("utf-16"), "line 1: 'utf-8' codec can't decode byte 0xff"),
        ("seed: 1\n".encode("utf-16-le"), "line 1: unacceptable character #x0000"),
        (b"seed: 2001-99-99\n", "month must be in 1..12"),
        (b"seed: 1\nfinetune: {one: {<<: *sst2}}\n", "line 2"),
    ],
)
def test_invalid_yaml_is_reported_with_its_file_the_line_and_the_reason(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    told = message(path := written(tmp_path, content))
    assert f"{path} is not YAML" in told
    assert expected in told.partition("given:")[2]
    assert ("`preset: NAME`" in told) == (b"*sst2" in content), "an alias of earlier versions has a successor"
    assert "<unicode string>" not in told
    assert "suppress" not in told


@pytest.mark.parametrize("content", ["", "# only a comment\n"])
def test_an_empty_file_is_called_empty(tmp_path: Path, content: str) -> None:
    assert f"{tmp_path / 'params.yaml'} is empty" in message(written(tmp_path, content))


def test_a_missing_file_is_reported_with_its_expected_location(tmp_path: Path) -> None:
    assert str(tmp_path.resolve()) in message(tmp_path / "params.yaml")


def test_all_faults_are_reported_at_once_each_with_its_key_what_was_given_and_what_to_do(tmp_path: Path) -> None:
    content = """
        pretrain: {masking: {mask_rat: 0.3}, steps: true, recipe: nosuch}
        evaluate: {num_bootstrap_samples: seven}
        recipes: {domain-adaptation: {masking: {mask_rte: 0.1}}}
        finetune_defaults: {shared: {warmup_fraction: 3}}
        finetune: {one: {kind: tagging, data: x, preset: squad}}
        preprocess: {min_characters: 99999}
        export: {models: {}}
    """
    keys = (
        *("pretrain.masking.mask_rat", "recipes.domain-adaptation.masking.mask_rte", "pretrain.steps"),
        *("pretrain.recipe", "evaluate.num_bootstrap_samples", "finetune_defaults.shared.warmup_fraction"),
        *("finetune.one.preset", "preprocess.min_characters` and `preprocess.max_characters"),
    )
    told = message(path := written(tmp_path, content))
    problems, given, expected, do = re.split(r"\n  (?:given|expected|do): +", told)
    assert f"{path} has {len(keys)} faults" in problems
    assert [key for key in keys if f"`{key}`" not in problems] == []
    for part in (problems, given, expected, do):
        assert re.findall(r"(?m)^ *(\d)\. ", part) == [*map(str, range(1, len(keys) + 1))]


def test_params_cannot_be_changed_after_reading() -> None:
    params: Params = read_params(PROJECT / "params.yaml")
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 1


@pytest.mark.parametrize(
    ("content", "became"),
    [
        ("contract: {max_script_shift: 0.1}", "`contract.max_script_shift` is gone: the limit is always 0.1"),
        ("pretrain: {validation: {max_tokens: 5}}", "`pretrain.validation.max_tokens` is gone: "),
        ("recipes: {mine: {validation: {max_tokens: 5}}}", "`recipes.mine.validation.max_tokens` is gone: "),
        ("export: {half: true}", "`export.half` is gone: "),
        (
            "finetune_defaults: {shared: {looks_per_epoch: 2}}",
            "`finetune_defaults.shared.looks_per_epoch` is now validations_per_epoch",
        ),
        ("export: {gates: {min_metric_items: 9}}", "`export.gates.min_metric_items` is gone: the limit is always 200"),
        *(
            (f"{section}: {{large_file_mb: 1000}}", f"`{section}.large_file_mb` is gone: let clones share DVC's cache")
            for section in ("preprocess", "tokenize")
        ),
    ],
)
def test_a_key_of_an_earlier_version_is_refused_with_what_became_of_it(
    tmp_path: Path, content: str, became: str
) -> None:
    told = message(path := written(tmp_path, content))
    assert became in told
    assert (f"rename it in {path}" if "is now" in became else f"remove it from {path}") in told


def test_the_defaults_are_the_projects_own_params() -> None:
    own, whole = YAML(typ="safe").load(PROJECT / "params.yaml"), default_tree()
    assert {name: section for name, section in whole.items() if name in own} == own
    assert whole.keys() - own.keys() == {"recipes", "presets"}


def test_a_change_of_the_returned_defaults_changes_no_later_ones() -> None:
    default_tree()["pretrain"]["model"]["size"] = "large"
    assert default_tree()["pretrain"]["model"]["size"] == "mini"


def test_a_short_file_is_completed(tmp_path: Path) -> None:
    params = read_params(written(tmp_path, "pretrain: {steps: 500, masking: {unit: word}}\n"))
    whole = read_params(PROJECT / "params.yaml")
    assert (params.pretrain.steps, params.pretrain.masking.unit) == (500, "word")
    masking = params.pretrain.masking.model_copy(update={"unit": "token"})
    assert params.pretrain.model_copy(update={"steps": 6300, "epochs": 50, "masking": masking}) == whole.pretrain
    assert (params.tokenize, params.finetune, params.export) == (whole.tokenize, whole.finetune, whole.export)


def test_a_budget_replaces_the_one_of_the_defaults(tmp_path: Path) -> None:
    params = read_params(written(tmp_path, "pretrain: {epochs: 3}\n")).pretrain
    assert (params.steps, params.tokens, params.epochs) == (None, None, 3)


@pytest.mark.parametrize(
    ("own", "names"),
    [
        ({"export": {"models": {"words": "encoder"}}}, {("export", "models"): {"words"}}),
        ({"finetune": {"mood": {"kind": "classification", "data": "mood.csv"}}}, {("finetune",): {"mood"}}),
        ({"recipes": {"mine": {"steps": 5}}}, {("recipes",): {"mine", *default_tree()["recipes"]}}),
        (
            {"finetune_defaults": {"shared": {"epochs": 1}}},
            {("finetune_defaults",): set(default_tree()["finetune_defaults"])},
        ),
    ],
)
def test_chosen_names_replace_those_of_the_defaults_except_for_layers(own: Any, names: dict[Any, set[str]]) -> None:
    whole = with_defaults(own)
    for place, expected in names.items():
        found = whole
        for name in place:
            found = found[name]
        assert set(found) == expected


def short(folder: Path, tasks: str) -> Path:
    return written(folder, f"finetune:\n  one: {tasks}\nexport: {{models: {{encoder: encoder}}}}\n")


def test_a_task_of_a_short_file_takes_a_preset_by_its_name_and_its_own_values_win(tmp_path: Path) -> None:
    path = short(tmp_path, "{data: corpus.lock, preset: sst2, metric: matthews}")
    task = read_params(path).finetune["one"]
    assert (task.kind, task.hub.subset) == ("classification", "sst2")
    assert (task.text_field, task.metric) == ("sentence", "matthews")


def test_a_preset_of_ones_own_is_taken_by_its_name_and_replaces_keys_of_its_namesake(tmp_path: Path) -> None:
    presets = "presets: {mine: {kind: tagging, tags_field: tags}, sst2: {hub: {dataset: my/copy}}}"
    path = short(tmp_path, f"{{data: x.conll, preset: mine}}\n  two: {{data: my, preset: sst2}}\n{presets}")
    tasks = read_params(path).finetune
    assert (tasks["one"].kind, tasks["one"].tags_field) == ("tagging", "tags")
    two = tasks["two"]
    assert (two.hub.dataset, two.hub.revision, two.text_field) == ("my/copy", None, "sentence")


@pytest.mark.parametrize(
    ("task", "known"),
    [
        ("{kind: classification, data: x.csv, preset: ss2}", "kind `classification`: glue, cola, sst2"),
        ("{kind: tagging, data: corpus.lock, preset: sst2}", "kind `tagging`: conll2003\n"),
    ],
)
def test_a_preset_that_is_unknown_or_of_another_kind_is_refused(tmp_path: Path, task: str, known: str) -> None:
    told = message(short(tmp_path, task))
    assert "`finetune.one.preset` cannot be used" in told
    assert f"a preset of {known}" in told


def test_the_docs_name_every_preset() -> None:
    page = (PROJECT / "docs" / "tasks.md").read_text(encoding="utf-8")
    listed = page[page.index("The presets are") : page.index("(question_answering)")]
    assert set(re.findall("`([^`]+)`", listed)) == set(default_tree()["presets"]) - {"glue"}


def recipe_names() -> list[str]:
    return list(default_tree()["recipes"])


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_overrides_values_of_pretrain(tmp_path: Path, recipe: str) -> None:
    params = read_params(with_values(tmp_path, recipe=recipe))
    for key, value in leaves(params.recipes[recipe]):
        assert attrgetter(key)(params.pretrain) == value
    assert params.pretrain.recipe == recipe


def test_a_partial_section_keeps_the_other_values_of_the_base() -> None:
    beneath = {"masking": {"mask_rate": 0.3, "unit": "word"}, "seed": 1}
    laid = laid_over(beneath, {"masking": {"mask_rate": 0.1}})
    assert laid == {"masking": {"mask_rate": 0.1, "unit": "word"}, "seed": 1}
    assert beneath["masking"] == {"mask_rate": 0.3, "unit": "word"}, "the original values stay unchanged"


@pytest.mark.parametrize(
    ("recipe", "mask_rate", "shares", "head_dropout"),
    [
        ("standard", 0.15, (0.8, 0.1, 0.1), 0.1),
        ("low-resource", 0.2, (0.9, 0.05, 0.05), 0.15),
        ("domain-adaptation", 0.1, (0.9, 0.05, 0.05), 0.05),
    ],
)
def test_a_recipe_has_the_masks_and_the_dropout_that_its_name_stands_for(
    tmp_path: Path, recipe: str, mask_rate: float, shares: tuple[float, ...], head_dropout: float
) -> None:
    params = read_params(with_values(tmp_path, recipe=recipe)).pretrain
    masking = params.masking
    assert (masking.mask_rate, masking.final_mask_rate) == (mask_rate, None)
    assert (masking.mask_share, masking.random_share, masking.keep_share) == shares
    assert params.model.head_dropout == head_dropout
    assert (params.schedule.decay, params.schedule.warmup_fraction) == ("cosine", 0.1)


def test_domain_adaptation_alone_lowers_the_rate_of_the_family(tmp_path: Path) -> None:
    params = {name: read_params(with_values(tmp_path, recipe=name)).pretrain for name in recipe_names()}
    rate = params["measured"].optimizer.learning_rate
    assert params["standard"].optimizer.learning_rate == params["low-resource"].optimizer.learning_rate == rate
    adapted = params["domain-adaptation"].optimizer
    assert (adapted.learning_rate, adapted.weight_decay) == (1e-5, 0.001)


@pytest.mark.parametrize(
    ("recipe", "rows", "length", "rate", "beta2"),
    [
        ("bert", 256, 512, 1e-4, 0.999),  # Devlin et al. 2018, appendix A.2
        ("roberta", 8192, 512, 6e-4, 0.98),  # Liu et al. 2019, table 9
        ("24-hour-bert", 4096, 128, 2e-3, 0.98),  # Izsak et al. 2021, section 4
    ],
)
def test_a_published_recipe_has_its_published_values(
    tmp_path: Path, recipe: str, rows: int, length: int, rate: float, beta2: float
) -> None:
    params = read_params(with_values(tmp_path, recipe=recipe)).pretrain
    optimizer = params.optimizer
    assert (params.batch_tokens, params.max_length) == (rows * length, length)
    assert (optimizer.kind, optimizer.learning_rate) == ("adamw", rate)
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay) == (0.9, beta2, 1e-6, 0.01)
    assert (params.masking.mask_rate, params.masking.final_mask_rate) == (0.15, None)
    assert (params.model.dropout, params.model.attention_dropout) == (0.1, 0.1)
    assert (params.schedule.decay, params.schedule.final_fraction) == ("linear", 0.0)


def test_a_recipe_of_ones_own_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, "recipes: {mine: {masking: {mask_rate: 0.25}}}\npretrain: {recipe: mine}")
    params = read_params(path)
    assert (params.pretrain.masking.mask_rate, params.pretrain.masking.final_mask_rate) == (0.25, 0.15)
    assert set(params.recipes) == {"mine", *recipe_names()}


def test_values_under_the_name_of_a_recipe_are_laid_over_it(tmp_path: Path) -> None:
    path = written(tmp_path, "recipes: {low-resource: {masking: {mask_rate: 0.25}}}\npretrain: {recipe: low-resource}")
    masking = read_params(path).pretrain.masking
    assert (masking.mask_rate, masking.mask_share) == (0.25, 0.9)


PARAMS = PROJECT / "params.yaml"


def error(do: str, problem: str = "the cup is empty", given: object = "air") -> DataError:
    return DataError(problem, given=given, expected="tea", do=do)


def test_a_field_is_shown_as_its_params_key_and_the_file_follows_the_last_key() -> None:
    preprocess = read_params(PARAMS).preprocess
    told = in_params(
        error("correct `source.path` or `source.pattern`, not `cup`", "`min_characters` of tea", "`source.path`: x"),
        *(PARAMS, "preprocess", preprocess),
    )
    assert type(told) is DataError
    assert told.problem == "`preprocess.min_characters` of tea"
    assert told.given == "`preprocess.source.path`: x"
    assert told.do == "correct `preprocess.source.path` or `preprocess.source.pattern` in params.yaml, not `cup`"


def test_advice_names_the_key_that_sets_a_field_also_under_a_null_section() -> None:
    params = read_params(PARAMS)
    task, section = next(iter(params.finetune.items()))
    told = in_params(error("lower `epochs`"), PARAMS, f"finetune.{task}", section)
    assert told.do.startswith("lower `finetune")
    assert told.do.endswith(".epochs` in params.yaml")
    assert params.pretrain.start is None
    assert "`pretrain.start.x`" in in_params(error("`start.x`"), PARAMS, "pretrain", params.pretrain).do


@pytest.mark.parametrize(
    ("told", "key"),
    [
        ("set `gradient_checkpointing: true`", "set `pretrain.gradient_checkpointing: true` in params.yaml"),
        ("set `tie_word_embeddings: false`", "set `pretrain.model.tie_word_embeddings: false` in params.yaml"),
        ("set `stochastic_depth: 0.0`", "set `pretrain.model.stochastic_depth: 0.0` in params.yaml"),
        ("take `existing: a/b`, or less", "take `tokenize.existing: a/b` in params.yaml, or less"),
        ("leave it out of `models`", "leave it out of `export.models` in params.yaml"),
        *((told, told) for told in ("pour", "take `cup`", "take `model.cup` or `kind.of`", "`pretrain.start` it is")),
    ],
)
def test_advice_names_the_keys_of_the_fields_and_keeps_their_values_and_other_words(told: str, key: str) -> None:
    changed = in_params(error(told, given=5), PARAMS, "pretrain", read_params(PARAMS).pretrain)
    assert (changed.do, changed.given) == (key, 5)


@pytest.mark.parametrize("name", list(_ELSEWHERE.values()))
def test_every_key_of_another_section_exists_in_params(name: str) -> None:
    assert is_knob_of(Params, name)


def test_keys_of_other_sections_are_rewritten_only_in_the_advice() -> None:
    """In the other parts of an error, the name may be a label or a word of the text."""
    told = in_params(error("another", "label `models` has no words"), PARAMS, "pretrain", read_params(PARAMS).pretrain)
    assert told.problem == "label `models` has no words"


def test_other_names_are_shown_as_given() -> None:
    assert renamed(error("see `source.path` and `more`"), {"source.path": "--text"}.get).do == "see `--text` and `more`"


def test_a_stage_reports_the_keys_of_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    arguments = ["source=missing", "forgotten=forgotten.lock", "out=data/raw"]
    failed = CliRunner().invoke(app, ["stage", "snapshot", *arguments]).exception
    assert isinstance(failed, ClozelineError)
    assert "correct `preprocess.source.path` in params.yaml (a DVC-tracked" in failed.do


@pytest.mark.parametrize(
    ("knob", "value", "told"),
    [
        ("family", "longformer", "`pretrain.model.stochastic_depth` needs pre-norm layers"),
        (
            "family",
            "my_own:build",
            "`pretrain.model.family: my_own:build` names an encoder of your own that cannot be imported",
        ),
        ("start", "no/such/folder", "`pretrain.start` in params.yaml"),
    ],
)
def test_errors_of_a_training_name_keys_of_params_yaml(
    knob: str, value: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no/such/folder").mkdir(parents=True)
    without_tasks(with_values(tmp_path, stochastic_depth="0.1", **{knob: value}))
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(app, ["plan", "--no-timing"]).exception
    assert isinstance(failed, ClozelineError)
    assert told in str(failed)
