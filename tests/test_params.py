import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.errors import ParamsError
from clozeline.params import FAMILY_NAMES, Params, read_params
from clozeline.params.finetuning import SECTIONS
from clozeline.params.finetuning.presets import PRESETS

PROJECT = Path(__file__).parents[1]
Editor = Callable[[str, str], Path]


@pytest.fixture
def edited(tmp_path: Path) -> Editor:
    """`edited(old, new)`: a copy of the project's params.yaml with one replacement."""

    def edit(old: str, new: str) -> Path:
        text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in params.yaml"
        path = tmp_path / "params.yaml"
        path.write_text(text.replace(old, new), encoding="utf-8")
        return path

    return edit


def message(path: Path) -> str:
    with pytest.raises(ParamsError) as caught:
        read_params(path)
    return str(caught.value)


def test_the_projects_own_params_are_read() -> None:
    params = read_params(PROJECT / "params.yaml")
    assert params.finetune["library"].kind == "classification"


def test_a_misspelt_key_is_named_with_the_right_spelling(edited: Editor) -> None:
    told = message(edited("    mask_rate: 0.3             # share", "    mask_rat: 0.3             # share"))
    assert "params.yaml: unknown key `pretrain.masking.mask_rat`" in told
    assert "rename it to `mask_rate`" in told


def test_a_misspelt_key_of_a_task_is_named_too(edited: Editor) -> None:
    told = message(edited("    max_per_class: 2000", "    max_per_clas: 2000"))
    assert "`finetune.library.max_per_clas`" in told
    assert "rename it to `max_per_class`" in told


def test_a_missing_key_is_named(edited: Editor) -> None:
    told = message(edited("  num_folds:", "  # num_folds:"))
    assert "`evaluate.num_folds` cannot be used" in told
    assert "expected: a value for this key\n" in told


def test_a_value_in_place_of_a_section_is_told_as_one(tmp_path: Path) -> None:
    text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
    path = tmp_path / "params.yaml"
    path.write_text(re.sub(r"(?ms)^evaluate:\n.*?^\n", "evaluate: yes\n\n", text), encoding="utf-8")
    assert "expected: a section: indented lines of `key: value`\n" in message(path)


def with_values(folder: Path, **values: str) -> Path:
    """A copy of the project's params.yaml; the first key of each name gets this value."""
    text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
    for key, value in values.items():
        text, num_edits = re.subn(rf"(?m)^( +{key}:) \S+", rf"\1 {value}", text, count=1)
        assert num_edits == 1, f"params.yaml has no {key}"
    path = folder / "params.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("mask_rate", "20", "expected: less than 1\n"),
        ("vocab_size", "10", "greater than or equal to 64"),
        ("learning_rate", "-1", "greater than 0"),
        ("learning_rate", ".inf", "finite number"),
        ("learning_rate", "true", "expected: a number\n"),
        ("steps", "true", "expected: a number\n"),
        ("protected_tokens", "the", "expected: a list: [one, two]\n"),
        ("max_perplexity_ratio", ".inf", "finite number"),
        ("min_unigram_ratio", "0", "greater than 0"),
        ("max_parity_difference", ".nan", "finite number"),
        ("num_hidden_layers", "two", "expected: a whole number\n"),
        ("min_characters", "99999", "not above `max_characters`"),
        ("same_side_similarity", "0.9", "`same_side_similarity` is not above"),
        ("holdout_fraction", "0.99", "a sum below 1"),
        ("test_fraction", "0.95", "a sum below 1"),
        ("dataset", "some/corpus", "kind `hub`"),
        ("existing", "some/tokenizer", "null for any other"),
        ("keep_share", "0.5", "must be 1"),
        ("hidden_size", "128", "a `size`, or null and the four numbers"),
        ("size", "null", "a `size`, or null and the four numbers"),
        ("matrix_learning_rate", "0.02", "null for any other"),
        ("mean_span_tokens", "3", "null for any other"),
        ("patience", "0", "greater than or equal to 1"),
        ("micro_batch_tokens", "32", "a row must fit"),
        ("recipe", "no-such", "a key of `recipes`: standard, low-resource, domain-adaptation"),
        ("batch_tokens", "32", "`batch_tokens` is not below `max_length`"),
    ],
)
def test_a_value_that_cannot_be_used_is_told_with_its_key_and_what_is_expected(
    tmp_path: Path, key: str, value: str, expected: str
) -> None:
    path = with_values(tmp_path, **{key: value})
    told = message(path)
    assert expected in told
    assert f"{key}: " in told.partition("given:")[2]
    assert "Input should" not in told
    assert str(path) in told


