"""Claim: an error about params.yaml names the key, the given value and the expected one."""

import re
from pathlib import Path

import pytest

from clozeline.params.project import Params
from clozeline.params.reading import read_params
from tests.make.params import PROJECT, Editor, message, with_values


def test_the_projects_own_params_are_read() -> None:
    params = read_params(PROJECT / "params.yaml")
    assert params.finetune["library"].kind == "classification"


def test_a_misspelt_key_is_named_with_the_right_spelling(edited: Editor) -> None:
    told = message(edited("    mask_rate: 0.3             # share", "    mask_rat: 0.3             # share"))
    assert "params.yaml: unknown key `pretrain.masking.mask_rat`" in told
    assert "rename it to `mask_rate`" in told


def test_a_missing_key_is_named(edited: Editor) -> None:
    told = message(edited("    kind: classification\n    data: data/clean\n", "    kind: classification\n"))
    assert "`finetune.library.data` cannot be used" in told
    assert "expected: a value for this key\n" in told


def test_a_value_in_place_of_a_section_is_reported_as_such(tmp_path: Path) -> None:
    text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
    path = tmp_path / "params.yaml"
    path.write_text(re.sub(r"(?ms)^evaluate:\n.*?^\n", "evaluate: yes\n\n", text), encoding="utf-8")
    assert "expected: a section: indented lines of `key: value`\n" in message(path)


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
        ("every_steps", "two", "expected: a whole number\n"),
        ("min_characters", "99999", "not above `max_characters`"),
        ("same_side_similarity", "0.9", "`same_side_similarity` not above"),
        ("holdout_fraction", "0.99", "a sum below 1"),
        ("test_fraction", "0.95", "a sum below 1"),
        ("dataset", "some/corpus", "kind `hub`"),
        ("existing", "some/tokenizer", "null for any other"),
        ("keep_share", "0.5", "must be 1"),
        ("size", "null", "a `size`, or null and the four numbers"),
        ("matrix_learning_rate", "0.02", "null for any other"),
        ("mean_span_tokens", "3", "null for any other"),
        ("patience", "0", "greater than or equal to 1"),
        ("micro_batch_tokens", "32", "a row must fit"),
        ("recipe", "no-such", "a key of `recipes`: measured, standard, low-resource, domain-adaptation"),
        ("batch_tokens", "32", "`batch_tokens` is not below `max_length`"),
    ],
)
def test_an_invalid_value_is_reported_with_its_key_and_what_is_expected(
    tmp_path: Path, key: str, value: str, expected: str
) -> None:
    path = with_values(tmp_path, **{key: value})
    told = message(path)
    assert expected in told
    assert f"{key}: " in told.partition("given:")[2]
    assert "Input should" not in told
    assert str(path) in told


def test_contradicting_keys_are_reported_without_their_common_section(edited: Editor) -> None:
    told = message(edited("min_characters: 60", "min_characters: 99999"))
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
    ],
)
def test_invalid_yaml_is_reported_with_its_file_the_line_and_the_reason(
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


def test_all_faults_are_reported_at_once_each_with_its_key_what_was_given_and_what_to_do(edited: Editor) -> None:
    path = edited("    mask_rate: 0.3             # share", "    mask_rat: 0.3             # share")
    text = path.read_text(encoding="utf-8")
    for right, wrong in (
        ("  num_bootstrap_samples: 2000", "  num_bootstrap_samples: seven"),
        ("  steps: 6300", "  steps: true"),
        ("recipe: measured", "recipe: nosuch"),
        ("imports: {}", "recipes: {domain-adaptation: {masking: {mask_rte: 0.1}}}\nimports: {}"),
        ("    warmup_fraction: 0.1", "    warmup_fraction: 3"),
        ("    max_train: 1500", "    preset: squad\n    max_train: 1500"),
        ("min_characters: 60", "min_characters: 99999"),
    ):
        assert right in text
        text = text.replace(right, wrong, 1)
    path.write_text(text, encoding="utf-8")
    told = message(path)
    keys = (
        "pretrain.masking.mask_rat",
        "recipes.domain-adaptation.masking.mask_rte",
        "pretrain.steps",
        "pretrain.recipe",
        "evaluate.num_bootstrap_samples",
        "finetune_defaults.shared.warmup_fraction",
        "finetune.library.preset",
        "preprocess.min_characters` and `preprocess.max_characters",
    )
    problems, given, expected, do = re.split(r"\n  (?:given|expected|do): +", told)
    assert f"{path} has {len(keys)} faults" in problems
    assert [key for key in keys if f"`{key}`" not in problems] == []
    for part in (problems, given, expected, do):
        assert re.findall(r"(?m)^ *(\d)\. ", part) == [*map(str, range(1, len(keys) + 1))]


def test_a_misspelt_key_is_reported_once_and_not_also_as_missing(edited: Editor) -> None:
    for wrong in ("    warmup_fractoin: 0.1", "    warmup_fraction: 0.1\n    warmup: 1"):
        told = message(edited("    warmup_fraction: 0.1", wrong))
        assert told.count("unknown key") == 1
        assert "  1. unknown" not in told


def test_a_misspelt_section_is_named_without_its_keys(edited: Editor) -> None:
    told = message(edited("  source:", "  sorce:"))
    assert "unknown key `preprocess.sorce`" in told
    assert "rename it to `source`" in told
    assert "python-docs" not in told


def test_a_missing_file_is_reported_with_its_expected_location(tmp_path: Path) -> None:
    assert str(tmp_path.resolve()) in message(tmp_path / "params.yaml")


def test_scientific_notation_without_a_dot_is_a_number(edited: Editor) -> None:
    params = read_params(edited("    epsilon: 1.0e-6", "    epsilon: 1e-6"))
    assert params.pretrain.optimizer.epsilon == 1e-6


def test_params_cannot_be_changed_after_reading() -> None:
    params: Params = read_params(PROJECT / "params.yaml")
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 1


@pytest.mark.parametrize(
    ("place", "line", "became"),
    [
        ("contract:", "  max_script_shift: 0.1", "`contract.max_script_shift` is gone: the limit is always 0.1"),
        ("  validation:", "    max_tokens: 5", "`pretrain.validation.max_tokens` is gone: "),
        ("export:", "  half: true", "`export.half` is gone: "),
        ("  gates:", "    min_metric_items: 9", "`export.gates.min_metric_items` is gone: the limit is always 200"),
    ],
)
def test_a_key_of_an_earlier_version_is_refused_with_what_became_of_it(
    edited: Editor, place: str, line: str, became: str
) -> None:
    text = next(one for one in (PROJECT / "params.yaml").read_text("utf-8").splitlines() if one.startswith(place))
    told = message(edited(f"\n{text}\n", f"\n{text}\n{line}\n"))
    assert became in told
    assert "remove it from" in told


def test_a_removed_key_of_a_recipe_is_refused_too(edited: Editor) -> None:
    told = message(edited("imports: {}", "imports: {}\nrecipes: {mine: {validation: {max_tokens: 5}}}"))
    assert "`recipes.mine.validation.max_tokens` is gone: " in told


@pytest.mark.parametrize("section", ["preprocess", "tokenize"])
def test_the_size_above_which_files_were_kept_beside_dvc_is_refused_with_its_successor(
    section: str, tmp_path: Path
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(f"{section}: {{large_file_mb: 1000}}\n", encoding="utf-8")
    told = message(path)
    assert f"`{section}.large_file_mb` is gone: let clones share DVC's cache (docs/cluster.md)" in told
    assert f"remove it from {path}" in told
