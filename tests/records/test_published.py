"""A published model is inspected before any of its files is opened, is read from one commit of the hub, and stays the
one that was imported; without a network, a user gets one error."""

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors.torch import load_file
from transformers import DebertaV2Config, DebertaV2ForMaskedLM

from clozeline.encoder.checkpoints import StockModel
from clozeline.encoder.families.layout import TokenIds
from clozeline.encoder.own import OWN_MODEL_TYPE
from clozeline.exporting.trained import open_trained
from clozeline.lab.contest import Contender, open_published
from clozeline.params.reading import read_params
from clozeline.pretraining.starting import token_ids
from clozeline.records import published
from clozeline.system.errors import ArtifactError, DataError, TransientError
from clozeline.tasks import heads
from clozeline.tokenizing.tokenizer.folder import save_existing
from clozeline.tokenizing.tokenizer.vocabulary.opening import open_published as open_tokenizer
from clozeline.tokenizing.tokenizer.vocabulary.opening import vocabulary_of
from tests.conftest import PROJECT
from tests.make.models import NAME, OLD, MovingHub, started


def test_a_path_that_is_no_folder_is_not_asked_of_the_hub(tmp_path: Path) -> None:
    for name in ("./missing", "/nowhere/at/all", "a/b/c"):
        with pytest.raises(ArtifactError, match="no folder with a model"):
            published.resolved(name)
    assert published.resolved(str(tmp_path)) == published.Published(str(tmp_path), None)
    with pytest.raises(ArtifactError, match="leave `--revision` out"):
        published.resolved(str(tmp_path), "main")


def test_an_answer_of_the_hub_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for fault, expected, told in (
        (GatedRepoError, ArtifactError, "accept the conditions"),
        (RepositoryNotFoundError, ArtifactError, "correct the name"),
        (RevisionNotFoundError, ArtifactError, "correct `--revision`"),
        (ConnectionError, TransientError, "the hub does not answer"),
    ):
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", Mock(side_effect=fault.__new__(fault)))
        with pytest.raises(expected, match=told):
            published.resolved("someone/model", "main")


@pytest.mark.usefixtures("offline_hub")
def test_an_unknown_name_without_a_network_is_one_error() -> None:
    with pytest.raises(TransientError, match="the hub does not answer"):
        published.resolved("someone/unknown")


def test_the_folder_of_an_import_holds_only_the_files_that_were_hashed(tmp_path: Path) -> None:
    """An error about them names the model and not their copy; one that changed since is refused."""
    model = tmp_path / "model"
    (model / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "1_Pooling/config.json", "other.bin"):
        (model / name).write_text(name)
    hashes = published.Published(str(model), None).sha256()
    with published.published_folder(str(model), None, hashes) as folder:
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert found == set(hashes) == {"config.json", "1_Pooling/config.json"}
    with pytest.raises(DataError) as raised, published.published_folder(str(model), None, hashes) as folder:
        raise DataError(f"{folder}: no", given=folder / "config.json", expected=f"{folder}", do=f"look at {folder}")
    assert str(folder) not in str(raised.value)
    assert str(raised.value).count(str(model)) == 4
    (model / "config.json").write_text("{ }")
    with (
        pytest.raises(ArtifactError, match="is not the file that was imported"),
        published.published_folder(str(model), None, hashes),
    ):
        pass


MODULE = 'open("it-ran", "w").close()\n'
HOSTILE: Mapping[str, Any] = {
    "auto_map": {"AutoConfig": "mine.Config", "AutoModelForMaskedLM": "mine.Model", "AutoTokenizer": [None, "mine.T"]},
    "configuration_files": ["config.4.0.0.json"],
    "_attn_implementation_internal": "somebody/kernel",
    "_experts_implementation_internal": "somebody/kernel",
    "_attn_implementation": "somebody/kernel@main:run",
    "attn_implementation": "kernels-community/flash-attn",
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "text_config": {"layers": [{"attn_implementation": {"": "somebody/kernel"}}]},
}


def start(folder: Path) -> object:
    params, ids = read_params(PROJECT / "params.yaml").pretrain.model, TokenIds(90, 0, 2, 3)
    return started(str(folder), params, "mlm", ids, seed=1, max_length=8)


OF_SETTINGS: Mapping[str, Callable[[Path], object]] = {
    "a tokenizer": lambda folder: open_tokenizer(str(folder)),
    "a tokenizer to be taken": lambda folder: save_existing(str(folder), folder),
}
OF_MODELS: Mapping[str, Callable[[Path], object]] = {
    "a start": start,
    "a plan": lambda folder: token_ids(str(folder), None, "mlm"),
    "a model that is judged": lambda folder: open_published(str(folder)),
    "a contender": lambda folder: Contender.open(str(folder), folder / "scratch"),
    "an encoder that is fine-tuned": lambda folder: heads.build(folder, "question-answering", 1, {"num_labels": 2}),
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


def opened_by(door: str, folder: Path) -> object:
    """Open the model at this door; only an entailment model is taken for one."""
    if door == "an entailment model":
        labels = {"id2label": {"0": "entailment"}, "architectures": ["ModernBertForSequenceClassification"]}
        change(folder, "config.json", labels)
    return DOORS[door](folder)


@pytest.mark.parametrize(
    ("door", "key"), [*((door, "auto_map") for door in DOORS), *(("a tokenizer", key) for key in HOSTILE)]
)
def test_a_configuration_with_custom_code_is_refused_everywhere(
    door: str, key: str, folder: Path, tmp_path: Path
) -> None:
    unknown = {"model_type": "mine"} if key == "auto_map" else {}
    change(folder, "config.json", unknown | {key: HOSTILE[key]})
    named = "attn_implementation" if key == "text_config" else key
    with pytest.raises(ArtifactError, match=rf"(?s)config\.json requires .*`{named}: "):
        opened_by(door, folder)
    shutil.copy(folder / "config.4.0.0.json", folder / "config.json")
    change(folder, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["mine.T", None]}})
    with pytest.raises(ArtifactError, match=r"tokenizer_config\.json requires custom code"):
        opened_by(door, folder)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("door", OF_MODELS)
