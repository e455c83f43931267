"""Claim: compiled, a training has one graph for all its batches, and the same loss."""

from pathlib import Path

import pytest
import torch
from torch import nn

from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as compilation
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.losses import TargetLoss
from clozeline.system.errors import ParamsError

MOST_GRAPHS = 4
"""With and without an attention mask, and extra graphs for a first single row or target."""


def test_batches_of_all_shapes_share_a_few_compiled_graphs(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    """P39: with a backend that needs no compiler; how graphs are cut and shared does not depend on it."""
    job = pretraining.prepare(tiny_pretraining, seed=1, tokens=tiny_tokens, tokenizer=tiny_tokenizer, work=tmp_path)
    num_graphs = 0

    def counting(graph: torch.fx.GraphModule, inputs: object) -> object:
        nonlocal num_graphs
        num_graphs += 1
        return graph.forward

    torch._dynamo.reset()
    plain = TargetLoss(job.model)
    fast = compilation.compiled(TargetLoss(job.model), wanted=True, backend=counting)
    batches = job.loop.batches_from(0, 0)
    shapes = set()
    for _ in range(40):
        batch = next(batches).inputs
        shapes.add((*batch.input_ids_BL.shape, len(batch.labels_T)))
        assert fast(batch).loss_sum.item() == pytest.approx(plain(batch).loss_sum.item(), rel=1e-5)
        assert fast(batch).num_right == plain(batch).num_right
    assert len(shapes) > 20
    assert num_graphs <= MOST_GRAPHS


def test_compilation_without_a_compiler_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ParamsError, match=r"(?s)g\+\+.*`compile` to false"):
        compilation.compiled(nn.Linear(1, 1), wanted=True)
