"""Each section refuses what it cannot be used with, by the keys of the fault, and takes what looks alike."""

import re
from copy import deepcopy
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.params.model import CAUSAL_FAMILIES, FAMILY_NAMES
from clozeline.params.pretraining import laid_over
from clozeline.params.project import Params
from clozeline.params.reading import params_in, with_defaults
from clozeline.params.tasks import SECTIONS, FinetuneParams
from clozeline.system.errors import ParamsError
from tests.make.models import PROJECT

FILE = Path("params.yaml")
OWN = YAML(typ="safe").load(PROJECT / FILE)
SHAPE = "size: null, hidden_size: 128, num_hidden_layers: 2, intermediate_size: 256"
ENTRY = (
    "{model: m, revision: null, task: fill-mask, pooling: mean, prompts: {}, max_length: 64, reads_pairs: false,"
    " items: i.jsonl, sha256: {}, default_prompt: "
)
FILES_OF_LABELS = "label_files: {good: some.pos, bad: some.neg}"
LORA = "lora: {rank: 2, alpha: 2, dropout: 0.0}"
# Place, or kind of the task `more` → values at this place → keys of the fault, with their whole path elsewhere.
REFUSED: dict[str, dict[str, str]] = {
    "preprocess": {
        "min_words: 9, max_words: 3": "min_words max_words",
        "same_side_similarity: 0.9": "same_side_similarity near_duplicate_similarity",
        "holdout_fraction: 0.99": "validation_fraction holdout_fraction",
    },
    "preprocess.source": {
        "dataset: some/corpus": "kind dataset",
        "kind: sql, url: 'sqlite:///x.db'": "kind query",
        "kind: sql, query: SELECT 1": "kind url",
        "kind: sql, query: SELECT 1, url: 'postgresql://reader:geheim@db/tickets'": "url",
        "kind: files, url: 'https://example.org/x?X-Amz-Signature=geheim'": "url",
        "kind: files, url: my-texts": "url",
    },
    "tokenize": {"vocab_size: 10": "vocab_size", "existing: some/tokenizer": "algorithm existing"},
    "pretrain": {
        "steps: 0": "steps start",
        "steps: null, epochs: null": "steps tokens epochs",
        "objective: rtd": "objective model.family start",
        "objective: clm, model: {family: albert}": "objective model.family start",
        "objective: rtd, model: {family: electra}": "objective export.models.encoder",
        "replay_fraction: 0.5": "start replay_fraction",
        "start: champion, start_revision: abc": "start start_revision",
        "micro_batch_tokens: 32": "micro_batch_tokens max_length",
        "batch_tokens: 32": "batch_tokens max_length",
        "validation: {every_steps: null, patience: 2}": "validation.patience validation.every_steps",
        # The first token of a causal model sees no other, so every text would get the same label.
        "objective: clm, model: {family: bert}": "objective model.family finetune.library.kind",
    },
    "pretrain.model": {
        "hidden_size: 9": "size hidden_size num_hidden_layers num_attention_heads intermediate_size",
        "size: null": "size hidden_size num_hidden_layers num_attention_heads intermediate_size",
        f"{SHAPE}, num_attention_heads: 3": "hidden_size num_attention_heads",
        f"{SHAPE}, num_attention_heads: 128": "family hidden_size num_attention_heads",
        "family: longformer": "family export.models",
    },
    "pretrain.masking": {
        "keep_share: 0.5": "mask_share random_share keep_share",
        "mean_span_tokens: 3": "unit mean_span_tokens",
    },
    "pretrain.optimizer": {
        "matrix_learning_rate: 0.02": "kind matrix_learning_rate",
    },
    "evaluate": {"max_length: 513": "max_length pretrain.model.max_position_embeddings"},
    "finetune_defaults": {
        "clasification: {}": "clasification",
        "shared: {warmup_fraction: 3}": "shared.warmup_fraction",
        "shared: {test_fraction: 0.95}": "shared.validation_fraction shared.test_fraction",
    },
    "finetune.library": {"max_length: 513": "max_length pretrain.model.max_position_embeddings"},
    "finetune.more": {
        "data: x": "kind",
        "kind: classificatoin, data: x": "kind",
        "preset: sst2, data: labels/mine.csv": "data presets.sst2.hub",
        "kind: tagging, preset: sst2, data: corpus.lock": "preset",
    },
    "": {
        "tokenize: {existing: x, algorithm: existing}, pretrain: {start: champion}": "tokenize.existing pretrain.start",
        "finetune: {more: {preset: mine, data: x}}, presets: {mine: {kind: tagging, tag_column: x}}": (
            "presets.mine.tag_column"
        ),
        "finetune: {more: {preset: mine}}, presets: {mine: {kind: tagging, data: x.conll}}": "finetune.more.data",
        "finetune: {more: {kind: zero_shot, data: x}}, finetune_defaults: {zero_shot: {epochs: 9}}": (
            "finetune_defaults.zero_shot.epochs"
        ),
        "pretrain: {recipe: bert}, recipes: {bert: {masking: {mask_rate: 9}}}": "recipes.bert.masking.mask_rate",
        "finetune: {more: {kind: tagging, data: x}}, pretrain: {objective: clm}": (
            "pretrain.objective finetune.more.kind"
        ),
    },
    "classification": {
        "hub: {dataset: some/set}, data: labels/mine.csv": "data hub",
        f"{FILES_OF_LABELS}, second_field: other": "second_field label_files",
        f"{FILES_OF_LABELS}, hub: {{dataset: x}}": "hub label_files",
        "label_files: {good: some.pos}": "label_files",
        "rate_factors: [true, 3]": "rate_factors",
        "metric: f1": "metric finetune_defaults.classification.positive_label",
        "multi_label: true, metric: accuracy": "multi_label metric",
        "multi_label: true, positive_label: a": "multi_label positive_label",
        "train_length: 500": "train_length finetune_defaults.shared.max_length",
        "train_length: 64, second_field: other": "train_length second_field",
        f"frozen_layers: 1, {LORA}": "lora frozen_layers",
    },
    "question_answering": {
        "max_length: 128, max_question_tokens: 100, stride: 50": "max_length max_question_tokens stride"
    },
    "similarity": {
        "train_length: 500": "train_length finetune_defaults.shared.max_length",
        "read_together: true": "read_together finetune_defaults.similarity.score_field",
        "docstring_field: doc, score_field: score": "docstring_field score_field",
        "title_field: title": "title_field finetune_defaults.similarity.docstring_field",
    },
    "zero_shot": {
        "epochs: 3": "epochs",  # its default
        "optimizer: {learning_rate: 1.0e-5}": "optimizer",
        "prompt: no blank": "prompt",
        "second_field: other": "second_field",
    },
    "export": {
        "models: {encoder: encoder/generator}": "models.encoder",
        "models: {library: finetuned/libary}": "models.library",
        "ladder: [int9]": "ladder.0.weights",
        "ladder: [int7 exact 1.5]": "ladder.0.exact_share",
        "ladder: [int7 embeddings int8]": "ladder.0",
    },
    "imports": {
        f"library: {ENTRY}query}}": "library.prompts library.default_prompt",
        f"library: {ENTRY}null}}": "library export.models.library",
    },
    "release": {"max_perplexity_ratio: .inf": "max_perplexity_ratio"},
}


