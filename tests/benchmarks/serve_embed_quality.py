"""Share of Spearman's correlation with human scores that INT8 keeps, compared with sentence-transformers' presets.

Both sides use all-MiniLM-L6-v2 with the same weights and the scored pairs of STS 2016 that lie beside the project (or
in the folder that CLOZELINE_BENCHMARK_LABELLED names); without them there is nothing to measure. The figure is the
correlation of the cosines of the INT8 graph / that of fp32 (sentence-transformers' `model.onnx`); the better preset
counts. The 95 % intervals are by bootstrap over the same pairs for both graphs.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clozeline.records.finetune.scored_items import Values, spearman
from clozeline.records.finetune.statistics import bootstrap_interval
from comparison.frame import Rounds, available_cores, options, report
from comparison.labelled import Item, scored_pairs
from comparison.our_package import Ours, verdict
from comparison.sentences import Embed, sentence_models, theirs_onnx
from comparison.stock_onnx import PRESETS

_LOG = logging.getLogger(__name__)
GOAL_SHARE = 0.995
"""Share of fp32's correlation that our INT8 graph should keep."""


def main() -> None:
    options(__doc__).parse_args()
    pairs, num_threads = scored_pairs(), available_cores()
    if not pairs:
        _LOG.warning("there is no labelled data beside the project, and CLOZELINE_BENCHMARK_LABELLED names none")
    facts = _measured(pairs, num_threads) if pairs else {}
    theirs = [facts[f"share_{name}"] for name in PRESETS if facts]
    rounds = Rounds((facts["share_ours"],), (max(theirs),)) if pairs else Rounds((), ())
    report("serve_embed_quality", rounds, num_threads, facts | {"pairs": len(pairs), "goal_share": GOAL_SHARE})


def _measured(pairs: Sequence[Item], num_threads: int) -> dict[str, Any]:
    models = sentence_models()
    embed: Mapping[str, Embed] = {
        "ours": Ours(models.ours, num_threads).embed,
        **{name: theirs_onnx(models, num_threads, file) for name, file in PRESETS.items()},
    }
    score_N = np.array([pair["score"] for pair in pairs])
    exact_N = _cosines(theirs_onnx(models, num_threads, "model.onnx"), pairs)
    facts: dict[str, Any] = {"spearman_fp32": spearman(score_N, exact_N)} | verdict(models.ours)
    for name, side in embed.items():
        cosine_N = _cosines(side, pairs)
        facts[f"spearman_{name}"] = spearman(score_N, cosine_N)
        facts[f"share_{name}"] = facts[f"spearman_{name}"] / facts["spearman_fp32"]
        facts[f"interval_{name}"] = _interval(score_N, cosine_N, exact_N)
    return facts


def _cosines(embed: Embed, pairs: Sequence[Item]) -> Values:
    first_NH, second_NH = (embed([pair[side] for pair in pairs]) for side in ("sentence1", "sentence2"))
    return (first_NH.astype(np.float64) * second_NH).sum(axis=1)


def _interval(score_N: Values, cosine_N: Values, exact_N: Values) -> tuple[float, float]:
    def share(places_N: npt.NDArray[np.int64]) -> float:
        given_N = score_N[places_N]
        return spearman(given_N, cosine_N[places_N]) / spearman(given_N, exact_N[places_N])

    return bootstrap_interval(share, len(score_N))
