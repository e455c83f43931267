"""Claim: every function that opens a published model inspects the model before it opens any of its files."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import DebertaV2Config, DebertaV2ForMaskedLM

from clozeline.encoder.families.layout import TokenIds
from clozeline.encoder.own import OWN_MODEL_TYPE
from clozeline.encoder.stock import StockModel
from clozeline.exporting.trained import open_trained
from clozeline.lab.contest import Contender, open_published
from clozeline.params.reading import read_params
from clozeline.pretraining.starting import start_from, token_ids
from clozeline.records.published import inspect_model
from clozeline.system.errors import ArtifactError
from clozeline.tasks import heads
from clozeline.tokenizing.tokenizer.folder import save_existing
from clozeline.tokenizing.tokenizer.vocabulary.opening import open_published as open_tokenizer
from tests.conftest import PROJECT

MODULE = 'open("it-ran", "w").close()\n'
HOSTILE: Mapping[str, Any] = {
    "auto_map": {"AutoConfig": "mine.Config", "AutoModelForMaskedLM": "mine.Model", "AutoTokenizer": [None, "mine.T"]},
    "configuration_files": ["config.4.0.0.json"],
    "_attn_implementation_internal": "somebody/kernel",
    "_experts_implementation_internal": "somebody/kernel",
    "_attn_implementation": "somebody/kernel@main:run",
    "attn_implementation": "kernels-community/flash-attn",
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}


def start(folder: Path) -> object:
    params, ids = read_params(PROJECT / "params.yaml").pretrain.model, TokenIds(90, 0, 2, 3)
    return start_from(str(folder), None, params, "mlm", ids, seed=1, max_length=8)


OF_SETTINGS: Mapping[str, Callable[[Path], object]] = {
    "a tokenizer": lambda folder: open_tokenizer(str(folder)),
    "a tokenizer to be taken": lambda folder: save_existing(str(folder), folder),
}
OF_MODELS: Mapping[str, Callable[[Path], object]] = {
    "a start": start,
    "a plan": lambda folder: token_ids(str(folder), None, "mlm"),
    "a model that is judged": lambda folder: open_published(str(folder)),
    "a contender": lambda folder: Contender.open(str(folder), folder / "scratch"),
    "an encoder that is fine-tuned": lambda folder: heads.build_answerer(folder, 1),
    "an entailment model": lambda folder: heads.build_entailer(folder),
    "an export": open_trained,
}
DOORS = OF_SETTINGS | OF_MODELS


@pytest.fixture
def folder(small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Complete foreign model; its custom code, if it ran, would leave a file in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("somebody was asked whether code may run"))
    folder = Path(shutil.copytree(small_encoder, tmp_path / "theirs"))
    (folder / "mine.py").write_text(MODULE)
    shutil.copy(folder / "config.json", folder / "config.4.0.0.json")
    change(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    return folder


def change(folder: Path, file: str, changes: Mapping[str, Any]) -> None:
    said = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(said | changes))


def of_entailment(folder: Path) -> None:
    labels = {"id2label": {"0": "entailment"}, "architectures": ["ModernBertForSequenceClassification"]}
    change(folder, "config.json", labels)


def as_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("key", HOSTILE)
@pytest.mark.parametrize("door", DOORS)
def test_a_configuration_with_custom_code_is_refused_everywhere(
    door: str, key: str, folder: Path, tmp_path: Path
) -> None:
    if door == "an entailment model":
        of_entailment(folder)
    unknown = {"model_type": "mine"} if key == "auto_map" else {}
    change(folder, "config.json", unknown | {key: HOSTILE[key]})
    with pytest.raises(ArtifactError, match=rf"(?s)config\.json requires .*`{key}: "):
        DOORS[door](folder)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("door", OF_MODELS)
def test_pickled_weights_are_refused_everywhere_with_how_to_convert_them(door: str, folder: Path) -> None:
    if door == "an entailment model":
        of_entailment(folder)
    as_pickle(folder)
    with pytest.raises(ArtifactError, match=r"(?s)pytorch_model\.bin.*(convert it|restores it)"):
        OF_MODELS[door](folder)


@pytest.mark.parametrize("door", DOORS)
def test_a_tokenizer_with_custom_code_is_refused_everywhere(door: str, folder: Path, tmp_path: Path) -> None:
    if door == "an entailment model":
        of_entailment(folder)
    change(folder, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["mine.T", None]}})
    with pytest.raises(ArtifactError, match=r"tokenizer_config\.json requires custom code"):
        DOORS[door](folder)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("family", ["mine:build", "modernbert"])
@pytest.mark.parametrize("door", [door for door in OF_MODELS if door != "a plan"])
def test_a_configuration_alone_never_causes_an_import(
    door: str, family: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is not named in params.yaml, or has the name of a family."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "modernbert"):
        (tmp_path / f"{name}.py").write_text(MODULE)
    params = read_params(PROJECT / "params.yaml").pretrain.model.model_dump() | {"family": family}
    ids = {"vocab_size": 90, "pad_id": 0, "cls_id": 2, "sep_id": 3}
    own = {"model_type": OWN_MODEL_TYPE, "architectures": ["OwnForMaskedLM"], "params": params, "ids": ids}
    change(folder, "config.json", own)
    with pytest.raises(ArtifactError):
        OF_MODELS[door](folder)
    assert not (tmp_path / "it-ran").exists()


def test_a_hub_kernel_in_a_nested_section_is_refused(folder: Path) -> None:
    change(folder, "config.json", {"text_config": {"layers": [{"attn_implementation": {"": "somebody/kernel"}}]}})
    with pytest.raises(ArtifactError, match="requires a kernel of the hub"):
        inspect_model(str(folder))


def test_a_nested_generator_is_inspected_with_its_discriminator(folder: Path, small_encoder: Path) -> None:
    inner = Path(shutil.copytree(small_encoder, folder / "generator"))
    inspect_model(str(folder))
    change(inner, "config.json", {"quantization_config": {"quant_method": "gptq"}})
    with pytest.raises(ArtifactError, match=r"generator/config\.json requires quantized weights"):
        inspect_model(str(folder))


def test_an_adapter_that_would_open_another_model_is_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/else", "peft_type": "LORA"}')
    with pytest.raises(ArtifactError, match="holds an adapter"):
        start(folder)


@pytest.mark.parametrize("place", ["evil.bin", "../elsewhere.safetensors"])
def test_an_index_that_names_no_shard_of_its_folder_is_refused(place: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(ArtifactError, match=place.replace(".", r"\.")):
        inspect_model(str(folder))


def test_a_pickle_beside_safetensors_is_ignored(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    start(folder)


@pytest.mark.parametrize("attention", [None, "eager", "sdpa", "flash_attention_2"])
def test_attention_named_in_the_configuration_is_accepted_and_overridden(attention: str | None, tmp_path: Path) -> None:
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    DebertaV2ForMaskedLM(DebertaV2Config(vocab_size=16, **shape)).save_pretrained(tmp_path)
    change(tmp_path, "config.json", {"_attn_implementation": attention, "quantization_config": None})
    model = open_published(str(tmp_path))
    assert isinstance(model, StockModel)
    assert model.stock.config._attn_implementation == "eager"
