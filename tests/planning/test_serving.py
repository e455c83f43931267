"""A published encoder is measured from its config.json alone: its weights are never downloaded."""

from pathlib import Path

import pytest
from transformers import BertConfig, DebertaV2Config, GPT2Config, PretrainedConfig, RobertaConfig

from clozeline.encoder.checkpoints import published_config
from clozeline.planning.costs import ParameterCount
from clozeline.planning.serving import of_published
from clozeline.system.errors import ArtifactError
from tests.make.models import NAME, MovingHub

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


@pytest.mark.parametrize("config", [BertConfig(**SHAPE), RobertaConfig(**SHAPE), DebertaV2Config(**SHAPE)])
def test_the_model_has_the_published_shape_without_any_weights(config: PretrainedConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    model = of_published(str(tmp_path))
    assert model.config.model_type == config.model_type
    assert model.get_input_embeddings().weight.shape == (300, 32)
    assert ParameterCount.of(model).body > 4 * 32 * 32


@pytest.mark.usefixtures("offline_hub")
def test_of_a_name_on_the_hub_only_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BertConfig(**SHAPE).save_pretrained(tmp_path / "files")
    hub = MovingHub(tmp_path / "cache", tmp_path / "files")
    hub.answer_in(monkeypatch)
    asked: list[str] = []
    import huggingface_hub

    get = huggingface_hub.hf_hub_download
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda *given, **more: asked.append(given[1]) or get(*given, **more)
    )
    assert published_config(NAME).hidden_size == 32
    assert "config.json" in asked
    assert not [name for name in asked if name.endswith((".safetensors", ".bin"))]


def test_a_model_without_an_exported_masked_head_is_refused(tmp_path: Path) -> None:
    GPT2Config(n_embd=32, n_layer=1, n_head=2).save_pretrained(tmp_path)
    with pytest.raises(ArtifactError, match="cannot be measured") as raised:
        of_published(str(tmp_path))
    assert "gpt2" in str(raised.value)
    assert "modernbert" in str(raised.value)


def test_a_model_that_does_not_fit_is_refused_with_the_size_of_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096).save_pretrained(
        tmp_path
    )
    monkeypatch.setattr("clozeline.planning.serving.available_bytes", lambda: 8_000_000_000)
    with pytest.raises(ArtifactError, match=r"1\.34 GB") as raised:
        of_published(str(tmp_path))
    assert "fp32 1.34 GB, fp16 0.67 GB, INT8 0.34 GB" in str(raised.value)
