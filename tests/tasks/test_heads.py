"""The model of a task keeps the weights of the trained encoder: none of them is initialized again."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import HeadKind, TokenIds
from clozeline.language import models
from clozeline.system.errors import ArtifactError
from clozeline.tasks import heads
from tests.make.models import ParamsMaker

KINDS: tuple[HeadKind, ...] = (
    "feature-extraction",
    "text-classification",
    "token-classification",
    "question-answering",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in {"longformer", "big_bird"}])
def test_a_task_head_leaves_the_encoders_hidden_states_unchanged(
    family: str, kind: HeadKind, params_of: ParamsMaker, ids: TokenIds, tmp_path: Path
) -> None:
    trained = models.build(params_of(family), "mlm", ids, seed=3).eval()
    trained.save(tmp_path)
    built = heads.build(tmp_path, kind, 0, {})
    input_ids_BL = torch.arange(5, 25).view(2, 10)
    with torch.inference_mode():
        before_BLH = trained.base_model(input_ids_BL).last_hidden_state
        after_BLH = built.base_model(input_ids_BL).last_hidden_state
    torch.testing.assert_close(after_BLH, before_BLH, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_that_lacks_a_weight_is_refused_by_its_name(
    kind: HeadKind, params_of: ParamsMaker, ids: TokenIds, tmp_path: Path
) -> None:
    models.build(params_of("bert"), "mlm", ids, seed=3).save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="does not hold all weights") as caught:
        heads.build(tmp_path, kind, 0, {})
    assert "encoder.layer.1.output.dense.weight" in str(caught.value)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "big_bird"])
def test_a_causal_encoder_whose_head_would_read_the_first_token_is_refused(
    family: str, params_of: ParamsMaker, ids: TokenIds, tmp_path: Path
) -> None:
    """That token sees no other, so every text would get the same label."""
    models.build(params_of(family), "clm", ids, seed=3).save(tmp_path)
    with pytest.raises(ArtifactError, match="causal") as caught:
        heads.build(tmp_path, "text-classification", 0, {})
    assert "family modernbert" in str(caught.value)
    heads.build(tmp_path, "feature-extraction", 0, {})


def test_a_causal_modernbert_classifies_at_its_last_token(
    params_of: ParamsMaker, ids: TokenIds, tmp_path: Path
) -> None:
    models.build(params_of("modernbert"), "clm", ids, seed=3).save(tmp_path)
    model = heads.build(tmp_path, "text-classification", 0, {"id2label": {0: "a", 1: "b"}})
    text, other = torch.tensor([[2, 10, 11, 12, 3]]), torch.tensor([[2, 10, 11, 20, 3]])
    with torch.inference_mode():
        assert not torch.equal(model(text).logits, model(other).logits)