def tree_of(place: str, values: str) -> Any:
    """Return the project's own params, overlaid by `values`, which are written as in YAML, at `place`."""
    if place in SECTIONS:
        data = "" if "data: " in values else "data: x, "
        place, values = "finetune.more", f"kind: {place}, {data}{values}"
    names = place.split(".") if place else []
    text = "".join(f"{{{name}: " for name in names) + f"{{{values}}}" + "}" * len(names)
    return laid_over(deepcopy(OWN), YAML(typ="safe").load(text))


CASES = [
    pytest.param(place, values, keys.split(), id=f"{place}: {values}")
    for place, rows in REFUSED.items()
    for values, keys in rows.items()
]


def checked(tree: Any) -> Params:
    return params_in(with_defaults(tree), FILE)


def fault_of(tree: Any) -> ParamsError:
    with pytest.raises(ParamsError) as caught:
        checked(tree)
    return caught.value


@pytest.mark.parametrize(("place", "values", "keys"), CASES)
def test_what_cannot_be_used_is_refused_by_its_keys(place: str, values: str, keys: list[str]) -> None:
    error = fault_of(tree_of(place, values))
    section = "finetune.more" if place in SECTIONS else place
    told = [key if key.partition(".")[0] in Params.model_fields else f"{section}.{key}" for key in keys]
    assert re.findall("`([^`]+)`", error.problem) == told
    assert "Input should" not in str(error)
    is_named = [key in error.do or key.rpartition(".")[2] in error.do or "remove it" in error.do for key in told]
    assert any(is_named) or "rename it" in error.do


def test_what_looks_alike_is_accepted() -> None:
    for place, values, key, expected in (
        ("pretrain.model", f"{SHAPE}, num_attention_heads: 2", "hidden_size", 128),
        ("pretrain.model", f"{SHAPE}, num_attention_heads: 128, family: bert", "num_attention_heads", 128),
        ("pretrain", "steps: 0, start: bert-base-uncased", "steps", 0),
        ("pretrain", "start: champion, replay_fraction: 0.5", "replay_fraction", 0.5),
        ("pretrain", "objective: clm", "model.family", "modernbert"),
        ("classification", "positive_label: '1'", "positive_label", "1"),
        ("classification", "rate_factors: [1.0, 3.0]", "rate_factors", (1, 3)),
        ("classification", f"{FILES_OF_LABELS}", "label_files", {"good": "some.pos", "bad": "some.neg"}),
        ("finetune.more", "preset: sst2, data: labels/mine.csv, hub: null, splits: null", "text_field", "sentence"),
        ("finetune.more", "preset: sst2, data: corpus.lock", "hub.subset", "sst2"),
        (
            "classification",
            "data: labels/copy/train.parquet, hub: {dataset: labels/copy}",
            "hub.dataset",
            "labels/copy",
        ),
        (
            "",
            "pretrain: {objective: rtd, model: {family: electra}}, export: {models: {encoder: encoder/generator}}",
            "pretrain.objective",
            "rtd",
        ),
        (
            "",
            "pretrain: {objective: clm}, finetune: {more: {kind: zero_shot, data: x, entailment: {model: folder}}}",
            "pretrain.objective",
            "clm",
        ),
    ):
        found: Any = checked(tree_of(place, values))
        for name in filter(None, ("finetune.more" if place in SECTIONS else place).split(".")):
            found = found[name] if isinstance(found, dict) else getattr(found, name)
        assert attrgetter(key)(found) == expected