def shaped(folder: Path, **values: str) -> Path:
    """Params whose model has numbers in place of a named size."""
    numbers = {"hidden_size": "128", "num_hidden_layers": "2", "num_attention_heads": "2", "intermediate_size": "256"}
    return with_values(folder, **{"size": "null"} | numbers | values)


def test_numbers_can_stand_in_place_of_a_named_size(tmp_path: Path) -> None:
    assert read_params(shaped(tmp_path)).pretrain.model.hidden_size == 128


@pytest.mark.parametrize(
    ("heads", "expected"),
    [("3", "multiple of `num_attention_heads`"), ("128", "an even `hidden_size` / `num_attention_heads`")],
)
def test_heads_that_do_not_divide_the_model_are_refused(tmp_path: Path, heads: str, expected: str) -> None:
    assert expected in message(shaped(tmp_path, num_attention_heads=heads))


def test_learned_positions_take_heads_of_an_odd_size(tmp_path: Path) -> None:
    assert read_params(shaped(tmp_path, family="bert", num_attention_heads="128")).pretrain.model.family == "bert"


def recipe_names() -> list[str]:
    return list(read_params(PROJECT / "params.yaml").recipes)


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_is_laid_over_pretrain(tmp_path: Path, recipe: str) -> None:
    params = read_params(with_values(tmp_path, recipe=recipe))
    for section, values in params.recipes[recipe].items():
        for key, value in values.items():
            assert getattr(getattr(params.pretrain, section), key) == value
    assert params.pretrain.recipe == recipe


def test_the_recipes_hide_what_their_names_promise(tmp_path: Path) -> None:
    rates = {name: read_params(with_values(tmp_path, recipe=name)).pretrain for name in recipe_names()}
    assert rates["low-resource"].masking.mask_rate == 0.2
    assert rates["low-resource"].model.dropout > rates["standard"].model.dropout
    assert rates["domain-adaptation"].masking.mask_rate == 0.1
    assert rates["domain-adaptation"].optimizer.learning_rate < rates["standard"].optimizer.learning_rate


def test_a_recipe_that_sets_what_pretrain_does_not_have_is_refused_even_if_it_is_not_chosen(edited: Editor) -> None:
    told = message(edited("masking: {mask_rate: 0.1,", "masking: {mask_rat: 0.1,"))
    assert "recipes.domain-adaptation.masking.mask_rat: 0.1" in told.partition("given:")[2]


def test_a_value_that_a_recipe_sets_wrongly_is_told_where_it_was_written(edited: Editor) -> None:
    path = edited("masking: {mask_rate: 0.1,", "masking: {mask_rate: 10,")
    path.write_text(path.read_text().replace("recipe: standard", "recipe: domain-adaptation"), encoding="utf-8")
    told = message(path)
    assert "`recipes.domain-adaptation.masking.mask_rate` cannot be used" in told


def test_a_misspelt_family_is_told_before_anything_is_run(edited: Editor) -> None:
    told = message(edited("family: modernbert", "family: modernbrt"))
    assert "`pretrain.model.family` cannot be used" in told
    assert "given:    pretrain.model.family: 'modernbrt'" in told
    assert "one of: modernbert, bert" in told


def test_the_family_names_are_the_rows_of_the_table_of_families() -> None:
    from clozeline.model.families import FAMILIES

    assert set(FAMILY_NAMES) == set(FAMILIES)


def test_a_budget_that_ends_inside_warm_up_is_refused_with_both_keys(tmp_path: Path) -> None:
    told = message(with_values(tmp_path, steps="100", warmup_steps="150"))
    assert "`pretrain.steps` and `pretrain.schedule.warmup_steps` cannot be used together" in told
    assert "given:    pretrain.steps: 100, pretrain.schedule.warmup_steps: 150\n" in told
    assert "lower `schedule.warmup_steps` too" in told


@pytest.mark.parametrize(
    "values",
    [
        {"steps": "500", "warmup_steps": "150"},
        {"steps": "150", "warmup_steps": "150"},
        {"steps": "null", "tokens": "1000", "warmup_steps": "150"},
    ],
)
def test_a_budget_that_reaches_the_peak_of_the_learning_rate_is_taken(tmp_path: Path, values: dict[str, str]) -> None:
    assert read_params(with_values(tmp_path, **values)).pretrain.schedule.warmup_steps == 150


