"""Training from checkpoints in every published layout: they load as in stock transformers, or are refused clearly."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    PreTrainedModel,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.pretraining.starting import start_from
from clozeline.system.errors import ArtifactError

ROWS_BL = torch.tensor([[2, 10, 11, 12, 13, 14, 3]])
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 66,
}
PUBLISHED: dict[str, Callable[[], PreTrainedModel]] = {
    "albert": lambda: AlbertForPreTraining(AlbertConfig(**SHAPE, embedding_size=16)),
    "bert": lambda: BertForPreTraining(BertConfig(**SHAPE)),
    "deberta-v3": lambda: DebertaV2ForMaskedLM(
        DebertaV2Config(
            **SHAPE,
            type_vocab_size=0,
            relative_attention=True,
            position_biased_input=False,
            pos_att_type="p2c|c2p",
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_buckets=16,
        )
    ),
    "xlm-roberta": lambda: XLMRobertaForMaskedLM(XLMRobertaConfig(**SHAPE, pad_token_id=0)),
}
"""With the heads that they were published with: the next sentence's, the order of sentences'."""

Folder = Callable[[PreTrainedModel], Path]


def with_weights(build: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """Give every parameter random weights."""
    torch.manual_seed(0)
    model = build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    return model


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request: pytest.FixtureRequest) -> PreTrainedModel:
    return with_weights(PUBLISHED[request.param])


@pytest.fixture
def start(params_of) -> Callable[..., PreTrainedModel]:
    def start(folder: Path, **more) -> PreTrainedModel:
        ids = TokenIds(64, 0, 2, 3)
        return start_from(str(folder), None, params_of("modernbert"), "mlm", ids, seed=1, max_length=64, **more).eval()

    return start


def weights_of(folder: Path) -> dict[str, Tensor]:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    return weights


def with_old_names(folder: Path) -> None:
    """Rename weights as in checkpoints from TensorFlow: gamma and beta."""
    new = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = {}
    for name, weight in weights_of(folder).items():
        ending = next((ending for ending in new if name.endswith(ending)), "")
        weights[name.removesuffix(ending) + new.get(ending, "")] = weight
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def in_half(folder: Path) -> None:
    weights = {name: weight.half() for name, weight in weights_of(folder).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16", "dtype": "float16"}))


def in_shards(folder: Path) -> None:
    weights = weights_of(folder)
    places = {name: f"model-0000{number % 3 + 1}-of-00003.safetensors" for number, name in enumerate(sorted(weights))}
    for place in set(places.values()):
        part = {name: weight for name, weight in weights.items() if places[name] == place}
        save_file(part, folder / place, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 0}, "weight_map": places})
    )


LAYOUTS = [with_old_names, in_half, in_shards]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_published_layout_gives_the_outputs_of_stock_transformers(
    layout, published, start, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "published", tmp_path / "out"
    published.save_pretrained(folder)
    layout(folder)
    stock = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    ours = start(folder)
    out.mkdir()
    models.save(ours, tiny_tokenizer, out)
    with torch.inference_mode():
        expected_BLV = stock(ROWS_BL).logits
        assert (ours(ROWS_BL).logits - expected_BLV).abs().max() <= 1e-5
        again = AutoModelForMaskedLM.from_pretrained(out, local_files_only=True).eval()
        assert (again(ROWS_BL).logits - expected_BLV).abs().max() <= 1e-5
        of_published_BLH = published.base_model(ROWS_BL).last_hidden_state
    largest = 0.05 if layout is in_half else 1e-5
    with torch.inference_mode():
        assert (ours.base_model(ROWS_BL).last_hidden_state - of_published_BLH).abs().max() <= largest
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    assert again.config.dtype == torch.float32


def test_a_classifier_keeps_its_encoder_and_a_fresh_head_is_reported(start, tmp_path: Path, caplog) -> None:
    classifier = with_weights(lambda: BertForSequenceClassification(BertConfig(**SHAPE, num_labels=3)))
    classifier.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        ours = start(tmp_path)
    assert f"{tmp_path} (BertForSequenceClassification) has no trained head of this kind: " in caplog.text
    with torch.inference_mode():
        hidden_BLH = AutoModel.from_pretrained(tmp_path, local_files_only=True).eval()(ROWS_BL).last_hidden_state
        assert (ours.base_model(ROWS_BL).last_hidden_state - hidden_BLH).abs().max() <= 1e-6
        assert ours(ROWS_BL).logits.std() < 2, "a fresh head predicts at chance"


def test_a_missing_shard_is_refused_by_name(start, tmp_path: Path) -> None:
    with_weights(PUBLISHED["bert"]).save_pretrained(tmp_path)
    in_shards(tmp_path)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"(?s)cannot be read.*model-00002-of-00003\.safetensors"):
        start(tmp_path)


def test_a_pickle_is_refused_unopened_with_how_to_convert_it(start, tmp_path: Path) -> None:
    """A pickle can call any function when it is opened."""
    with_weights(PUBLISHED["bert"]).save_pretrained(tmp_path)
    weights_of(tmp_path)
    torch.save({"weights": Caller(tmp_path / "it-ran")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ArtifactError, match=r"(?s)without running code.*pytorch_model\.bin.*is a program"):
        start(tmp_path)
    assert not (tmp_path / "it-ran").exists()


class Caller:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_tensorflow_only_weights_are_refused_with_how_to_convert_them(start, tmp_path: Path) -> None:
    with_weights(PUBLISHED["bert"]).save_pretrained(tmp_path)
    weights_of(tmp_path)
    (tmp_path / "tf_model.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(ArtifactError, match=r"(?s)TensorFlow.*from_tf=True"):
        start(tmp_path)


def test_tokens_of_another_vocabulary_txt_are_refused(start, tmp_path: Path, made_tiny_tokenizer: Path) -> None:
    with_weights(PUBLISHED["bert"]).save_pretrained(tmp_path)
    words = json.loads((made_tiny_tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(words, key=words.get)
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    start(tmp_path, tokenizer=made_tiny_tokenizer)
    words[10], words[11] = words[11], words[10]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    with pytest.raises(ArtifactError, match=r"(?s)'w11' is 11, not 10"):
        start(tmp_path, tokenizer=made_tiny_tokenizer)


def test_a_checkpoint_without_a_tokenizer_is_accepted_with_a_warning(
    start, tmp_path: Path, made_tiny_tokenizer: Path, caplog
) -> None:
    with_weights(PUBLISHED["bert"]).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        start(tmp_path, tokenizer=made_tiny_tokenizer)
    assert f"{tmp_path}: its tokenizer cannot be compared with the one that made the tokens" in caplog.text