def test_the_family_names_are_the_rows_of_the_table_of_families() -> None:
    from clozeline.encoder.families import FAMILIES

    assert set(FAMILY_NAMES) == set(FAMILIES)
    assert set(CAUSAL_FAMILIES) == {name for name, row in FAMILIES.items() if "clm" in row.forms}


NO_BUDGET = {"steps": None, "tokens": None, "epochs": None}


def test_a_budget_is_in_steps_or_tokens_or_epochs_or_in_several() -> None:
    for values in ({"steps": 7}, {"tokens": 1000}, {"epochs": 3}, {"steps": 7, "epochs": 3}):
        tree = tree_of("pretrain", "")
        tree["pretrain"] |= NO_BUDGET | values
        params = checked(tree).pretrain
        assert {name: getattr(params, name) for name in NO_BUDGET} == NO_BUDGET | values


def test_the_champion_is_a_start_only_if_the_encoder_is_released() -> None:
    tree = tree_of("pretrain", "start: champion")
    del tree["export"]["models"]["encoder"]
    assert "`pretrain.start` cannot be used" in fault_of(tree).problem


def test_dvc_watches_only_sources_determined_by_local_files() -> None:
    for values, is_watched in (
        ("kind: files", True),
        ("kind: files, url: 's3://texts/in'", False),
        ("kind: sql, url: 'sqlite:///tickets.db', query: SELECT 1", False),
        (f"kind: hub, dataset: a/b, revision: {'b08601e0' * 5}", True),
        ("kind: hub, dataset: a/b", False),
    ):
        assert checked(tree_of("preprocess.source", values)).preprocess.source.is_watched is is_watched


def test_words_and_a_section_give_the_same_rung() -> None:
    words = "uint8  exact .5 embeddings fp32"
    section = "{weights: uint8, exact_share: 0.5, quantize_embeddings: false}"
    one, other = checked(tree_of("export", f"ladder: [{words}, {section}]")).export.ladder
    assert one == other


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_task_of_any_kind_needs_only_kind_and_data_and_takes_the_rest_from_the_defaults(kind: str) -> None:
    params = checked(tree_of(kind, ""))
    assert type(params.finetune["more"]) is SECTIONS[kind]
    assert params.finetune["more"].epochs == params.finetune_defaults["shared"]["epochs"]
    assert set(SECTIONS[kind].idle) <= set(FinetuneParams.model_fields)


def test_values_of_a_task_win_over_those_of_its_preset_and_of_the_defaults_key_by_key() -> None:
    params = checked(tree_of("classification", "optimizer: {learning_rate: 1.0e-5}"))
    optimizer, usual = params.finetune["more"].optimizer, params.finetune_defaults["shared"]["optimizer"]
    assert (optimizer.learning_rate, optimizer.beta2) == (1e-5, usual["beta2"])
    more = "preset: sst2, data: requirements.lock"
    known, own = (
        checked(tree_of("finetune.more", values)).finetune["more"]
        for values in (more, f"{more}, hub: {{dataset: my/copy}}, text_field: body")
    )
    assert (known.kind, known.metric, known.text_field) == ("classification", "accuracy", "sentence")
    assert own.splits == known.splits
    assert own.hub is not None
    assert (own.hub.dataset, own.hub.revision, own.text_field) == ("my/copy", None, "body"), "a key replaces it whole"


def test_a_zero_shot_task_begins_with_the_fields_of_classification_and_not_with_its_training() -> None:
    tree = tree_of("zero_shot", "")
    tree["finetune_defaults"]["classification"] |= {"text_field": "body", "class_weights": "balanced"}
    tree["finetune_defaults"]["shared"]["epochs"] = 9  # which has no effect here
    params = checked(tree)
    task = params.finetune["more"]
    assert (task.text_field, task.class_weights, task.train_length) == ("body", "none", None)
    assert params.finetune["library"].class_weights == "balanced"


def test_a_label_that_yaml_reads_as_a_number_must_be_quoted() -> None:
    error = fault_of(tree_of("classification", "positive_label: true"))
    assert error.given == "finetune.more.positive_label: true"
    assert error.do.endswith("params.yaml: 'true'")
