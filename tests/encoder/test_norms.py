from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import ModernBertConfig

from clozeline.encoder.architecture import norm_of
from clozeline.encoder.families import LAYOUTS
from clozeline.encoder.layers import Encoder

HIDDEN_BLH = torch.linspace(-3, 5, 2 * 3 * 8, dtype=torch.float64).view(2, 3, 8)


def test_rms_norm_follows_its_published_formula() -> None:
    """Zhang & Sennrich 2019, equation 4: no mean is subtracted, and there is no bias."""
    norm = norm_of("rms", 8, 1e-6, has_bias=True).double()
    torch.nn.init.uniform_(norm.weight)
    expected_BLH = HIDDEN_BLH / (HIDDEN_BLH.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
    assert torch.allclose(norm(HIDDEN_BLH), expected_BLH, rtol=1e-12)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


@pytest.mark.parametrize(("norm", "kind"), [("layer", nn.LayerNorm), ("rms", nn.RMSNorm)])
def test_every_norm_of_an_encoder_has_the_chosen_type(norm: str, kind: type[nn.Module]) -> None:
    shape = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    config = ModernBertConfig(vocab_size=16, pad_token_id=0, **shape)
    architecture = replace(LAYOUTS["modernbert"].architecture(config), norm=norm)
    encoder = Encoder(architecture)
    norms = [module for module in encoder.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)]
    assert norms
    assert {type(module) for module in norms} == {kind}