@pytest.mark.parametrize(
    ("section", "key"),
    [("  num_folds:", "evaluate"), ("  library:", "finetune.library")],
)
def test_rows_longer_than_the_model_reads_are_refused_with_both_lengths(tmp_path: Path, section: str, key: str) -> None:
    before, found, after = (PROJECT / "params.yaml").read_text(encoding="utf-8").partition(section)
    path = tmp_path / "params.yaml"
    path.write_text(before + found + re.sub(r"max_length: \d+", "max_length: 513", after, count=1), encoding="utf-8")
    told = message(path)
    assert f"given:    {key}.max_length: 513, pretrain.model.max_position_embeddings: 512\n" in told


def test_an_evaluation_batch_holds_a_row_at_least(edited: Editor) -> None:
    told = message(edited("  batch_tokens: 8192", "  batch_tokens: 63"))
    assert "given:    evaluate.batch_tokens: 63, evaluate.max_length: 64\n" in told


def test_keys_that_disagree_are_shown_without_the_section_they_are_in(edited: Editor) -> None:
    told = message(edited("min_characters: 60", "min_characters: 99999"))
    assert "given:    preprocess.min_characters: 99999, preprocess.max_characters: 20000\n" in told
    assert "do:       set `preprocess.min_characters` or `preprocess.max_characters`" in told


def test_a_budget_must_be_steps_or_tokens_and_not_both(edited: Editor) -> None:
    assert "set one and leave the other null" in message(edited("  tokens: null", "  tokens: 1000"))


def test_a_causal_model_is_not_exported_to_fill_masks(edited: Editor) -> None:
    told = message(edited("objective: mlm ", "objective: clm "))
    assert "given:    pretrain.objective: 'clm', export.models.encoder: 'encoder'\n" in told
    assert "leave it out of `export.models`" in told


def test_only_electra_is_trained_to_detect_replaced_tokens(edited: Editor) -> None:
    told = message(edited("objective: mlm ", "objective: rtd "))
    assert "given:    pretrain.objective: 'rtd', pretrain.model.family: 'modernbert', pretrain.start: null\n" in told
    assert "family `electra`" in told


def test_a_discriminator_is_not_exported_to_fill_masks_but_its_generator_is(edited: Editor) -> None:
    path = edited("objective: mlm ", "objective: rtd ")
    path.write_text(path.read_text(encoding="utf-8").replace("family: modernbert", "family: electra"), encoding="utf-8")
    told = message(path)
    assert "given:    pretrain.objective: 'rtd', export.models.encoder: 'encoder'\n" in told
    assert "`encoder/generator`" in told
    exported = path.read_text(encoding="utf-8").replace("encoder: encoder", "encoder: encoder/generator")
    path.write_text(exported, encoding="utf-8")
    assert read_params(path).export.models["encoder"] == "encoder/generator"
    path.write_text(exported.replace("objective: rtd ", "objective: mlm "), encoding="utf-8")
    assert "one of: encoder, finetuned/docsearch, finetuned/library\n" in message(path)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("generator_fraction: 0.25", "generator_fraction: 1.5", "less than or equal to 1"),
        ("generator_fraction: 0.25", "generator_fraction: 0", "greater than 0"),
        ("discriminator_weight: 50.0", "discriminator_weight: 0", "greater than 0"),
    ],
)
def test_a_pair_that_cannot_be_is_refused(edited: Editor, old: str, new: str, expected: str) -> None:
    assert expected in message(edited(old, new))