def test_pickled_weights_are_refused_everywhere_with_how_to_convert_them(door: str, folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"(?s)pytorch_model\.bin.*(convert it|restores it)"):
        opened_by(door, folder)


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


def quantize_the_generator(folder: Path) -> None:
    inner = shutil.copytree(folder, folder / "generator")
    published.inspect_model(str(folder))
    change(inner, "config.json", {"quantization_config": {"quant_method": "gptq"}})


def name_in_the_index(folder: Path, place: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place}}))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (quantize_the_generator, r"generator/config\.json requires quantized weights"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}'), "holds an adapter"),
        (lambda folder: name_in_the_index(folder, "evil.bin"), r"evil\.bin"),
        (lambda folder: name_in_the_index(folder, "../elsewhere.safetensors"), r"\.\./elsewhere\.safetensors"),
    ],
)
def test_what_would_open_something_else_is_refused(folder: Path, damage: Callable[[Path], object], told: str) -> None:
    """A model inside the model, an adapter, shards outside of it; but a pickle beside safetensors is ignored."""
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    start(folder)
    damage(folder)
    with pytest.raises(ArtifactError, match=told):
        published.inspect_model(str(folder))


@pytest.mark.parametrize("attention", [None, "flash_attention_2"])
def test_attention_named_in_the_configuration_is_accepted_and_overridden(attention: str | None, tmp_path: Path) -> None:
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    DebertaV2ForMaskedLM(DebertaV2Config(vocab_size=16, **shape)).save_pretrained(tmp_path)
    change(tmp_path, "config.json", {"_attn_implementation": attention, "quantization_config": None})
    model = open_published(str(tmp_path))
    assert isinstance(model, StockModel)
    assert model.stock.config._attn_implementation == "eager"


def test_an_unknown_name_is_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The hub's client, which logs each of its retries, is silent while it is asked, and only then."""
    client = logging.getLogger("huggingface_hub.utils._http")

    def give_up(*_: object, **__: object) -> None:
        client.warning("Retrying in 1s [Retry 1/5].")
        raise OSError("no network")

    for place in ("huggingface_hub", "transformers.utils.hub"):
        monkeypatch.setattr(f"{place}.hf_hub_download", give_up)
    for ask, kind in ((open_published, ArtifactError), (open_tokenizer, DataError)):
        caplog.clear()
        with caplog.at_level("INFO"), pytest.raises(kind, match="nobody/nowhere"):
            ask("nobody/nowhere")
        client.warning("something else")
        asking = "nobody/nowhere is not a local folder: asking the Hugging Face hub"
        assert [record.message for record in caplog.records] == [asking, "something else"]


def test_a_model_is_not_opened_if_its_files_cannot_be_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub fails only during the inspection; it would answer again when the model is loaded. Offline, a model that
    is missing from the cache is not inspected."""

    def fail(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("connection reset")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for inspect in (published.inspect_settings, published.inspect_model):
        with pytest.raises(TransientError, match="cannot be inspected") as caught:
            inspect("someone/model")
        assert "HF_HUB_OFFLINE=1" in caught.value.do
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    published.inspect_settings("someone/model")


@pytest.fixture
def hub(tmp_path: Path, small_encoder: Path, offline_hub: None, monkeypatch: pytest.MonkeyPatch) -> MovingHub:
    hub = MovingHub(tmp_path / "cache", small_encoder)
    hub.answer_in(monkeypatch)
    return hub


def test_a_hub_name_is_pinned_to_a_commit_and_a_folder_is_not(hub: MovingHub, tmp_path: Path) -> None:
    assert published.pinned(NAME, None) == published.pinned(NAME, OLD) == OLD
    assert published.pinned(str(tmp_path), None) is None
    assert published.pinned("someone/else", "main") == "main", "the opening function reports the missing commit"


def test_a_tokenizer_without_a_model_has_a_commit_too(hub: MovingHub) -> None:
    (hub.files / "config.json").unlink()
    assert published.pinned(NAME, "main") == OLD


@pytest.mark.parametrize(
    "read",
    [
        lambda scratch: open_tokenizer(NAME),
        lambda scratch: vocabulary_of(NAME, None),
        lambda scratch: token_ids(NAME, None, "mlm"),
        lambda scratch: Contender.open(NAME, scratch),
    ],
)
def test_everything_is_read_from_one_commit(hub: MovingHub, read: Callable[[Path], object], tmp_path: Path) -> None:
    read(tmp_path / "scratch")