def test_an_exported_model_must_be_one_that_is_made(edited: Editor) -> None:
    told = message(edited("library: finetuned/library", "library: finetuned/libary"))
    assert "finetuned/library" in told


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
    ],
)
def test_a_file_that_is_not_yaml_is_told_with_its_name_the_line_and_the_reason(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    told = message(path)
    assert f"{path} is not YAML" in told
    assert expected in told.partition("given:")[2]
    assert "<unicode string>" not in told
    assert "suppress" not in told


@pytest.mark.parametrize("content", ["", "# only a comment\n"])
def test_an_empty_file_is_called_empty(tmp_path: Path, content: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(content, encoding="utf-8")
    assert f"{path} is empty" in message(path)


def test_a_misspelt_section_is_named_without_what_is_in_it(edited: Editor) -> None:
    told = message(edited("  source:", "  sorce:"))
    assert "unknown key `preprocess.sorce`" in told
    assert "rename it to `source`" in told
    assert "python-docs" not in told


def test_a_missing_file_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    assert str(tmp_path.resolve()) in message(tmp_path / "params.yaml")


def test_scientific_notation_without_a_dot_is_a_number(edited: Editor) -> None:
    params = read_params(edited("    epsilon: 1.0e-6", "    epsilon: 1e-6"))
    assert params.pretrain.optimizer.epsilon == 1e-6


def test_params_cannot_be_changed_after_reading() -> None:
    params: Params = read_params(PROJECT / "params.yaml")
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 1


def with_task(folder: Path, *lines: str) -> Path:
    """A copy of the project's params.yaml with one more task."""
    text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
    task = "\n".join(["  more:", *(f"    {line}" for line in lines)])
    path = folder / "params.yaml"
    path.write_text(text.replace("\nfinetune:\n", f"\nfinetune:\n{task}\n"), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_task_of_any_kind_needs_to_say_its_kind_and_its_data_alone(tmp_path: Path, kind: str) -> None:
    params = read_params(with_task(tmp_path, f"kind: {kind}", "data: labels.csv"))
    assert type(params.finetune["more"]) is SECTIONS[kind]
    assert params.finetune["more"].epochs == params.finetune_defaults["shared"]["epochs"]


def test_what_a_task_says_wins_over_the_defaults_and_sections_are_gone_into(tmp_path: Path) -> None:
    path = with_task(tmp_path, "kind: classification", "data: x.csv", "optimizer: {learning_rate: 1.0e-5}")
    optimizer = read_params(path).finetune["more"].optimizer
    assert optimizer.learning_rate == 1e-5
    assert optimizer.beta2 == read_params(path).finetune_defaults["shared"]["optimizer"]["beta2"]


@pytest.mark.parametrize("line", ["kind: classificatoin", "data: x.csv"])
def test_a_task_must_be_of_a_kind_that_there_is(tmp_path: Path, line: str) -> None:
    told = message(with_task(tmp_path, *{"data: x.csv", line}))
    assert "`finetune.more.kind` cannot be used" in told
    assert "expected: a kind of task: classification" in told
    assert ("given:    nothing" in told) == (line == "data: x.csv")


@pytest.mark.parametrize("place", ["    max_length: 128", "    max_classes: null "])
def test_a_misspelt_default_is_named_where_it_is_written(edited: Editor, place: str) -> None:
    section = "shared" if "128" in place else "classification"
    told = message(edited(place, place.replace("max_", "mx_")))
    assert f"finetune_defaults.{section}.mx_" in told.partition("given:")[2]


def test_a_default_that_cannot_be_used_is_named_where_it_is_written(edited: Editor) -> None:
    told = message(edited("    warmup_fraction: 0.1", "    warmup_fraction: 3"))
    assert "`finetune_defaults.shared.warmup_fraction` cannot be used" in told


def test_defaults_of_a_kind_that_there_is_not_are_refused(edited: Editor) -> None:
    told = message(edited("  classification:\n    text_field", "  clasification:\n    text_field"))
    assert "`finetune_defaults.clasification` cannot be used" in told
    assert "one of: shared, classification" in told


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_where_the_data_are_and_what_they_look_like(tmp_path: Path, preset: str) -> None:
    row = PRESETS[preset]
    lines = (f"kind: {row.kind}", "data: requirements.lock", f"preset: {preset}")
    task = read_params(with_task(tmp_path, *lines)).finetune["more"]
    assert task.hub is not None
    assert task.splits is not None
    assert task.hub.dataset == row.hub["dataset"]
    assert {name: getattr(task, name) for name in row.knobs} == dict(row.knobs)


def test_what_a_task_says_wins_over_its_preset(tmp_path: Path) -> None:
    lines = ("kind: classification", "data: requirements.lock", "preset: sst2", "hub: {dataset: my/copy}")
    assert read_params(with_task(tmp_path, *lines)).finetune["more"].hub.dataset == "my/copy"


def test_a_preset_that_there_is_not_is_refused(tmp_path: Path) -> None:
    told = message(with_task(tmp_path, "kind: classification", "data: x.csv", "preset: ss2"))
    assert "given:    finetune.more.preset: 'ss2'" in told
    assert "sst2" in told.partition("expected:")[2]


def test_a_section_inside_a_task_is_checked_too(tmp_path: Path) -> None:
    told = message(with_task(tmp_path, "kind: classification", "data: x", "hub: {dataset: a, revison: b}"))
    assert "unknown key `finetune.more.hub.revison`" in told
    assert "rename it to `revision`" in told
